"""Rules of the form "A needs B" and "A excludes B": the rows of `rows.json`.

A row has cases, of which the first that holds is told. `where` names facts with what each has to
be: `@name` is an attribute of `Setup`, any other name a dotted key of the configuration, and what
stands behind a `?` counts where it is not there. A fact is

- one value, or a list of which it is one (`null`: it is not there);
- `{"not": ...}`, none of these;
- `{"above": ...}`, `{"below": ...}`, `{"divided": ...}` or `{"undivided": ...}`, more or less than
  a number or the name of another fact, a multiple of it or none;
- `{"truth": ...}`, something or nothing as Python asks it;
- `{"given": ...}`, in the file or not, whatever its value;
- `{"from": ..., "before": ...}`, a release of DeepSpeed.

The other entries of a case are those of a `Finding` with facts in braces (`autotune.base.terms`),
in a text with " (its default)" where what stands behind the `?` counts.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter, gt, lt, ne
from typing import Any

from autotune.base.data import table_beside
from autotune.engines.deepspeed.rules.base import Setup, section_at
from autotune.engines.deepspeed.rules.words import finding_of
from autotune.space.rule import Finding, Rule

_Read = Callable[[Setup], Any]
_Condition = tuple[_Read, Sequence[Any], bool]
"""A fact, values, and whether it has to be one of these or none."""


def _reader(name: str) -> _Read:
    """Finds a fact in a setup; a lattice asks many, so the shortest way to each."""
    if "?" in name:
        found, usual = _reader(name.partition("?")[0]), name.partition("?")[2]
        default: Any = int(usual) if usual.isdecimal() else usual
        return lambda setup: default if (value := found(setup)) is None else value
    if name.startswith("@model."):
        size = name.removeprefix("@model.")
        return lambda setup: getattr(setup.model, size, None)
    if name.startswith("@"):
        return attrgetter(name.removeprefix("@"))
    section, _, key = name.rpartition(".")
    if not section:
        return lambda setup: setup.ds_config.get(key)
    if section == "zero_optimization":
        return lambda setup: setup.zero.get(key)
    return lambda setup: section_at(setup.ds_config, section).get(key)


def _condition(name: str, wanted: Any) -> _Condition:
    read = _reader(name)
    if not isinstance(wanted, Mapping):
        return read, _listed(wanted), True
    if {"from", "before"} & wanted.keys():
        first, end = wanted.get("from", "0"), wanted.get("before", "")
        return lambda setup: setup.is_at_least(first, before=end), (True,), True
    ((kind, value),) = wanted.items()
    if kind == "given":
        section, _, key = name.rpartition(".")
        return lambda setup: key in section_at(setup.ds_config, section), (value,), True
    if kind == "truth":
        return lambda setup: bool(read(setup)), (value,), True
    other = _reader(value) if _is_name(value) else None
    if kind == "not" and other is None:
        return read, _listed(value), False
    compares = {"above": gt, "below": lt, "not": ne}.get(kind, _is_undivided)
    return (
        lambda setup: _compared(read(setup), other(setup) if other else value, compares),
        (kind != "divided",),
        True,
    )


def _is_undivided(number: int, by: int) -> bool:
    """Whether one is no multiple of the other; 0 is a shape that nobody knows."""
    return by != 0 and number % by != 0


def holds(where: Mapping[str, Any], setup: Setup) -> bool:
    """Whether every condition of a row's `where` does."""
    asked = (_condition(fact, wanted) for fact, wanted in where.items())
    return all((read(setup) in values) is is_one for read, values, is_one in asked)


def _listed(value: Any) -> Sequence[Any]:
    return tuple(value) if isinstance(value, list) else (value,)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and not {".", "@", "?"}.isdisjoint(value)


def _compared(one: Any, other: Any, compares: Callable[[Any, Any], bool]) -> bool:
    if compares is not ne and not {type(one), type(other)} <= {int, float}:
        return False
    return bool(compares(one, other))


def _note(name: str, setup: Setup) -> str:
    is_default = "?" in name and _reader(name.partition("?")[0])(setup) is None
    return " (its default)" if is_default else ""


def _check(
    cases: Sequence[tuple[Sequence[_Condition], Mapping[str, Any]]], setup: Setup
) -> Finding | None:
    for conditions, entries in cases:
        for read, values, is_one in conditions:
            if (read(setup) in values) is not is_one:
                break
        else:
            note = partial(_note, setup=setup)
            return finding_of(entries, lambda name: _reader(name)(setup), note)
    return None


def _rule(name: str, row: Mapping[str, Any]) -> Rule[Setup]:
    cases = [
        (
            [_condition(fact, wanted) for fact, wanted in case["where"].items()],
            {entry: value for entry, value in case.items() if entry != "where"},
        )
        for case in row["cases"]
    ]
    return Rule(
        name=name,
        check=partial(_check, cases),
        source=row["source"],
        consequence=row.get("consequence", "raised"),
    )


def _rules() -> Sequence[Rule[Setup]]:
    return tuple(_rule(name, row) for name, row in table_beside(__file__, "rows.json").items())


ROWS = _rules()
"""A rule for each row."""
