"""Swapping to a disk: how many buffers it takes."""

from autotune.engines.deepspeed.rules.base import Setup, zero
from autotune.space.rule import Finding, rule

_TENSORS = 4
"""Tensors of a sub-group under Adam: weights, two moments and gradients."""


@rule("runtime/swap_tensor/pipelined_optimizer_swapper.py: _swap_in_optimizer_state")
def _pipeline_buffers(setup: Setup) -> Finding | None:
    section = setup.zero_section("offload_optimizer")
    if setup.stage != 3 or section.get("device") != "nvme":
        return None
    ways = [way for way in ("read", "write") if section.get(f"pipeline_{way}") is True]
    needed = _TENSORS * (1 + len(ways))
    count = section.get("buffer_count", _TENSORS)
    if not ways or count >= needed:
        return None
    on = " and ".join(f"pipeline_{way}" for way in ways)
    return Finding(
        message=f"zero_optimization.offload_optimizer.buffer_count={count:.0f} with {on}: "
        f"{_TENSORS} * (1 + {len(ways)}) = {needed} are in use at once",
        changes=zero(offload_optimizer={"buffer_count": needed}),
    )


@rule(
    "runtime/zero/partition_parameters.py: _partition_param_sec makes the second copy on the "
    "device of the offload, and torch has none of that name"
)
def _second_copy_on_disk(setup: Setup) -> Finding | None:
    size = setup.zero.get("zero_hpz_partition_size", 1)
    if setup.stage != 3 or setup.param_offload != "nvme" or size <= 1:
        return None
    return Finding(
        message=f"zero_optimization.zero_hpz_partition_size={size:.0f} with offload_param to "
        "nvme: the second copy of the weights cannot stand on a disk",
        changes=zero(zero_hpz_partition_size=None),
    )
