"""Legality: named rules judge what would really run; each has the cases that prove it."""

from autotune.engines.deepspeed.rules import (
    attention,
    batch,
    compile,
    dtypes,
    experts,
    loss,
    model,
    nvme,
    offload,
    optimizer,
    parallel,
    pipeline,
    precision,
    scheduler,
    schema,
    sequence,
    version,
    zenflow,
    zero,
    zeropp,
)
from autotune.engines.deepspeed.rules.base import Setup
from autotune.engines.deepspeed.rules.sections import is_plain
from autotune.space.rule import Rule, Violation, judge_by

__all__ = ["ALL_RULES", "Rule", "Setup", "Violation", "judge"]

_KEY_RULES = (*schema.KEY_RULES, *version.KEY_RULES)

_VALUE_RULES = (
    *version.RULES,
    *batch.RULES,
    *precision.RULES,
    *optimizer.RULES,
    *scheduler.RULES,
    *zero.RULES,
    *offload.RULES,
    *parallel.RULES,
    *pipeline.RULES,
    *sequence.RULES,
    *experts.RULES,
    *model.RULES,
    *zeropp.RULES,
    *zenflow.RULES,
    *nvme.RULES,
    *dtypes.RULES,
    *attention.RULES,
    *loss.RULES,
    *compile.RULES,
)

ALL_RULES: tuple[Rule[Setup], ...] = (*schema.BLOCKING, *_KEY_RULES, *_VALUE_RULES)
"""Every rule, in the order in which they are asked."""


def judge(setup: Setup) -> list[Violation]:
    """Apply every rule.

    Where a value has the wrong type or is out of range, only those rules answer: the others would
    read nonsense.

    Returns:
        Empty for a legal setup; it never raises, whatever the configuration holds.
    """
    found: list[Violation] = []
    if not is_plain(setup):
        found = judge_by(schema.BLOCKING, setup)
        if found:
            return found
        found = judge_by(_KEY_RULES, setup)
    return found + judge_by(_VALUE_RULES, setup)
