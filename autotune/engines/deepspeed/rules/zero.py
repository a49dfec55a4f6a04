"""ZeRO: which keys act at which stage, and what its stages do not do."""

from collections.abc import Mapping
from typing import Any

from autotune.base.data import table_beside
from autotune.engines.deepspeed.rules.base import Setup, zero
from autotune.engines.deepspeed.rules.sections import shown
from autotune.engines.deepspeed.rules.words import finding
from autotune.space.rule import Finding, rule

_BUCKETS = (1, 2)
_ACTING = table_beside(__file__, "acts_at.json")
ACTS_AT: Mapping[str, tuple[int, ...]] = {
    spelling: tuple(row["stages"])
    for row in _ACTING
    for name in row["keys"]
    for spelling in (name, name.removeprefix("stage3_"))
}
"""Key of `zero_optimization` -> the stages that read it. Keys that only concern checkpoints are
not here: they do no harm anywhere. Nothing reads `allgather_partitions`."""


def inert_keys(zero: Mapping[str, Any]) -> list[str]:
    """Keys of a `zero_optimization` section that nothing reads at its stage.

    A renderer that lays a user's section under another stage drops these, and says so.
    """
    stage = zero.get("stage", 0)
    # A lattice asks this of every setup: the keys of other stages are few, and mostly not there.
    inert = {
        name
        for name, stages in ACTS_AT.items()
        if stage not in stages and (value := zero.get(name)) is not None and value is not False
    }
    return [name for name in zero if name in inert] if inert else []


@rule(
    "runtime/engine.py: _configure_zero_optimizer passes each stage its own keys",
    consequence="ignored",
)
def _inert_key(setup: Setup) -> Finding | None:
    found = inert_keys(setup.zero)
    if not found:
        return None
    name, *others = found
    stages = ACTS_AT[name]
    where = f"acts at stage {' and '.join(map(str, stages))}" if stages else "has no effect at all"
    more = f" (and {', '.join(others)})" if others else ""
    return Finding(
        message=f"zero_optimization.{name}={shown(name, setup.zero[name])} {where}, this is stage "
        f"{setup.stage}{more}",
        changes=zero(**dict.fromkeys(found)),
    )


@rule("runtime/zero/stage_1_and_2.py:389")
def _odd_allgather_bucket(setup: Setup) -> Finding | None:
    size = setup.zero.get("allgather_bucket_size")
    if size is None or setup.stage not in _BUCKETS or size % 2 == 0:
        return None
    if setup.uses_bf16_optimizer:
        return None
    return finding("odd_allgather_bucket", size=size, even=int(size) + 1)
