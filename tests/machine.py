"""This machine, as records of runs on it name it."""

from autotune.base.units import format_bytes
from autotune.devices.hardware import cpu_name, usable_cores, usable_memory_bytes


def machine_in_words() -> str:
    """Cores and memory that a run on CPU ranks may use."""
    cores, memory = len(usable_cores()), format_bytes(usable_memory_bytes())
    return f"{cores} cores of {cpu_name()}, {memory} of memory, no accelerator"
