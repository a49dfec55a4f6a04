"""What this machine can do and what stands in the way; data for the command `doctor`."""

from autotune.doctor.diagnose import diagnose
from autotune.doctor.diagnosis import Device, Diagnosis, Finding, Level, Machine, Speed

__all__ = ["Device", "Diagnosis", "Finding", "Level", "Machine", "Speed", "diagnose"]
