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
