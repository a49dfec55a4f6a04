"""Tables and named facts, the same wherever a terminal shows them."""

from collections.abc import Iterable

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text


def plain_table(*columns: str) -> Table:
    """A table without frames.

    Args:
        columns: Headers; `>` before one puts its cells to the right, `*` lets them wrap.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for column in columns:
        name = column.lstrip(">*")
        marks = column[: len(column) - len(name)]
        table.add_column(
            name,
            justify="right" if ">" in marks else "left",
            overflow="fold" if "*" in marks else "ellipsis",
            no_wrap="*" not in marks,
        )
    return table


class SettingsCell:
    """`knob=value ...` in a cell: a setting that is wider than its line breaks after the `=`."""

    def __init__(self, text: str, style: str = "") -> None:
        self._text = text
        self._style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._fitted(options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._fitted(options))

    def _fitted(self, options: ConsoleOptions) -> Text:
        words = [
            word if len(word) <= options.max_width else word.replace("=", "=\n", 1)
            for word in self._text.split(" ")
        ]
        return Text(" ".join(words), style=self._style, overflow="fold")


_NARROW, _WIDEST = 10, 24
"""Width of the names: most are short, and a long one does not push every text aside."""


def print_facts(console: Console, facts: Iterable[tuple[str, str]]) -> None:
    """Print each name with a text that wraps beside it, all texts in one column."""
    every = list(facts)
    width = max((len(name) for name, _ in every if len(name) <= _WIDEST), default=_NARROW)
    for name, text in every:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(min_width=max(_NARROW, width), style="cyan", no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(name, Text(text))
        console.print(grid)
