"""How busy the devices of this machine are before anything of ours runs on them."""

from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from autotune.base.units import format_bytes
from autotune.devices.hardware import cpu_name, usable_cores, visible_gpus

BUSY = 0.10
"""Share of its time, or of a GPU's memory, from which on a device is not called idle."""
REMEDY = "end what runs there, or wait: measurements of a shared device are not trustworthy"
_SAMPLE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator before anything of ours ran on it."""

    index: int
    """GPU index as ranks count, or core number."""
    name: str
    busy: float | None
    """Share of the time it was in use by others (0 to 1); None if not reported."""
    memory_bytes: int | None = None
    """Memory of a GPU; None for a core."""
    memory_used_bytes: int | None = None
    """Memory of a GPU that anybody uses; None for a core."""


def watch_devices(accelerator: str | None) -> tuple[Device, ...]:
    """The GPUs of this machine, or its cores, which are watched for a second."""
    if accelerator == "cuda":
        return tuple(
            Device(
                index=gpu.index,
                name=gpu.name,
                busy=gpu.utilization,
                memory_bytes=gpu.memory_bytes,
                memory_used_bytes=gpu.memory_used_bytes,
            )
            for gpu in visible_gpus()
        )
    percents = psutil.cpu_percent(interval=_SAMPLE_S, percpu=True)
    return tuple(
        Device(
            index=core,
            name=cpu_name(),
            # A container may number its cores beyond those it is shown.
            busy=percents[core] / 100 if core < len(percents) else None,
        )
        for core in usable_cores()
    )


def in_use(devices: Sequence[Device], load: float | None) -> list[str]:
    """What others use of some devices, in words; `load` is that of a machine whose cores train."""
    busy = [f"{one.index} ({one.busy:.0%})" for one in devices if (one.busy or 0.0) > BUSY]
    held = [
        f"{one.index} ({format_bytes(one.memory_used_bytes)})"
        for one in devices
        if one.memory_bytes and (one.memory_used_bytes or 0) > BUSY * one.memory_bytes
    ]
    found = []
    if busy:
        loaded = "" if load is None else f"; load average {load:.2f}"
        found.append(f"in use by others: device {', '.join(busy)}{loaded}")
    if held:
        found.append(f"memory in use by others: device {', '.join(held)}")
    return found
