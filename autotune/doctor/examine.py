"""Put the diagnosis together: look, measure, conclude."""

from autotune.doctor import findings
from autotune.doctor.diagnosis import Examination
from autotune.doctor.machine import inspect_machine
from autotune.doctor.speed import measure_speed


def diagnose(*, measure: bool = True) -> Examination:
    """Examine this machine; a few seconds, and at most a minute where communication hangs.

    Args:
        measure: Whether to run the matrix product and the all-reduce, in processes of their own.
    """
    machine = inspect_machine()
    runs = measure and machine.packages["torch"] is not None and machine.accelerator is not None
    devices = [device.index for device in machine.devices]
    speed = measure_speed(machine.accelerator or "", devices) if runs else None
    return Examination(machine=machine, speed=speed, findings=findings.conclude(machine, speed))
