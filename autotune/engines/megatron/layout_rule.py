"""How a rule of layouts is made: a condition on whole columns, and what it says of one layout."""

import re
from collections.abc import Callable, Mapping
from functools import reduce
from inspect import Parameter, Signature, signature
from typing import Any

import numpy as np

from autotune.engines.megatron.choices import GRAPHS, OFFLOADED, RECOMPUTED, has
from autotune.engines.megatron.knobs import KNOBS
from autotune.engines.megatron.layout_task import LayoutRows, LayoutTask, Truth
from autotune.space.rule import Consequence, Finding, Rule, UnknownFactError

CONFIG = "megatron/core/transformer/transformer_config.py, __post_init__"
ARGUMENTS = "megatron/training/arguments.py, validate_args"
_NAMED_VALUE = re.compile(r"\b(\w+) \{\1\}")
_VALUE = re.compile(r"\{(\w+)\}")
_TEST = re.compile(r"(\w+)(?:(!=|>=|=|>|~)(\w+))?")
_PARTS = {"recompute_modules": RECOMPUTED, "cuda_graphs": GRAPHS, "offload_modules": OFFLOADED}


def layout_rule(
    name: str,
    condition: str | Callable[..., Any],
    message: str,
    fix: str,
    source: str,
    *,
    consequence: Consequence = "raised",
) -> Rule[LayoutRows]:
    """A rule on whole columns.

    Args:
        name: The rule's name.
        condition: What is refused, in terms that all have to hold, of fields of the task and of
            columns: `a` asks whether one is off its default, `a=x`, `a!=x`, `a>x` and `a>=x`
            compare it with a number, another one or a knob's value, `a~x` whether its parts have
            one; `a|b` holds where one does, and `!a|b` where none does. Else a function that says
            which layouts are allowed, by parameters of these names.
        message: Which values clash; `{tp}` stands for a value of the layout or of the task.
        fix: The nearest change that makes it legal.
        source: Megatron's own code, or why it is ours.
        consequence: What Megatron does with it.
    """
    if isinstance(condition, str):
        terms = condition.split()
        wanted = _names_in(condition)
    else:
        wanted = tuple(signature(condition).parameters)

    def answer(rows: LayoutRows) -> Truth:
        known = {**vars(rows.task), **rows.columns}
        if unknown := set(wanted) - known.keys():
            raise UnknownFactError(", ".join(sorted(unknown)))
        if not isinstance(condition, str):
            found: Truth = condition(*(known[column] for column in wanted))
            return found
        refused = reduce(np.logical_and, [_holds(term, known) for term in terms])
        return np.broadcast_to(~refused, next(iter(rows.columns.values())).shape)

    def check(rows: LayoutRows) -> Finding | None:
        if answer(rows)[0]:
            return None
        facts = {**vars(rows.task), **rows.row(0)}
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


def _names_in(terms: str) -> tuple[str, ...]:
    """The columns and facts that terms ask for."""
    known = {*KNOBS, "dp", "grad_accum", "recompute_layers", *LayoutTask.__dataclass_fields__}
    words = (word for test in _TEST.findall(terms) for word in (test[0], test[2]))
    return tuple(dict.fromkeys(word for word in words if word in known))


def _holds(term: str, known: Mapping[str, Any]) -> Any:
    tests = [_is_so(test, known) for test in term.removeprefix("!").split("|")]
    found = reduce(np.logical_or, tests)
    return np.logical_not(found) if term.startswith("!") else found


def _is_so(test: str, known: Mapping[str, Any]) -> Any:
    found = _TEST.fullmatch(test)
    assert found is not None, f"{test} is no test"
    name, sign, word = found.groups()
    value = known[name]
    if sign == "~":
        return has(word, _PARTS[name], value) if name in _PARTS else word in value
    if sign is None:
        return np.not_equal(value, 0)
    compare = {"=": np.equal, "!=": np.not_equal, ">": np.greater, ">=": np.greater_equal}[sign]
    return compare(value, _number(name, word, known))


def _number(name: str, word: str, known: Mapping[str, Any]) -> Any:
    """What a value is compared with."""
    if word in known:
        return known[word]
    return int(word) if word.isdecimal() else KNOBS[name].choices.index(word)


def _in_general(text: str) -> str:
    """A message without a layout's values: `tp {tp}` is `tp`, `{tp} ranks` is `tp ranks`."""
    return _VALUE.sub(r"\1", _NAMED_VALUE.sub(r"\1", text))


def with_parameters(holds: Callable[..., Truth], *names: str) -> Callable[..., Truth]:
    """A function under other names of its parameters, by which a rule finds its values."""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    named = [Parameter(name, kind) for name in names]
    holds.__signature__ = Signature(named)  # type: ignore[attr-defined]
    return holds
