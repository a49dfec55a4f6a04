"""How a rule of layouts is made: a condition on whole columns, and what it says of one layout."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from inspect import signature
from math import prod
from typing import Any

import numpy as np

from autotune.base.data import table_beside
from autotune.base.terms import COMPARE, tests_of
from autotune.engines.megatron.choices import GRAPHS, OFFLOADED, RECOMPUTED, has
from autotune.engines.megatron.knobs import KNOBS
from autotune.engines.megatron.layout_task import LayoutRows, LayoutTask, Truth, expert_tp
from autotune.space.rule import Consequence, Finding, Rule, UnknownFactError

ARGUMENTS = "megatron/training/arguments.py, validate_args"
_LAYERS = re.compile(r"\{more\}| \(\{divisors\}\)")
"""What is said of `whole_layers` beside the values: those of the ends, and its divisors."""
_NAMED_VALUE = re.compile(r"\b(\w+) \{\1\}")
_VALUE = re.compile(r"\{(\w+)\}")
_PARTS = {"recompute_modules": RECOMPUTED, "cuda_graphs": GRAPHS, "offload_modules": OFFLOADED}


def layout_rule(
    name: str,
    source: str,
    *,
    allows: Callable[..., Any] | None = None,
    when: str = "",
    needs: str = "",
    excludes: str = "",
    message: str = "",
    fix: str = "",
    consequence: Consequence = "raised",
) -> Rule[LayoutRows]:
    """A rule on whole columns.

    Args:
        name: The rule's name.
        source: Megatron's own code, or why it is ours.
        allows: Which layouts are allowed, by parameters of the names of fields of the task and of
            columns; in place of `when`.
        when: What is refused, a condition (`autotune.base.terms`) of the same names and of those
            of `_CALCULATED`: one alone asks whether it is off its default, a comparison is with a
            number, another one or a knob's value, and `a~x` asks whether its parts have one.
        needs: A knob, a fact, or one of several that `|` joins, without which `when` is refused.
        excludes: A knob or a fact with which it is refused.
        message: Which values clash; `{tp}` stands for a value of the layout or of the task. What
            `needs` and `excludes` have to say follows from the names.
        fix: The nearest change that makes it legal.
        consequence: What Megatron does with it.
    """
    terms = when.split()
    if needs:
        terms.append(f"!{needs}")
        message, fix = _needs(when, needs)
    if excludes:
        terms.append(excludes)
        message, fix = _excludes(when, excludes)
    wanted = _names_in(terms) if allows is None else tuple(signature(allows).parameters)

    def answer(rows: LayoutRows) -> Truth:
        known = {**vars(rows.task), **rows.columns}
        if unknown := set(wanted) - known.keys():
            raise UnknownFactError(", ".join(sorted(unknown)))
        if allows is not None:
            allowed = allows(*(known[column] for column in wanted))
        else:
            allowed = ~reduce(np.logical_and, [holds(term, known) for term in terms])
        return np.broadcast_to(allowed, next(iter(rows.columns.values())).shape)

    def check(rows: LayoutRows) -> Finding | None:
        if answer(rows)[0]:
            return None
        facts: dict[str, Any] = {**vars(rows.task), **rows.row(0)}
        if "whole_layers" in when:
            whole = _number("", "whole_layers", facts)
            facts["more"] = ", and 2 more by ends_as_layers," * (whole != facts["n_layers"])
            facts["divisors"] = ", ".join(str(n) for n in range(1, whole + 1) if whole % n == 0)
        return Finding(message=message.format_map(facts), advice=fix.format_map(facts))

    reads = tuple(column for column in wanted if column not in LayoutTask.__dataclass_fields__)
    return Rule(
        name=name,
        check=check,
        source=source,
        consequence=consequence,
        says=_in_general(f"{message}. Fix: {fix}."),
        reads=reads,
        holds=answer,
    )


def _needs(terms: str, needed: str) -> tuple[str, str]:
    is_knob = needed.replace("=", ">").partition(">")[0] in KNOBS
    other = f"take {_in_words(needed)}, or " if is_knob else ""
    return f"{_subject(terms)}: needs {_in_words(needed)}", f"{other}do without {_chosen(terms)}"


def _excludes(terms: str, other: str) -> tuple[str, str]:
    more = "" if other in LayoutTask.__dataclass_fields__ else f", or without {_in_words(other)}"
    message = f"{_subject(terms)}: excludes {_in_words(other)}"
    return message, f"do without {_chosen(terms)}{more}"


_FACTS: Mapping[str, str] = table_beside(__file__, "facts_in_words.json")
"""What a layout or a task is that has a fact."""


def _subject(terms: str, *, has_values: bool = True) -> str:
    """All of some terms, for people; a module that is computed again is so by recompute."""
    words = [term for term in terms.split() if term != "recompute=selective"]
    if words == ["dispatcher"]:
        return "dispatcher"
    return " with ".join(_in_words(word, has_value=has_values) for word in reversed(words))


def _chosen(terms: str) -> str:
    facts = LayoutTask.__dataclass_fields__
    names = [term for term in terms.split() if term.partition(">")[0] not in facts]
    return _subject(" ".join(names), has_values=False)


def _in_words(tests: str, *, has_value: bool = False) -> str:
    """One of some tests, for people; `has_value`: with what a number is in place of its bound."""
    found = []
    for name, sign, value in tests_of(tests):
        if sign == "~":
            found.append(f"{value} in {name}")
        elif name in _FACTS and sign != "=":
            found.append(_FACTS[name])
        elif sign == ">" and has_value:
            found.append(f"{name} {{{name}}}")
        elif sign == ">":
            found.append(f"{'an' if name == 'ep' else 'a'} {name} above {value}")
        else:
            found.append(f"{name}={value}" if value else name)
    return " or ".join(found)


_CALCULATED: Mapping[str, Callable[..., Any]] = {
    "expert_tp": expert_tp,
    "rank_tokens": lambda seq_len, cp: seq_len // cp,
    "stage_share": lambda n_layers, pp: n_layers // pp,
    "whole_layers": lambda n_layers, ends_as_layers: n_layers + 2 * ends_as_layers,
    "chunk_layers": lambda whole_layers, pp, vp: whole_layers // (pp * vp),
    "most_chunks": lambda n_layers, ends_as_layers, vp: n_layers + 2 * ends_as_layers * (vp > 1),
}
"""Facts that follow from others, by the names of these: `whole_layers` has the embedding and the
loss where they count as layers, and of `most_chunks` each has a layer or one of the two."""


def _names_in(terms: Sequence[str]) -> tuple[str, ...]:
    known = {*KNOBS, "dp", "grad_accum", "recompute_layers", *LayoutTask.__dataclass_fields__}
    tests = (test for term in terms for test in tests_of(term))
    words = [word for test in tests for part in test for word in part.split("*")]
    for word in words:  # those of a fact that follows are looked at as well
        words += _parameters(word) if word in _CALCULATED else ()
    return tuple(dict.fromkeys(word for word in words if word in known))


def holds(term: str, known: Mapping[str, Any]) -> Any:
    """Whether a term holds of columns, or of one layout's values, and of facts of the task."""
    found = reduce(np.logical_or, [_is_so(*test, known) for test in tests_of(term)])
    return np.logical_not(found) if term.startswith("!") else found


def _is_so(name: str, sign: str, word: str, known: Mapping[str, Any]) -> Any:
    value = _number(name, name, known)
    if sign == "~":
        return has(word, _PARTS[name], value) if name in _PARTS else word in value
    return COMPARE[sign](value, _number(name, word, known)) if sign else np.not_equal(value, 0)


def _number(name: str, word: str, known: Mapping[str, Any]) -> Any:
    """The value of a name or a product, a number, or the place of a knob's value."""
    if word in known:
        return known[word]
    if "*" in word:
        return prod(_number(name, part, known) for part in word.split("*"))
    if word in _CALCULATED:
        return _CALCULATED[word](*(_number(name, other, known) for other in _parameters(word)))
    return int(word) if word.isdecimal() else KNOBS[name].choices.index(word)


@cache
def _parameters(calculated: str) -> tuple[str, ...]:
    return tuple(signature(_CALCULATED[calculated]).parameters)


def _in_general(text: str) -> str:
    """A message without a layout's values: `tp {tp}` is `tp`, `{tp} ranks` is `tp ranks`."""
    return _VALUE.sub(r"\1", _NAMED_VALUE.sub(r"\1", _LAYERS.sub("", text)))
