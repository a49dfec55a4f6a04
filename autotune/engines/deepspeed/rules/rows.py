"""Rules of the form "A needs B" and "A excludes B": the rows of `rows.json`.

A row has cases, of which the first that holds is told. `where` names facts with what each has to
be: `@name` is an attribute of `Setup`, any other name a dotted key of the configuration. A fact is

- one value, or a list of which it is one (`null`: it is not there);
- `{"not": ...}`, none of these;
- `{"above": ...}` or `{"below": ...}`, a number or the name of another fact;
- `{"truth": ...}`, something or nothing as Python asks it;
- `{"from": ..., "before": ...}`, a release of DeepSpeed.

The other entries of a case are those of a `Finding`; `{name}` in one stands for a fact.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter, contains, gt, lt
from pathlib import Path
from typing import Any

from autotune.engines.deepspeed.rules.base import Setup, section_at
from autotune.space.rule import Choice, Finding, Rule

_NAME = r"@?[a-z_0-9.]+"
_PLACE = re.compile(rf"\{{({_NAME})(?::([^}}]+))?\}}")

_Read = Callable[[Setup], Any]
_Holds = Callable[[Setup], bool]


def _reader(name: str) -> _Read:
    """Finds a fact in a setup."""
    if not name.startswith("@"):
        section, _, key = name.rpartition(".")
        return lambda setup: section_at(setup.ds_config, section).get(key)
    if not name.startswith("@model."):
        return attrgetter(name.removeprefix("@"))
    size = name.removeprefix("@model.")
    return lambda setup: getattr(setup.model, size, None)


def _condition(name: str, wanted: Any) -> _Holds:
    read = _reader(name)
    if not isinstance(wanted, Mapping):
        values = wanted if isinstance(wanted, list) else [wanted]
        return lambda setup: read(setup) in values
    if {"from", "before"} & wanted.keys():
        first, end = wanted.get("from", "0"), wanted.get("before", "")
        return lambda setup: setup.is_at_least(first, before=end)
    ((kind, value),) = wanted.items()
    if kind == "truth":
        return lambda setup: bool(read(setup)) is value
    other = _reader(value) if _is_name(value) else lambda _: value
    if kind == "not":
        return lambda setup: not _is_one_of(read(setup), other(setup))
    compares = {"above": gt, "below": lt}[kind]
    return lambda setup: _compared(read(setup), other(setup), compares)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and ("." in value or value.startswith("@"))


def _is_one_of(value: Any, values: Any) -> bool:
    return contains(values, value) if isinstance(values, list) else bool(value == values)


def _compared(one: Any, other: Any, compares: Callable[[Any, Any], bool]) -> bool:
    return type(one) in (int, float) and type(other) in (int, float) and compares(one, other)


def _filled(value: Any, setup: Setup) -> Any:
    """An entry of a case with the facts in their places; a place alone keeps the fact's type."""
    if isinstance(value, Mapping):
        return {_filled(name, setup): _filled(inner, setup) for name, inner in value.items()}
    if isinstance(value, list):
        return tuple(_filled(item, setup) for item in value)
    if not isinstance(value, str):
        return value
    if (alone := _PLACE.fullmatch(value)) and alone[2] is None:
        return _reader(alone[1])(setup)
    return _PLACE.sub(lambda place: format(_reader(place[1])(setup), place[2] or ""), value)


def _check(
    cases: Sequence[tuple[Sequence[_Holds], Mapping[str, Any]]], setup: Setup
) -> Finding | None:
    for conditions, entries in cases:
        for holds in conditions:
            if not holds(setup):
                break
        else:
            told = {name: _filled(value, setup) for name, value in entries.items()}
            choices = tuple(Choice(**choice) for choice in told.pop("choices", ()))
            return Finding(choices=choices, **told)
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
    text = Path(__file__).with_name("rows.json").read_text(encoding="utf-8")
    return tuple(_rule(name, row) for name, row in json.loads(text).items())


ROWS = _rules()
"""A rule for each row."""
