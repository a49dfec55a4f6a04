"""Facts, lines and tables that a template of `templates/report/text/` tells, in their order.

Facts are those of `autotune.base.templates`. `{{ table("name", ">a", "*b") }}` begins a table,
and `{{ row(...) }}` is a row of it, whose cells are encoded. `{{ line("bold") }}` begins a line
without a name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.base.templates import Encoded, Fact, begin, tell

APART = "apart"
"""Style of a line that only parts two groups of facts."""
_LINE, _TABLE = "\x1c", "\x1d"
"""Begin the name of what is no fact."""


class Cell(Encoded):
    """A cell of a table: its text, a style, and notes that stand below it."""

    style: str = ""
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line without a name."""

    text: str
    style: str


@dataclass(frozen=True, kw_only=True)
class Cells:
    """A table."""

    name: str
    columns: Sequence[str]
    marks: Sequence[str]
    """A mark for each column: `>` puts its cells to the right, `*` lets them wrap, `=` does so for
    settings; an empty string does neither. Columns on the right hold numbers."""
    rows: list[Sequence[str]] = field(default_factory=list)
    """An empty one begins a section."""

    @property
    def numbers(self) -> list[int]:
        return [i for i, mark in enumerate(self.marks) if ">" in mark]


Part = Fact | Line | Cells


def tell_parts(template: str, values: Mapping[str, Any]) -> list[Part]:
    """What a template tells, by its name.

    Raises:
        RenderError: It does not render.
    """
    tables: list[Cells] = []

    def table(name: str, *columns: str) -> Encoded:
        names = [column.lstrip(">*=") for column in columns]
        marks = [
            column[: len(column) - len(title)]
            for column, title in zip(columns, names, strict=True)
        ]
        tables.append(Cells(name=name, columns=names, marks=marks))
        return begin(f"{_TABLE}{len(tables) - 1}")

    def row(*cells: str) -> Encoded:
        if bare := [cell for cell in cells if not isinstance(cell, Encoded)]:
            raise TypeError(f"the cell {bare[0]!r} goes through no filter")
        tables[-1].rows.append(cells)
        return Encoded("")

    def line(style: str = "") -> Encoded:
        return begin(_LINE + style)

    words = {"line": line, "table": table, "row": row, "cell": _cell, "right": _right}
    parts: list[Part] = []
    for name, text in tell(template, {**values, **words}):
        if name.startswith(_TABLE):
            parts.append(tables[int(name[1:])])
        else:
            is_line = name.startswith(_LINE)
            parts.append(Line(text=text, style=name[1:]) if is_line else (name, text))
    return parts


def facts_in(parts: Sequence[Part]) -> list[Fact]:
    """The facts alone."""
    return [part for part in parts if isinstance(part, tuple)]


def tables_in(parts: Sequence[Part]) -> dict[str, Cells]:
    """The tables by their names."""
    return {part.name: part for part in parts if isinstance(part, Cells)}


def _right(columns: Sequence[str]) -> list[str]:
    return [f">{name}" for name in columns]


def _cell(text: str, *, style: str = "", notes: Sequence[str] = ()) -> Cell:
    made = Cell(text)
    made.style, made.notes = style, notes
    return made
