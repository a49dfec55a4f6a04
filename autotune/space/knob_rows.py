"""Knobs as rows of a JSON file: the fields of a knob, with its functions by their names.

`acts` and `asks_where` are conditions (`autotune.base.terms`): a name alone is a function, a fact
of the context or its model (`is_hugging_face`), or a knob that is off its default (`fp8`); a
comparison is with a value or another knob (`pp>1`, `recompute=full`, `etp!=tp`). `at_most` names
what a number saturates at: a function, or a fact.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from autotune.base.terms import COMPARE, literal, tests_of
from autotune.contract import KnobValue
from autotune.job.model_shape import ModelShape
from autotune.space.knob import Context, Knob, Knobs

K = TypeVar("K", bound=Knob)
Acts = Callable[[Knobs, Context], bool]

_FUNCTIONS = ("fold", "reader")
_CONDITIONS = ("acts", "asks_where")
_LISTS = ("choices", "names", "needs_cuda", "more_keys", "switch")
_FACTS = {field.name for field in fields(Context)}
_OF_MODEL = {field.name for field in fields(ModelShape)}


def read_knobs(
    path: Path, kind: type[K], *modules: ModuleType, section: str = "", **common: Any
) -> dict[str, K]:
    """Knobs by name, in the order of the file.

    A row may have an entry `why` besides, a remark for people. Without a default it has the first
    of its choices. `choices` may name a tuple of the modules, `joins_choices` says that a value
    may be several of them, and `needs_cuda` may be true: every value off the default.

    Args:
        path: The file: name -> row, or section -> such rows.
        kind: The class of the knobs.
        modules: Where functions and tuples are that rows name, without a leading underscore.
        section: The section that is read.
        common: Fields that all of the knobs have.
    """
    named = {name.lstrip("_"): value for module in modules for name, value in vars(module).items()}
    rows = json.loads(path.read_text(encoding="utf-8"))
    every = {n: row for part in rows.values() for n, row in part.items()} if section else rows
    for row in every.values():
        _complete(row, named)
    terms = _Terms({name: row["default"] for name, row in every.items()}, named)
    return {
        name: _knob(name, {**common, **row}, kind, terms)
        for name, row in (rows[section] if section else rows).items()
    }


def _complete(row: dict[str, Any], named: Mapping[str, Any]) -> None:
    if isinstance(choices := row.get("choices"), str):
        row["choices"] = named[choices]
    if "default" not in row:
        row["default"] = row["choices"][0]
    if row.pop("joins_choices", False):
        row["pattern"] = "({0})(\\+({0}))*".format("|".join(row["choices"]))
        row["pattern_words"] = "several joined by +"
    if row.get("needs_cuda") is True:
        others = row.get("choices", ())[1:]
        row["needs_cuda"] = others or (type(row["default"])(1),)


def _knob(name: str, row: Mapping[str, Any], kind: type[K], terms: "_Terms") -> K:
    entries = {key: value for key, value in row.items() if key not in ("why", "at_most")}
    readers: dict[str, Callable[[Any], Any]] = {
        **dict.fromkeys(_FUNCTIONS, terms.named.__getitem__),
        **dict.fromkeys(_LISTS, tuple),
        **dict.fromkeys(_CONDITIONS, terms.all_of),
    }
    for key in entries.keys() & readers.keys():
        entries[key] = readers[key](entries[key])
    if "when" in entries:
        entries["when"] = {other: tuple(values) for other, values in entries["when"].items()}
    if "default_when" in entries:
        entries["default_when"] = {(o, at): value for o, at, value in entries["default_when"]}
    if "at_most" in row:
        entries["fold"] = terms.at_most(row["at_most"])
    return kind(name=name, **entries)


class _Terms:
    def __init__(self, defaults: Mapping[str, KnobValue], named: Mapping[str, Any]) -> None:
        self.named = named
        self._defaults = defaults

    def all_of(self, text: str) -> Acts:
        return reduce(_both, map(self._term, text.split()))

    def at_most(self, name: str) -> Callable[[KnobValue, Knobs, Context], KnobValue]:
        """A value, at most what saturates it: more of it means the same run."""
        most = self._fact(name)
        return lambda value, values, context: min(int(value), int(most(values, context)))

    def _term(self, term: str) -> Acts:
        found = reduce(_either, [self._test(*test) for test in tests_of(term)])
        return _negated(found) if term.startswith("!") else found

    def _test(self, name: str, sign: str, word: str) -> Acts:
        fact = self._fact(name)
        if not sign:
            if name not in self._defaults:
                return fact
            neutral = (None, self._defaults[name])
            return lambda values, _: values.get(name) not in neutral
        compare = COMPARE[sign]
        if word in self._defaults:
            return lambda values, _: compare(values[name], values[word])
        wanted = literal(word)
        if sign == ">" and name in self._defaults:  # one that does not act has no value
            return lambda values, _: values.get(name, 0) > wanted
        return lambda values, context: compare(fact(values, context), wanted)

    def _fact(self, name: str) -> Callable[[Knobs, Context], Any]:
        if name in self._defaults:
            return lambda values, _: values.get(name)
        if name in _FACTS:
            return lambda _, context: getattr(context, name)
        if name in _OF_MODEL:
            return lambda _, context: getattr(context.model, name)
        found: Callable[[Knobs, Context], Any] = self.named[name]
        return found


# Knobs are asked by the hundred thousand: nested functions are faster than loops.
def _both(one: Acts, other: Acts) -> Acts:
    return lambda values, context: one(values, context) and other(values, context)


def _either(one: Acts, other: Acts) -> Acts:
    return lambda values, context: one(values, context) or other(values, context)


def _negated(one: Acts) -> Acts:
    return lambda values, context: not one(values, context)
