"""Legality: what would really run is judged by named rules, each with the cases that prove it."""

from autotune.rules import (
    batch,
    model,
    offload,
    optimizer,
    parallel,
    precision,
    schema,
    version,
    zero,
)
from autotune.rules.base import Rule, Setup, Violation

__all__ = ["ALL_RULES", "Rule", "Setup", "Violation", "judge"]

_READABLE = (
    *schema.RULES,
    *version.RULES,
    *batch.RULES,
    *precision.RULES,
    *optimizer.RULES,
    *zero.RULES,
    *offload.RULES,
    *parallel.RULES,
    *model.RULES,
)

ALL_RULES: tuple[Rule, ...] = (*schema.BLOCKING, *_READABLE)
"""Every rule, in the order in which they are asked."""


def judge(setup: Setup) -> list[Violation]:
    """Apply every rule.

    Where a value has the wrong type or is out of range, only those rules answer: the others would
    read nonsense.

    Returns:
        Empty for a legal setup; it never raises, whatever the configuration holds.
    """
    found = [violation for rule in schema.BLOCKING if (violation := rule.judge(setup))]
    if found:
        return found
    return [violation for rule in _READABLE if (violation := rule.judge(setup))]
