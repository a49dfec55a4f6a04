"""Rules about files and their readers: `file_rules.json` has words and fixes, callers the facts.

All but `says`, `level` and `source` of a row may hold facts in braces (`autotune.base.terms`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from autotune.base.data import table_beside
from autotune.base.nested import nested, path_of
from autotune.base.terms import filled
from autotune.space.rule import (
    Choice,
    Consequence,
    Level,
    Moves,
    Patch,
    UnknownFactError,
    Violation,
    holds,
)


@dataclass(frozen=True, kw_only=True)
class FileRule:
    """Description of a rule that is not about what DeepSpeed reads."""

    says: str
    level: Level
    source: str
    """Source of the rule in the consumer's code."""
    message: str = ""
    """What is said of a file."""
    fix: str = ""
    consequence: Consequence = "raised"
    of: str = ""
    """Reader whose files `when` is asked of; empty: code asks."""
    when: str = ""
    """Condition (`space.rule.holds`)."""
    at: Sequence[str] = ()
    """Keys that it is about."""
    changes: Patch = field(default_factory=dict)
    """The fix: dotted key -> value."""
    choices: Sequence[Patch] = ()
    """Further ways out, in the same form."""


FILE_RULES: Mapping[str, FileRule] = {
    name: FileRule(**row) for name, row in table_beside(__file__, "file_rules.json").items()
}
"""Rules about the file itself, and about consumers other than DeepSpeed."""


def violations_of(reader: str, value_of: Callable[[str], Any]) -> Iterator[Violation]:
    """What the rules with a condition say of a file of a reader; `value_of` as of `holds`."""
    for name, row in FILE_RULES.items():
        with suppress(UnknownFactError):
            if row.of == reader and holds(row.when, value_of):
                yield _violation(name, value_of)


def violation_of(
    name: str,
    /,
    *at: str,
    changes: Patch | None = None,
    moves: Moves | None = None,
    consequence: Consequence | None = None,
    is_note: bool | None = None,
    **facts: Any,
) -> Violation:
    """What a rule says of a file.

    Args:
        name: The rule.
        at: Keys that it is about, where its row does not tell.
        changes: The fix, where its row does not tell.
        moves: Which of the changes only bring a key to another place.
        consequence: What the reader does with this file, where that is not the rule's usual one.
        is_note: Whether it is worth a note alone, where that is not as usual.
        facts: What is put in for the names in braces.
    """
    found = _violation(name, facts.__getitem__, consequence)
    given: dict[str, Any] = {"at": at, "changes": changes, "moves": moves, "is_note": is_note}
    return replace(
        found, **{one: value for one, value in given.items() if value not in (None, ())}
    )


def _violation(
    name: str, fact: Callable[[str], Any], consequence: Consequence | None = None
) -> Violation:
    rule, put = FILE_RULES[name], partial(filled, fact=fact)
    consequence = consequence or rule.consequence
    return Violation(
        rule=name,
        message=put(rule.message),
        fix=put(rule.fix),
        changes=_as_patch(put(rule.changes)),
        at=tuple(map(put, rule.at)),
        choices=tuple(Choice(changes=_as_patch(put(one))) for one in rule.choices),
        consequence=consequence,
        is_note=rule.level == "note" and consequence != "converted",
    )


def _as_patch(keys: Mapping[str, Any]) -> Patch:
    return nested((path_of(key), value) for key, value in keys.items())
