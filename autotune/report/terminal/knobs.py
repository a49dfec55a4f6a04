"""The knobs of an engine in a terminal."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from autotune.report.terminal.tables import plain_table
from autotune.space.candidate import format_value
from autotune.space.knob import Knob


def print_knobs(console: Console, knobs: Sequence[Knob]) -> None:
    """Print a row per knob."""
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
