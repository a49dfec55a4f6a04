"""Rules of the form "A needs B" and "A excludes B": the rows of `rows.json`.

A row is told where its `when` holds (`space.rule.condition_of`). Of one with cases it is the first
whose own `when` holds, with what the row says for all of them.
`@name` is an attribute of `Setup`, any other name a dotted key of the configuration. What stands
behind a `?` counts where it is not there; with nothing behind it, whether it is there. `@from_X`
asks for a release of DeepSpeed from X on.

The other entries are those of a `Finding` with facts in braces (`autotune.base.terms`), in a text
with " (its default)" where what stands behind the `?` counts.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from operator import attrgetter
from typing import Any

from autotune.base.data import table_beside
from autotune.base.terms import literal
from autotune.engines.deepspeed.rules.base import Setup, section_at
from autotune.engines.deepspeed.rules.words import finding_of
from autotune.space.rule import Finding, Rule, condition_of


@cache
def fact_of(name: str) -> Callable[[Setup], Any]:
    """Finds a fact in a setup; a lattice asks many, so the shortest way to each."""
    name, is_asked, usual = name.partition("?")
    section, _, key = name.rpartition(".")
    if is_asked and not usual:
        return lambda setup: key in section_at(setup.ds_config, section)
    if is_asked:
        found, default = fact_of(name), literal(usual)
        return lambda setup: default if (value := found(setup)) is None else value
    if name.startswith("@from_"):
        return lambda setup: setup.is_at_least(name.removeprefix("@from_"))
    if name.startswith("@model."):
        return lambda setup: getattr(setup.model, key, None)
    if name.startswith("@"):
        return attrgetter(name.removeprefix("@"))
    if not section:
        return lambda setup: setup.ds_config.get(key)
    if section == "zero_optimization":
        return lambda setup: setup.zero.get(key)
    return lambda setup: section_at(setup.ds_config, section).get(key)


def _note(name: str, setup: Setup) -> str:
    is_default = "?" in name and fact_of(name.partition("?")[0])(setup) is None
    return " (its default)" if is_default else ""


def _check(
    condition: Callable[[Setup], bool],
    cases: Sequence[tuple[Callable[[Setup], bool], Mapping[str, Any]]],
    setup: Setup,
) -> Finding | None:
    if condition(setup):
        for of_case, entries in cases:
            if of_case(setup):
                note = partial(_note, setup=setup)
                return finding_of(entries, lambda name: fact_of(name)(setup), note)
    return None


def _rule(name: str, row: dict[str, Any]) -> Rule[Setup]:
    condition, about = condition_of(row.pop("when", ""), fact_of), {"source": row.pop("source")}
    about["consequence"] = row.pop("consequence", "raised")
    cases = [
        (condition_of(case.pop("when", ""), fact_of), {**row, **case})
        for case in row.pop("cases", [{}])
    ]
    return Rule(name=name, check=partial(_check, condition, cases), **about)


ROWS = tuple(_rule(name, row) for name, row in table_beside(__file__, "rows.json").items())
"""A rule for each row."""
