"""What an edit knows of a text: where its mappings, their keys and their values stand."""

from collections.abc import Iterator
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
    items: "tuple[TextNode, ...]" = ()
    """Items of a list, as far as they hold mappings."""


class Member(NamedTuple):
    """A key and its value in a text."""

    name: str
    start: int
    """Offset of the key."""
    end: int
    """One past it."""
    value: TextNode


def key_starts(
    node: TextNode, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], int]]:
    """Path of every key below a node and where it begins; of a key twice the last comes last.

    A place in a list is a key such as `[0]`.
    """
    for member in node.members or ():
        here = (*path, member.name)
        yield here, member.start
        yield from key_starts(member.value, here)
    for index, item in enumerate(node.items):
        here = (*path, f"[{index}]")
        yield here, item.start
        yield from key_starts(item, here)
