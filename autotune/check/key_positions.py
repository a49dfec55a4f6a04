"""Where the keys of a configuration stand in its file: line and column, from 1."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from autotune.base.nested import leaves, path_of
from autotune.check import json_text, yaml_text
from autotune.check.text_nodes import key_starts
from autotune.engines.deepspeed.ds_config_text import BYTE_ORDER_MARK
from autotune.engines.deepspeed.sources.reading import Syntax
from autotune.space.rule import Violation

Path = tuple[str, ...]

_HJSON = re.compile(
    r"""(?:\#|//)[^\n]*|/\*.*?\*/       # a comment
    |(?P<key>"[^"\n]*"|'[^'\n]*'|(?<![^\s:{}\[\],"'\#/])[^\s:{}\[\],"'\#/]++)[ \t]*+:
     (?:[ \t]*[^\s\d{}\[\]"',\#/tfn-][^\n]*)?  # a text without quotes ends with its line
    |"(?:\\.|[^"\\\n])*"             # a text
    |(?P<open>\{)|(?P<close>\})""",
    re.VERBOSE | re.DOTALL,
)

_WORD = re.compile(r"[A-Za-z_][\w.]*")


@dataclass(frozen=True, kw_only=True)
class TextPlace:
    """A place in a text."""

    line: int = 1
    column: int = 1


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where every key of a file stands."""

    text: str
    starts: Mapping[Path, int]
    """Path of a key from the root of the file -> its offset in the text."""
    at: Path = ()
    """Where the configuration stands in the file: `Source.at`."""

    def of(self, violation: Violation) -> TextPlace:
        """The place of the first key that a violation is about, or of the nearest section."""
        for path in _paths(violation):
            if (offset := self.starts.get((*self.at, *path))) is not None:
                return self._place(offset)
        for path in _paths(violation) if self.at else ():  # what stands beside the section
            if (offset := self.starts.get((*self.at[:-1], *path))) is not None:
                return self._place(offset)
        for path in _paths(violation):
            for length in range(len(path) - 1, 0, -1):
                if (offset := self.starts.get((*self.at, *path[:length]))) is not None:
                    return self._place(offset)
        return self._place(self.starts.get(self.at, 0))

    def _place(self, offset: int) -> TextPlace:
        line = bisect_right(self._lines, offset)
        return TextPlace(line=line, column=offset - self._lines[line - 1] + 1)

    @cached_property
    def _lines(self) -> Sequence[int]:
        """Where each line begins."""
        return [0, *(match.end() for match in re.finditer("\n", self.text))]


def places_in(text: str, at: Path, syntax: Syntax) -> Places:
    """The keys of a file that was read without an error."""
    if syntax in ("json", "yaml"):
        bare = text.removeprefix(BYTE_ORDER_MARK)
        root = json_text.root(bare) if syntax == "json" else yaml_text.root(bare)
        skipped = len(text) - len(bare)
        starts = {path: start + skipped for path, start in key_starts(root)}
    else:
        starts = {} if syntax == "shell" else _hjson_starts(text)
    return Places(text=text, starts=starts, at=at)


def _hjson_starts(text: str) -> dict[Path, int]:
    """The keys by their braces: Hjson's own reader tells no places."""
    starts: dict[Path, int] = {}
    path: list[str] = []  # of the root, if it has braces, an empty name
    last = ""
    for match in _HJSON.finditer(text):
        if match["key"] is not None:
            last = match["key"].strip("\"'")
            starts.setdefault((*filter(None, path), last), match.start("key"))
        elif match["open"] is not None:
            path.append(last)
        elif match["close"] is not None and path:
            path.pop()
    return starts


def _paths(violation: Violation) -> Iterator[Path]:
    """Paths of keys that a violation names, the most certain first."""
    yield from (path_of(key) for key in violation.at)
    for changes in (violation.changes, *(choice.changes for choice in violation.choices)):
        yield from (path for path, _ in leaves(changes) if path)
    for word in _WORD.findall(violation.message):
        yield tuple(word.strip(".").split("."))
