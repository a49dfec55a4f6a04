"""Abilities of this machine and obstacles to them; data for the command `doctor`."""

from autotune.devices.in_use import Device
from autotune.doctor.diagnosis import Examination, Level, Machine, Remark, Speed
from autotune.doctor.findings import diagnose

__all__ = ["Device", "Examination", "Level", "Machine", "Remark", "Speed", "diagnose"]
