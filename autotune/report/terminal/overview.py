"""Overviews for a terminal: the studies of a folder, a ladder, a soak."""

from dataclasses import dataclass

from rich.console import Console

from autotune.record.worth import Ladder
from autotune.report.terminal.tables import print_told


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


def print_ladder(console: Console, ladder: Ladder) -> None:
    """Print the steps up, each change alone and each as the last one, and what interacts."""
    print_told(console, "ladder", {"ladder": ladder})
