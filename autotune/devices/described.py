"""Devices that nobody has here: an accelerator's figures by the table, this machine's versions."""

from collections.abc import Sequence

from autotune.devices.accelerators import Accelerator, find_accelerator
from autotune.devices.hardware import Environment


def described(
    gpu: str, per_node: int | None, here: Environment, table: Sequence[Accelerator]
) -> Environment:
    """The environment of nodes with some accelerator.

    Args:
        gpu: Its name in the table.
        per_node: How many a node has; None: as many as its vendor puts there.
        here: Gives the versions.
        table: Where it is looked up.

    Raises:
        FleetError: It is in no table.
    """
    found = find_accelerator(gpu, table=table)
    is_cpu = found.name == "CPU"
    known = tuple(name for name in ("fp32", "bf16", "fp16") if name in found.peak_flops)
    return Environment(
        accelerator="cpu" if is_cpu else "cuda",
        n_devices=found.devices_per_node if per_node is None else per_node,
        device_name=found.name,
        device_memory_bytes=int(found.memory_bytes),
        peak_flops=None if is_cpu else found.peak_flops[found.half],
        deepspeed_version=here.deepspeed_version,
        torch_version=here.torch_version,
        precisions=known,
    )
