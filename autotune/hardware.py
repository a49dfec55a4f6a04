"""Accelerators of this machine, what is installed for them, and GPU tables."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What a trial would meet: the accelerator and the versions of what runs on it."""

    accelerator: str
    """`cpu` or `cuda`."""
    n_devices: int
    """Accelerators of one node; for `cpu`, its cores."""
    device_name: str
    device_memory_bytes: int
    """Of one device; for `cpu`, the host's memory."""
    peak_flops: float | None
    """Dense bf16/fp16 matrix peak of one device in FLOP/s by its datasheet; None if unknown."""
    deepspeed_version: str
    torch_version: str
    precisions: tuple[str, ...] = ("fp32", "bf16", "fp16")
    """What DeepSpeed accepts on this accelerator; many CPUs have no fp16, older GPUs no bf16."""
