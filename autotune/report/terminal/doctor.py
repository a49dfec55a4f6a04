"""The findings of `doctor` for a terminal: on this machine, and on the nodes of a fleet."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.base.units import format_count
from autotune.doctor import Level, Remark
from autotune.doctor.fleet import FleetExamination

_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


def print_fleet(console: Console, fleet: FleetExamination) -> None:
    """Print what is said of each node, and of all of them together."""
    for node in fleet.nodes:
        slots = format_count(node.n_slots, "slot") if node.n_slots else "left out"
        console.print(Text(f"{node.name}: {slots}", style="bold"))
        print_remarks(console, node.findings)
    console.print(Text("all nodes", style="bold"))
    print_remarks(console, fleet.findings)


def print_remarks(console: Console, remarks: Sequence[Remark]) -> None:
    """Print findings, each with the shortest way to mend it."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for remark in remarks:
        level = Text(remark.level.value, style=_STYLES[remark.level])
        text = Text(remark.message)
        if remark.fix:
            text.append(f"\nfix: {remark.fix}", style="dim")
        grid.add_row(level, remark.subject, text)
    console.print(grid)
