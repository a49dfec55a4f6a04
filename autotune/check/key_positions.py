"""Where the keys of a configuration stand in its file: line and column, from 1."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path as FilePath

from autotune.base.nested import leaves, path_of
from autotune.check.languages import language_of
from autotune.check.text_nodes import key_starts
from autotune.engines.deepspeed.ds_config_text import BYTE_ORDER_MARK
from autotune.engines.deepspeed.sources.reading import Syntax
from autotune.space.rule import Violation

Path = tuple[str, ...]

_HJSON_KEY = re.compile(r"""(?:^|[{,])[ \t]*(["']?([A-Za-z_]\w*)["']?)[ \t]*:""", re.MULTILINE)

_WORD = re.compile(r"[A-Za-z_][\w.]*")


@dataclass(frozen=True, kw_only=True)
class TextPlace:
    """A place in a text."""

    line: int = 1
    column: int = 1
    file: FilePath | None = None
    """The file; None: that of the configuration."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where every key of a file stands."""

    text: str
    starts: Mapping[Path, int]
    """Path of a key from the root of the file -> its offset in the text."""
    at: Path = ()
    """Where the configuration stands in the file: `Source.at`."""
    has_names_alone: bool = False
    """Whether a path in `starts` is the last name of a key alone."""

    def of(self, violation: Violation) -> TextPlace:
        """The place of the first key that a violation is about, or of the nearest section."""
        paths = list(_paths(violation))
        whole = (one[-1:] if self.has_names_alone else (*self.at, *one) for one in paths)
        beside = ((*self.at[:-1], *one) for one in paths if self.at)
        above = ((*self.at, *one[:n]) for one in paths for n in range(len(one) - 1, 0, -1))
        found = (self.starts[one] for one in (*whole, *beside, *above) if one in self.starts)
        return self._place(next(found, self.starts.get(self.at, 0)))

    def _place(self, offset: int) -> TextPlace:
        line = bisect_right(self._lines, offset)
        return TextPlace(line=line, column=offset - self._lines[line - 1] + 1)

    @cached_property
    def _lines(self) -> Sequence[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.text))]


def places_in(text: str, at: Path, syntax: Syntax) -> Places:
    """The keys of a file that was read without an error."""
    if syntax in ("json", "yaml"):
        bare = text.removeprefix(BYTE_ORDER_MARK)
        skipped, root = len(text) - len(bare), language_of(syntax).root(bare)
        starts = {path: start + skipped for path, start in key_starts(root)}
    else:
        found = _HJSON_KEY.finditer(text) if syntax == "hjson" else ()
        starts = {(match[2],): match.start(1) for match in reversed(list(found))}
        # Hjson's own reader tells no places: of a name that stands twice, the first one is told.
        return Places(text=text, starts=starts, at=at, has_names_alone=True)
    return Places(text=text, starts=starts, at=at)


def _paths(violation: Violation) -> Iterator[Path]:
    """Paths of keys that a violation names, the most certain first."""
    yield from (path_of(key) for key in violation.at)
    for changes in (violation.changes, *(choice.changes for choice in violation.choices)):
        yield from (path for path, _ in leaves(changes) if path)
    for word in _WORD.findall(violation.message):
        yield tuple(word.strip(".").split("."))
