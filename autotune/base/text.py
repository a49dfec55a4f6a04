r"""Text of others made safe for where it goes: a terminal, Markdown, a cell of CSV.

Device names, evidence, file names and logs may hold anything. What steers a terminal, turns the
direction of reading or cannot be seen is shown as its escape, such as `\x1b`; nothing is dropped,
so that nothing can hide. HTML is escaped by the templates (`Templates.text`), JSON by itself.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # most who need a safe line need no table
    import pandas as pd

Say = Callable[[str], None]
Ask = Callable[[str], bool]
"""What tells the user a line; what asks the user, who says yes or no."""
MOST_NAMED = 20
"""Most things that one message names."""
LONGEST_NAMED = 200
"""Most characters of one thing that a message shows."""

_LONGEST_MESSAGE = 8_000
"""Characters of one message: three screens."""

_LINKED = re.compile(r"\b(?:https?|ftp|mailto|xmpp):|\bwww\.", re.IGNORECASE)
"""What GitHub's Markdown makes a link of by itself."""
_AFTER_BREAK = re.compile(r"([;\t\r\n][ ]*)(?=[=+\-@\uff1d\uff0b\uff0d\uff20])")
"""A formula behind what some countries' spreadsheets take for the end of a cell."""
_FORMULA = re.compile(r"[\s\x00]*[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?(?:inf|nan)", re.IGNORECASE)
_UNSEEN = "\u115f\u1160\u17b4\u17b5\u3164\uffa0\u2800\u034f"
"""Letters and marks by their category that draw nothing."""


def line_of(text: str, at: int) -> int:
    """Number of the line, from 1 on, on which an offset of a text lies."""
    return text.count("\n", 0, at) + 1


def lines(text: str) -> str:
    """As `visible`, of a text that may have several lines and tabs."""
    return visible(text, whole="\n\t")


def visible(text: str, *, whole: str = "") -> str:
    """A text on one line, with whatever acts or cannot be seen escaped, but for the `whole`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c if c in whole or _is_seen(c) else c.encode("unicode_escape").decode("ascii")
        for c in text
    )


def texts_on_one_line(data: Any) -> Any:
    """A JSON value with every text made safe by `visible`, keys included."""
    if isinstance(data, str):
        return visible(data)
    if isinstance(data, Mapping):
        return {texts_on_one_line(key): texts_on_one_line(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [texts_on_one_line(item) for item in data]
    return data


def markdown(text: str) -> str:
    """As text in Markdown: nothing in it is taken for markup, and it stays on its line."""
    line = visible(" ".join(text.split()))
    line = re.sub(r"([\\`*_\[\]<>|#~&$])", r"\\\1", line)
    return _LINKED.sub(lambda match: match[0][:-1] + "\\" + match[0][-1], line)


def markdown_code(text: str) -> str:
    """As code in a cell of Markdown: within more backticks than it holds itself."""
    line = visible(" ".join(text.split())).replace("|", "\\|")
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    gap = " " if longest else ""
    return f"{fence}{gap}{line}{gap}{fence}"


def cell(value: Any) -> Any:
    """A cell of CSV: a text that a spreadsheet would take for a formula gets a quote before it.

    Numbers stay numbers, below 0 as well.
    """
    if not isinstance(value, str):
        return value
    safe = _AFTER_BREAK.sub(r"\1'", lines(value))
    is_formula = _FORMULA.match(value) is not None and not _NUMBER.fullmatch(value)
    return f"'{safe}" if is_formula else safe


def csv_text(frame: "pd.DataFrame") -> str:
    """A table as CSV, every cell and header through `cell`."""
    safe = frame.copy()
    for index in range(len(frame.columns)):
        if any(isinstance(value, str) for value in frame.iloc[:, index]):
            safe.isetitem(index, list(map(cell, frame.iloc[:, index].astype(object))))
    safe.columns = [cell(str(column)) for column in frame.columns]
    return str(safe.to_csv(index=False, lineterminator="\n"))


def named(parts: Iterable[str], joint: str = ", ", *, most: int = MOST_NAMED) -> str:
    """Parts in one line: as many as people read, and how many more there are."""
    every = parts if isinstance(parts, Sequence) else list(parts)
    more = len(every) - most
    return joint.join((*map(shortened, every[:most]), *([f"{more:,} more"] if more > 0 else [])))


def bounded(text: str) -> str:
    """A message, cut to a length that people read."""
    if len(text) <= _LONGEST_MESSAGE:
        return text
    return f"{text[:_LONGEST_MESSAGE]}... ({len(text):,} characters)"


def shortened(text: str) -> str:
    """The beginning of a text, and that there was more of it."""
    if len(text) <= LONGEST_NAMED:
        return text
    return f"{text[:LONGEST_NAMED]}... ({len(text):,} characters)"


def _is_seen(character: str) -> bool:
    if " " <= character <= "~":
        return True
    if character in _UNSEEN or "\ufe00" <= character <= "\ufe0f":
        return False
    # Control, format (bidirectional, zero width, tags), surrogates, private, unassigned;
    # separators but the space.
    return unicodedata.category(character)[0] not in "CZ"


def texts_of(value: Any) -> Iterator[str]:
    """All texts in what JSON may hold, keys aside."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from texts_of(inner)
