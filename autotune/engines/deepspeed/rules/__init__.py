"""Legality: named rules judge what would really run; each has the cases that prove it."""

from autotune.engines.communication.rules import RULES as COMMUNICATION_RULES
from autotune.engines.deepspeed.rules import (
    attention,
    batch,
    compile,
    compression,
    data,
    dtypes,
    elasticity,
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
    surroundings,
    version,
    zenflow,
    zero,
    zeropp,
)
from autotune.engines.deepspeed.rules.base import Setup
from autotune.engines.deepspeed.rules.sections import as_read, is_plain
from autotune.space.rule import Rule, Violation, judge_by, rules_of

__all__ = [
    "ALL_RULES",
    "COMMUNICATION_RULES",
    "VALUE_RULES",
    "Rule",
    "Setup",
    "Violation",
    "judge",
]

_KEY_RULES = (*schema.KEY_RULES, *version.KEY_RULES)

_ABOUT_VALUES = rules_of(
    *(version, batch, precision, optimizer, scheduler, zero, offload, parallel, pipeline),
    *(sequence, experts, model, zeropp, zenflow, nvme, dtypes, attention, loss, compile),
    *(compression, elasticity),
)
VALUE_RULES = tuple(rule for rule in _ABOUT_VALUES if rule not in version.KEY_RULES)

_SECTION_RULES = rules_of(data, surroundings)
"""Rules about sections that no template of the search has: `is_plain` answers for them."""

ALL_RULES: tuple[Rule[Setup], ...] = (
    *(*schema.BLOCKING, *_KEY_RULES, *_SECTION_RULES),
    *VALUE_RULES,
)
"""Every rule about DeepSpeed, in the order in which they are asked; then come those about what
its ranks talk by, `COMMUNICATION_RULES`."""


def judge(setup: Setup, unknown_facts: set[str] | None = None) -> list[Violation]:
    """Apply every rule; `unknown_facts` takes the facts that rules asked for and nobody knows.

    Values are judged as DeepSpeed reads them: "16" as the 16 that it takes it for. Of one that
    nobody can read, only the rules about values speak; the others would read nonsense.

    Returns:
        Empty for a legal setup; it never raises, whatever the configuration holds.
    """
    found: list[Violation] = []
    if not is_plain(setup):
        found = judge_by((*schema.BLOCKING, *_KEY_RULES), setup, unknown_facts)
        setup = setup.with_config(as_read(setup.ds_config, setup.version))
        found += judge_by(_SECTION_RULES, setup, unknown_facts)
    found += judge_by(VALUE_RULES, setup, unknown_facts)
    if setup.communication is not None:
        found += judge_by(COMMUNICATION_RULES, setup.communication)
    return found
