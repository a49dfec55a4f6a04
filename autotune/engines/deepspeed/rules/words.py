"""Findings of the rules in code: `words.json` has their words, the rules the facts."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from autotune.base.data import table_beside
from autotune.base.terms import filled
from autotune.space.rule import Choice, Consequence, Finding, Moves, Patch

_WORDS: Mapping[str, Mapping[str, Any]] = table_beside(__file__, "words.json")


def finding(
    row: str,
    /,
    *,
    changes: Patch | None = None,
    moves: Moves | None = None,
    consequence: Consequence | None = None,
    choices: tuple[Choice, ...] = (),
    **facts: Any,
) -> Finding:
    """What a row says with the facts in its braces, and with further entries of a `Finding`."""
    found = finding_of(_WORDS[row], facts.__getitem__)
    given = {"changes": changes, "moves": moves, "consequence": consequence}
    others: dict[str, Any] = {name: one for name, one in given.items() if one is not None}
    return replace(found, choices=(*choices, *found.choices), **others)


def finding_of(
    entries: Mapping[str, Any],
    fact: Callable[[str], Any],
    note: Callable[[str], str] = lambda _: "",
) -> Finding:
    """A finding of entries of a row, as of `filled`."""
    put = {name: filled(one, fact, note) for name, one in entries.items()}
    choices = tuple(Choice(**choice) for choice in put.pop("choices", ()))
    return Finding(choices=choices, **put)
