"""Overviews for a terminal: the studies of a folder, a soak."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.base.units import format_bytes, format_rate, format_seconds
from autotune.contract import Origin
from autotune.record.soak import SoakResult, describe_soak
from autotune.report.terminal.tables import plain_table


@dataclass(frozen=True, kw_only=True)
class State:
    """How a study stands."""

    study: str
    folder: str
    is_running: bool
    """Whether a search holds it now."""
    n_trials: int
    n_reduced: int
    """Trials among these that ran fewer layers or accelerators, and are in no ranking."""
    n_left_out: int
    """Trials of the record besides those, of another job or configuration."""
    counts: dict[str, int]
    """Ended trials by outcome."""
    best_samples_per_s: float | None
    """Figure of the answer's best, or of the best so far; None where nothing was measured."""
    speedup: float | None
    """Speed of the best over the baseline's; None while there is none."""
    is_proven: bool
    """Whether the best is proven to be better than the baseline."""
    stop_reason: str | None
    """None while the search has not ended."""
    substitute_baseline: bool = False
    """Whether that baseline is another than was asked for, since the platform ended that."""
    origin: str = "measured"
    """Origin of its figures: `measured`, `replayed` or `simulated`."""


def print_states(console: Console, states: Sequence[State]) -> None:
    """Print one row per study."""
    if not states:
        console.print("no studies yet: `autotune search` makes one", highlight=False)
        return
    table = plain_table("study", "*outcomes", ">*samples/s", ">*speedup", "*state")
    for state in states:
        table.add_row(
            state.study,
            ", ".join(f"{name} {count}" for name, count in state.counts.items()) or "-",
            format_rate(state.best_samples_per_s),
            _speedup(state),
            _state(state),
        )
    console.print(table)


def _speedup(state: State) -> str:
    if state.speedup is None:
        return "-"
    over = " (substitute baseline)" if state.substitute_baseline else ""
    proven = "" if state.is_proven else ", not proven"
    return f"{state.speedup:.2f}x{proven}{over}"


def _state(state: State) -> str:
    word = "running" if state.is_running else state.stop_reason or "cut short: search again"
    return word if state.origin == Origin.MEASURED else f"{state.origin}: {word}"


def print_soak(console: Console, soak: SoakResult) -> None:
    """Print what a soak found, a fact per line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    style = "green" if soak.passed else "bold yellow" if soak.too_short else "bold red"
    grid.add_row("soak", Text(describe_soak(soak), style=style))
    for problem in soak.problems:
        grid.add_row("not known" if soak.too_short else "problem", Text(problem))
    if (kept := soak.checkpoint) is not None:
        text = f"{format_bytes(kept.size_bytes)} after {kept.steps} steps, saved in "
        text += format_seconds(kept.save_s)
        if kept.load_s is not None:
            text += f", loaded in {format_seconds(kept.load_s)}"
        if kept.loss_deviation is not None:
            text += f"; {kept.steps_compared} losses after it within {kept.loss_deviation:.2g}"
        grid.add_row("checkpoint", Text(text))
    for meter in soak.growth:
        text = f"{meter.meter}: {format_bytes(meter.slope_bytes_per_hour)} per hour, allowed "
        grid.add_row("growth", Text(text + format_bytes(meter.allowed_bytes_per_hour)))
    console.print(grid)
