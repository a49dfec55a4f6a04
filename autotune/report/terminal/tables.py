"""Tables and named facts, the same wherever a terminal shows them."""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from itertools import islice
from typing import Any

from rich.box import Box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from autotune.report.parts import APART, Cells, Part, tell_parts

_LINED = Box("    \n    \n ── \n    \n ── \n    \n    \n    \n")
"""A line below the header and between sections, and no other frame."""


def plain_table(*columns: str) -> Table:
    """A table without frames, in which no word is broken: where it has no room, its rows stack.

    Args:
        columns: Headers; `>` before one puts its cells to the right, `*` lets them wrap.
    """
    table = _PlainTable(box=_LINED, pad_edge=False, show_edge=False, collapse_padding=True)
    for column in columns:
        name = column.lstrip(">*")
        marks = column[: len(column) - len(name)]
        table.add_column(
            name,
            justify="right" if ">" in marks else "left",
            overflow="fold",
            no_wrap="*" not in marks,
        )
    return table


def print_told(console: Console, template: str, values: Mapping[str, Any]) -> None:
    """Print what a template tells, by its name."""
    print_parts(console, tell_parts(template, values))


def print_parts(console: Console, parts: Iterable[Part]) -> None:
    """Print what a template tells; facts that follow one another have their texts in a column."""
    facts: list[tuple[str, str]] = []
    for part in parts:
        if isinstance(part, tuple):
            facts.append(part)
            continue
        print_facts(console, facts)
        facts = []
        if isinstance(part, Cells):
            console.print(_drawn(part))
        elif part.style != APART:
            console.print(Text(part.text, style=part.style))
    print_facts(console, facts)


def _drawn(cells: Cells) -> Table:
    columns = zip(cells.marks, cells.columns, strict=True)
    table = plain_table(*(f"{mark.replace('=', '*')}{name}" for mark, name in columns))
    for row in cells.rows:
        if not row:
            table.add_section()
            continue
        table.add_row(
            *(
                SettingsCell(text, getattr(text, "style", ""), getattr(text, "notes", ()))
                if "=" in mark
                else Text(text, style=getattr(text, "style", ""))
                for mark, text in zip(cells.marks, row, strict=True)
            )
        )
    return table


_GAP = 2
"""Blanks between two columns."""
_LEAST_WIDTH = 70
"""Width of a terminal below which tables stack, unless all their cells fit in one line."""


class _PlainTable(Table):
    """A table whose rows are shown as names with their values where the terminal is too narrow."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        sizes = [self._sizes(console, options, column) for column in self.columns]
        width = options.max_width - _GAP * (len(sizes) - 1)
        room = width - sum(least for least, _ in sizes)
        is_whole = sum(most for _, most in sizes) <= width
        is_narrow = options.max_width < _LEAST_WIDTH and not is_whole
        if room < 0 or is_narrow:
            has_settings = all(isinstance(cell, SettingsCell) for cell in self.columns[-1].cells)
            fits_without = sum(most for _, most in sizes[:-1]) <= width + _GAP
            if has_settings and fits_without and not is_narrow:
                yield from self._with_settings_below(console, options)
            else:
                yield from self._stacked(options.max_width)
            return
        # What wraps shares the room; those that need least of it get all that they need.
        wanting = sorted(zip(self.columns, sizes, strict=True), key=lambda it: it[1][1] - it[1][0])
        for left, (column, (least, most)) in zip(range(len(wanting), 0, -1), wanting, strict=True):
            more = min(most - least, room // left)
            column.width, room = least + more, room - more
        yield from super().__rich_console__(console, options)

    def _sizes(self, console: Console, options: ConsoleOptions, column: Column) -> tuple[int, int]:
        """The least and the most width of a column: that of a word or line, and of its cells."""
        cells = [
            Measurement.get(console, options, cell) for cell in (column.header, *column.cells)
        ]
        most = max(cell.maximum for cell in cells)
        return (most if column.no_wrap else max(cell.minimum for cell in cells)), most

    def _with_settings_below(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The other columns, and below each row its settings, which have no room beside them."""
        narrow, settings = copy(self), self.columns[-1]
        narrow.columns = self.columns[:-1]
        lines = iter(console.render_lines(narrow, options))

        def drawn(n_lines: int) -> RenderResult:
            for line in islice(lines, n_lines):
                yield from (*line, Segment.line())

        yield from drawn(2)
        for row, cell in zip(self.rows, settings.cells, strict=True):
            yield from drawn(1)
            yield Padding(cell, (0, 0, 0, 2 * _GAP))
            yield from drawn(int(row.end_section))

    def _stacked(self, width: int) -> RenderResult:
        """Each row as lines of a name and its value; a line parts sections here as well."""
        of_rows = zip(*(column.cells for column in self.columns), strict=True)
        for row, cells in zip(self.rows, of_rows, strict=True):
            facts = [
                (str(column.header), cell)
                for column, cell in zip(self.columns, cells, strict=True)
                if not isinstance(cell, str | Text) or str(cell).strip()
            ]
            if facts:
                yield _named(facts, min(max(len(name) for name, _ in facts), _WIDEST))
                yield Text("─" * (width if row.end_section else 0))


class SettingsCell:
    """`knob=value ...` in a cell, with notes below it, a line each.

    A setting that is wider than its line breaks after the `=`, and never within its name.
    """

    def __init__(self, text: str, style: str = "", notes: Sequence[str] = ()) -> None:
        self._text = text
        self._style = style
        self._notes = notes

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._fitted(options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        least = max(map(len, self._text.replace("=", "= ").split()), default=0)
        longest = max(map(len, (self._text, *self._notes)))
        return Measurement(least, max(least, longest)).with_maximum(options.max_width)

    def _fitted(self, options: ConsoleOptions) -> Text:
        words = (_broken(word, options.max_width) for word in self._text.split(" "))
        fitted = Text(" ".join(words), style=self._style, overflow="fold")
        for note in self._notes:
            fitted.append(f"\n{note}", style="dim")
        return fitted


def _broken(setting: str, width: int) -> str:
    """A setting in lines of a width at most, where its name has room there."""
    return setting if len(setting) <= width else setting.replace("=", "=\n", 1)


_COMMAND = "next"
"""Name of the fact that is a command."""
_NARROW, _WIDEST = 10, 24
"""Width of the names: most are short, and a long one does not push every text aside."""


def print_facts(console: Console, facts: Iterable[tuple[str, str]]) -> None:
    """Print each name with a text that wraps beside it, all texts in one column.

    A text with a word that has no room there, such as a path, stands below its name; so does the
    next command, in one line that a copy takes as it is.
    """
    every = list(facts)
    width = max((len(name) for name, _ in every if len(name) <= _WIDEST), default=_NARROW)
    width = max(_NARROW, width)
    for name, text in every:
        longest = max(map(len, [text] if name == _COMMAND else text.split()), default=0)
        if longest > console.width - max(width, len(name)) - _GAP:
            console.print(Text(name, style="cyan"))
            if name == _COMMAND:
                console.print(Text(text), soft_wrap=True)
                continue
            indent = _GAP if longest <= console.width - _GAP else 0
            console.print(Padding(Text(text, overflow="fold"), (0, 0, 0, indent)))
        else:
            console.print(_named([(name, Text(text))], width))


def _named(facts: Iterable[tuple[str, RenderableType]], width: int) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(min_width=width, style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for fact in facts:
        grid.add_row(*fact)
    return grid
