"""Rules about files and their readers: `file_rules.json` has the words, callers the facts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.base.data import table_beside
from autotune.space.rule import Choice, Consequence, Level, Moves, Patch, Violation


@dataclass(frozen=True, kw_only=True)
class FileRule:
    """Description of a rule that is not about what DeepSpeed reads."""

    says: str
    level: Level
    source: str
    """Source of the rule in the consumer's code."""
    message: str = ""
    """What is said of a file, with the names of facts in braces."""
    fix: str = ""
    consequence: Consequence = "raised"
    when: str = ""
    """Condition (`space.rule.holds`) of a rule about Megatron-DeepSpeed; empty: code asks."""
    at: Sequence[str] = ()
    """Keys that such a rule is about."""


FILE_RULES: Mapping[str, FileRule] = {
    name: FileRule(**row) for name, row in table_beside(__file__, "file_rules.json").items()
}
"""Rules about the file itself, and about consumers other than DeepSpeed."""


def violation_of(
    name: str,
    /,
    *at: str,
    changes: Patch | None = None,
    moves: Moves | None = None,
    choices: Sequence[Patch] = (),
    consequence: Consequence | None = None,
    is_note: bool | None = None,
    **facts: Any,
) -> Violation:
    """What a rule says of a file.

    Args:
        name: The rule.
        at: Keys that it is about.
        changes: The fix.
        moves: Which of the changes only bring a key to another place.
        choices: Further ways out.
        consequence: What the reader does with this file, where that is not the rule's usual one.
        is_note: Whether it is worth a note alone, where that is not as usual.
        facts: What is put in for the names in braces.
    """
    rule = FILE_RULES[name]
    consequence = consequence or rule.consequence
    is_usual = rule.level == "note" and consequence != "converted"
    return Violation(
        rule=name,
        message=rule.message.format_map(facts),
        fix=rule.fix.format_map(facts),
        changes=changes or {},
        moves=moves or {},
        at=at,
        choices=tuple(Choice(changes=one) for one in choices),
        consequence=consequence,
        is_note=is_usual if is_note is None else is_note,
    )
