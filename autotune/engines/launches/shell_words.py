"""What stands in a shell file: words with their places, values, tests and sums."""

import ast
import contextlib
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import NamedTuple

NAME = r"[A-Za-z_]\w*"
ASSIGNS = re.compile(rf"({NAME})(\+?)=")
UNKNOWN = re.compile(r"[$`]")
PASSED_ON = re.compile(r"\$(?:[@*]|\{[@*]\})")
"""All words that a file is started with."""
_ELEMENT = re.compile(rf"({NAME})\[[^]]*\]\+?=")
_MAY_BE_ELEMENT = re.compile(rf"({NAME})(?:\[.*)?")
_ALTERED = re.compile(
    rf"(?:\+\+|--)\s*+({NAME})|({NAME})\s*+(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))"
)
DECLARES = ("export", "declare", "local", "readonly", "typeset")
OPTION_READERS = ("shift", "getopts")
"""Commands that take the next of the words that a file is given."""
_TOUCHES = ("read", "mapfile", "readarray", "getopts", "unset")
_COMPARES: Mapping[str, Callable[[int, int], bool]] = {
    f"-{name}": getattr(operator, name) for name in ("eq", "ne", "gt", "ge", "lt", "le")
}
_SUMS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
    **{ast.Div: lambda a, b: int(a / b), ast.Mod: lambda a, b: a - b * int(a / b)},
}
"""Operations of a sum; a shell rounds towards 0."""

Chars = list[tuple[str, int]]
"""Characters, each with its place in the file; -1: in one that it sources."""


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word of a command."""

    text: str
    """As the command gets it, with the variables that the file tells."""
    start: int
    """Where it is written: in the command, or where its variable is set."""
    end: int = -1
    """Its last character; -1: that stands in no file."""


class Value(NamedTuple):
    """What a variable is set to."""

    items: list[Chars] | None = None
    """None: only the shell knows it."""
    is_array: bool = False
    why: str | None = None
    """Why only the shell knows it, or another may stand there; empty: it comes from a default, or
    a file was not read since; None: it is certain."""

    @property
    def texts(self) -> list[str] | None:
        """The items, without their places."""
        return None if self.items is None else [plain(item) for item in self.items]

    def differing(self, may_differ: bool) -> "Value":
        """The same value, in whose place another may stand."""
        return self._replace(why="") if may_differ and self.why is None else self


class Field(NamedTuple):
    """What stands between two blanks, and the words that it is split into."""

    raw: str
    items: list[Chars]
    place: int
    is_array: bool = False
    may_differ: bool = False
    """Whether one of its values may be another."""
    pattern: str = ""
    """Why the shell may put in other words; empty: it does not."""

    @property
    def chars(self) -> Chars:
        return [char for item in self.items for char in item]

    @property
    def value(self) -> Chars:
        """Value of an assignment, behind its sign."""
        chars = self.chars
        return chars if self.is_array else chars[plain(chars).index("=") + 1 :]

    @property
    def text(self) -> str:
        return plain(self.chars)

    def word(self, chars: Chars) -> Word:
        start, end = (chars[0][1], chars[-1][1]) if chars else (-1, -1)
        return Word(text=plain(chars), start=start if start >= 0 else self.place, end=end)


def touched_by(words: Sequence[str]) -> list[str]:
    """Variables that a command sets, or takes away, in a way that is not followed."""
    words = [*dropwhile(ASSIGNS.match, words), ""]
    if _ELEMENT.match(words[0]):
        return [element[1] for element in map(_ELEMENT.match, words) if element]
    if words[0] == "let" or words[0].startswith("(("):
        return [before or behind for before, behind in _ALTERED.findall(" ".join(words))]
    if words[:2] == ["set", "--"]:
        return ["@"]
    if words[0] == "printf":
        return words[2:3] if words[1] == "-v" else []
    named = (_MAY_BE_ELEMENT.fullmatch(one) for one in words[1:] if words[0] in _TOUCHES)
    return [one[1] for one in named if one]


def truth_of(fields: Sequence[Field]) -> bool | None:
    """Whether `[ ... ]` holds; None: it asks something else than about words and numbers."""
    words = [plain(chars) for one in fields[1:-1] for chars in one.items]
    if fields[0].raw == "[[":  # where nothing is split
        words = [one.text for one in fields[1:-1]]
    if fields[-1].raw not in ("]", "]]") or any(map(UNKNOWN.search, words)):
        return None
    if len(words) == 2 and words[0] in ("-n", "-z"):
        return bool(words[1]) is (words[0] == "-n")
    if len(words) != 3:
        return None
    left, sign, right = words
    if sign in ("=", "==", "!=") and not set("*?[") & set(right):
        return (left == right) is (sign != "!=")
    if sign in _COMPARES and re.fullmatch(r"-?\d+ -?\d+", f"{left} {right}"):
        return _COMPARES[sign](int(left), int(right))
    return None


def sum_of(text: str) -> int | None:
    """The number that `$((...))` is; None: it is not known."""
    if len(text) > 300 or re.fullmatch(r"[\d\s()+*/%-]+", text) is None:
        return None
    with contextlib.suppress(SyntaxError, ZeroDivisionError, OverflowError, KeyError, ValueError):
        return _number(ast.parse(text.strip(), mode="eval").body)
    return None


def _number(node: ast.AST) -> int:
    """The value of a node of a sum; a KeyError or ValueError where it is of another kind."""
    if isinstance(node, ast.UnaryOp):
        number = _number(node.operand)
        return -number if isinstance(node.op, ast.USub) else number
    if isinstance(node, ast.BinOp):
        return _SUMS[type(node.op)](_number(node.left), _number(node.right))
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ValueError(node)


def plain(chars: Chars) -> str:
    """The text of characters, without their places."""
    return "".join([char for char, _ in chars])


def unplaced(text: str) -> Chars:
    """The characters of a text that stands in no file."""
    return [(char, -1) for char in text]


def joined(values: Sequence[Chars]) -> list[Chars]:
    """Values as one, with a blank between them: an array in a string."""
    whole = [char for value in values for char in (*unplaced(" "), *value)]
    return [whole[1:]] if values else []


def split(parts: Sequence[Chars], *, joins: bool) -> Iterator[Chars]:
    """Values without quotes, split at their blanks; the first joins what stands before it."""
    for number, part in enumerate(parts):
        words: list[Chars] = [[]]
        for char in part:
            if char[0] in " \t\r\n":
                words.append([])
            else:
                words[-1].append(char)
        # A backslash before a line's end is no word of its own.
        joined_at = 0 if number == 0 and joins else -1
        yield from (
            word
            for at, word in enumerate(words)
            if (word and plain(word) != "\\") or at == joined_at
        )
