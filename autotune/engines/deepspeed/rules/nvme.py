"""Swapping to a disk: how many buffers it takes."""

import tempfile
from pathlib import Path
from typing import Any

from autotune.engines.deepspeed.rules.adam import CPU_ADAM
from autotune.engines.deepspeed.rules.base import Setup, raised, zero
from autotune.space.rule import Finding, rule

_TENSORS = 4
"""Tensors of a sub-group under Adam: weights, two moments and gradients."""
_FOLDER = str(Path(tempfile.gettempdir()) / "autotune-swap")
SWAPPED_MODEL = {"vocab": 16_384}
"""Model with two sub-groups of a mebibyte per rank: below that nothing is swapped."""


def swapped(name: str, **keys: Any) -> dict[str, Any]:
    """A configuration for witnesses: `offload_optimizer` or `offload_param` goes to a disk."""
    section = {"device": "nvme", "nvme_path": _FOLDER, **keys}
    return CPU_ADAM | zero(3, sub_group_size=262_144, **{name: section})


@rule(
    "runtime/swap_tensor/pipelined_optimizer_swapper.py: _swap_in_optimizer_state",
    raised(
        r"^AssertionError: (PipelinedOptimizerSwapper ran out of swap buffers.*)?$",
        swapped("offload_optimizer", pipeline_read=True),
        model=SWAPPED_MODEL,
    ),
)
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
