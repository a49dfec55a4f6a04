"""How a configuration comes back into its file: as JSON or YAML, in the words of who reads it."""

import difflib
from collections.abc import Mapping
from typing import Any

from autotune.base.nested import leaves, nested
from autotune.base.secrecy import scrubbed_text
from autotune.check.changes import changes_between
from autotune.check.edit import edit
from autotune.engines.deepspeed.rules.base import changed
from autotune.engines.deepspeed.sources.accelerate import FIELDS, SECTION
from autotune.engines.deepspeed.sources.reading import Source, parsed
from autotune.space.rule import Moves, Patch, in_words


def not_edited(source: Source) -> str:
    """Why a file is never written into; empty where it can be."""
    if source.syntax == "shell":
        return "the flags of its launch line make the configuration"
    if source.syntax == "hjson" and edit(source.text, {}, source.syntax) is None:
        return "it is Hjson; change it by hand as the findings say, or save it as JSON first"
    if source.document:
        return f"it is {source.document} of the file"
    if "[" in "".join(source.at):
        return "the section stands in a list"
    if is_accelerates(source):
        return ""
    if source.is_made:
        return f"{source.reader} makes the configuration from keys of its own"
    return "" if _section(source) is not None else "the text holds the section as a text"


def text_diff(name: str, before: str, after: str) -> str:
    """Two texts as a unified diff, secrets masked; empty where they are the same.

    Args:
        name: The file's.
        before: Its text.
        after: What it becomes.
    """
    old, new = (scrubbed_text(one).splitlines(keepends=True) for one in (before, after))
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(old, new, fromfile=name, tofile=name)
    )


def text_after(source: Source, config: Mapping[str, Any], moves: Moves) -> str | None:
    """The text of the file with another configuration in it, to which some keys have moved.

    None where its own words do not say that, or where a comment would be lost.
    """
    if not_edited(source):
        return None
    changes: Patch | None = changes_between(source.config, config)
    if is_accelerates(source):
        changes = _accelerates(source, source.config, config)
    if changes is None:
        return None
    changes = nested([(source.at, changes)]) if source.at else changes
    moves = {(*source.at, *old): (*source.at, *new) for old, new in moves.items()}
    return edit(
        source.text, changes, source.syntax, moves=moves, reads_exponents=source.reads_exponents
    )


def words_for(source: Source, config: Mapping[str, Any], changes: Patch, moves: Moves) -> str:
    """Changes as an instruction for the file; empty where that has no words for them."""
    if not is_accelerates(source):
        return in_words(changes, moves)
    return in_words(_accelerates(source, config, changed(config, changes)) or {})


def is_accelerates(source: Source) -> bool:
    """Whether the configuration is written in accelerate's own words, as a section of its YAML."""
    return source.at == (SECTION,)


def _section(source: Source) -> Mapping[str, Any] | None:
    """The section as it stands in the file; None: it is no mapping there."""
    found: Any = parsed(source.text, source.path, reads_exponents=source.reads_exponents).data
    for name in source.at:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else None


def _accelerates(
    source: Source, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Patch | None:
    """Changes between two configurations in accelerate's words; None where it lacks a word."""
    written = _section(source) or {}
    patch: dict[str, Any] = {}
    for path, value in leaves(changes_between(before, after)):
        if value == {}:
            continue
        at = ".".join(path)
        names = [name for key, name in FIELDS.items() if f"{key}.".startswith(f"{at}.")]
        if not names or (value is not None and at not in FIELDS):
            return None
        is_needed = value is not None  # what is not written needs not go
        patch |= {name: value for name in names if is_needed or name in written}
    return patch
