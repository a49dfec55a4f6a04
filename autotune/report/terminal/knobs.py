"""The knobs of an engine in a terminal."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from autotune.report.terminal.tables import plain_table
from autotune.space.candidate import format_value
from autotune.space.knob import Knob

_WIDE = 120
"""Columns of a terminal from which on a row holds the text of a knob as well."""


def print_knobs(console: Console, knobs: Sequence[Knob]) -> None:
    """Print a row per knob; in a narrow terminal its text stands below it."""
    if console.width < _WIDE:
        for knob in knobs:
            values = f"{knob.values_in_words}; default {format_value(knob.default)}"
            console.print(Text.assemble((knob.name, "bold cyan"), f"  {values}"))
            console.print(Padding(Text(knob.help), (0, 0, 0, 4)))
        return
    table = plain_table("knob", "*values", "*default", "*what it is")
    for knob in knobs:
        table.add_row(knob.name, knob.values_in_words, format_value(knob.default), knob.help)
    console.print(table)


def knob_rows(knobs: Sequence[Knob]) -> list[dict[str, Any]]:
    """The same for a program."""
    return [
        {
            "name": knob.name,
            "kind": knob.kind,
            "values": knob.values_in_words,
            "default": knob.default,
            "help": knob.help,
        }
        for knob in knobs
    ]
