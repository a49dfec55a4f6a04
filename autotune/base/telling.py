"""Facts in words: a template of `templates/report/text/` writes them, as names with their texts.

Such a template begins each fact with `{{ fact("name") }}`; its text may go over several lines. Of
a table it says `{{ table("name", ">a", "*b") }}`, then `{{ row(...) }}` for each row, whose cells
are encoded. `{{ line("bold") }}` begins a line without a name.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.base.templates import Encoded, Templates

Fact = tuple[str, str]
"""A name, and a text about it."""
_BEGIN, _END = "\x1e", "\x1f"
"""Around a name: no value holds them, since filters spell what cannot be seen."""
_LINE, _TABLE = "\x1c", "\x1d"
"""Begin the name of what is no fact."""
APART = "apart"
_LINE_END = re.compile(r"\s*\n\s*")


class Cell(Encoded):
    """A cell of a table: its text, a style, and notes that stand below it."""

    style: str = ""
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line without a name; of the style `APART` it only parts two groups of facts."""

    text: str
    style: str


@dataclass(frozen=True, kw_only=True)
class Cells:
    """A table."""

    columns: Sequence[str]
    marks: Sequence[str]
    """Of each column: `>` puts its cells to the right, `*` lets them wrap, `=` does so for
    settings; an empty string does neither. Columns on the right hold numbers."""
    rows: list[Sequence[str]] = field(default_factory=list)
    """An empty one begins a section."""

    @property
    def numbers(self) -> list[int]:
        """Places of the columns of numbers."""
        return [i for i, mark in enumerate(self.marks) if ">" in mark]


Part = Fact | Line | Cells


def tell(template: str, values: Mapping[str, Any]) -> list[Fact]:
    """The facts of a template, by its name.

    Raises:
        RenderError: It does not render.
    """
    return [part for part in tell_all(template, values) if isinstance(part, tuple)]


def tell_all(template: str, values: Mapping[str, Any]) -> list[Part]:
    """The facts, lines and tables of a template, in their order; raises as `tell`."""
    return [part for _, part in _told(template, values)]


def tell_tables(template: str, values: Mapping[str, Any]) -> dict[str, Cells]:
    """The tables of a template, by their names; raises as `tell`."""
    return {name: part for name, part in _told(template, values) if isinstance(part, Cells)}


def _told(template: str, values: Mapping[str, Any]) -> list[tuple[str, Part]]:
    tables: list[Cells] = []

    def table(name: str, *columns: str) -> Encoded:
        names = [column.lstrip(">*=") for column in columns]
        marks = [
            column[: len(column) - len(name)] for column, name in zip(columns, names, strict=True)
        ]
        tables.append(Cells(columns=names, marks=marks))
        return _begin(f"{_TABLE}{len(tables) - 1}{_TABLE}{name}")

    def row(*cells: str) -> Encoded:
        if bare := [cell for cell in cells if not isinstance(cell, Encoded)]:
            raise TypeError(f"the cell {bare[0]!r} goes through no filter")
        tables[-1].rows.append(cells)
        return Encoded("")

    words = {
        "fact": _begin,
        "line": _line,
        "table": table,
        "row": row,
        "cell": _cell,
        "right": _right,
    }
    text = Templates().text(f"report/text/{template}.j2", {**values, **words})
    found: list[tuple[str, Part]] = []
    for block in text.split(_BEGIN)[1:]:
        name, _, rest = block.partition(_END)
        words_of = _LINE_END.sub(" ", rest.strip())
        if name.startswith(_TABLE):
            _, number, named = name.split(_TABLE)
            found.append((named, tables[int(number)]))
        elif name.startswith(_LINE):
            found.append(("", Line(text=words_of, style=name[1:])))
        else:
            found.append((name, (name, words_of)))
    return found


def _begin(name: str) -> Encoded:
    return Encoded(f"{_BEGIN}{name}{_END}")


def _right(columns: Sequence[str]) -> list[str]:
    return [f">{name}" for name in columns]


def _line(style: str = "") -> Encoded:
    return _begin(_LINE + style)


def _cell(text: str, *, style: str = "", notes: Sequence[str] = ()) -> Cell:
    made = Cell(text)
    made.style, made.notes = style, notes
    return made
