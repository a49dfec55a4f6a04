"""What an edit knows of a text: where its mappings, their keys and their values stand."""

from typing import NamedTuple


class TooOddError(Exception):
    """The text is written in a way that is not edited."""


class TextNode(NamedTuple):
    """A value in a text."""

    start: int
    end: int
    """One past its last character."""
    members: "tuple[Member, ...] | None" = None
    """Members of a mapping; None for anything else."""
    indent: str | None = None
    """What stands before the keys of a mapping without braces; None: it has them."""
    is_fixed: bool = False
    """Whether nothing is put in its place: it is written over several lines, or elsewhere."""


class Member(NamedTuple):
    """A key and its value in a text."""

    name: str
    start: int
    """Offset of the key."""
    end: int
    """One past it."""
    value: TextNode
