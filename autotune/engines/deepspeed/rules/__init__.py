"""Legality: named rules judge what would really run; each has the cases that prove it."""

from collections.abc import Mapping

from autotune.base.data import table_beside
from autotune.engines.communication.rules import RULES as COMMUNICATION_RULES
from autotune.engines.deepspeed.rules import (
    batch,
    experts,
    model,
    offload,
    optimizer,
    parallel,
    precision,
    scheduler,
    schema,
    surroundings,
    version,
    zero,
)
from autotune.engines.deepspeed.rules.base import Setup
from autotune.engines.deepspeed.rules.rows import ROWS
from autotune.engines.deepspeed.rules.sections import as_read, is_plain
from autotune.space.rule import Rule, Violation, judge_by, rules_of

__all__ = [
    "ALL_RULES",
    "COMMUNICATION_RULES",
    "DECIDED_BY",
    "VALUE_RULES",
    "Rule",
    "Setup",
    "Violation",
    "judge",
]

_KEY_RULES = (*schema.KEY_RULES, *version.KEY_RULES)

_IN_CODE = rules_of(
    *(version, batch, precision, optimizer, scheduler, zero, offload, parallel),
    *(experts, model, surroundings),
)
_ABOUT_SECTIONS = ("data.", "surroundings.", "schema.")
_ABOUT_VALUES = tuple(rule for rule in (*_IN_CODE, *ROWS) if rule not in version.KEY_RULES)

VALUE_RULES = tuple(rule for rule in _ABOUT_VALUES if not rule.name.startswith(_ABOUT_SECTIONS))

_SECTION_RULES = tuple(rule for rule in _ABOUT_VALUES if rule.name.startswith(_ABOUT_SECTIONS))
"""Rules about sections that no template of the search has: `is_plain` answers for them."""

ALL_RULES: tuple[Rule[Setup], ...] = (
    *(*schema.BLOCKING, *_KEY_RULES, *_SECTION_RULES),
    *VALUE_RULES,
)
"""Every rule about DeepSpeed, in the order in which they are asked; then come those about what
its ranks talk by, `COMMUNICATION_RULES`."""

DECIDED_BY: Mapping[tuple[str, ...], frozenset[str]] = {
    tuple(row["knobs"]): frozenset(row["rules"])
    for row in table_beside(__file__, "decided_by.json")
}
"""Knobs -> rules that refuse many candidates of a grid, and whose answer follows from these knobs
alone: they are asked once per combination of the knobs, and not of each candidate."""


def judge(setup: Setup, unknown_facts: set[str] | None = None) -> list[Violation]:
    """Apply every rule; `unknown_facts` takes the facts that rules asked for and nobody knows.

    Values are judged as DeepSpeed reads them: "16" as the 16 that it takes it for. Of one that
    nobody can read, only the rules about values speak; the others would read nonsense.

    Returns:
        Empty for a legal setup; it never raises, whatever the configuration holds.
    """
    found: list[Violation] = []
    if not is_plain(setup.ds_config, setup.version):
        found = judge_by((*schema.BLOCKING, *_KEY_RULES), setup, unknown_facts)
        setup = setup.with_config(as_read(setup.ds_config, setup.version))
        found += judge_by(_SECTION_RULES, setup, unknown_facts)
    found += judge_by(VALUE_RULES, setup, unknown_facts)
    if setup.communication is not None:
        found += judge_by(COMMUNICATION_RULES, setup.communication)
    return found
