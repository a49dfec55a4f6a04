"""Progress that a search shows while it runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from autotune.contract import Outcome
from autotune.record.answer import Standing
from autotune.record.study import Trial
from autotune.search.confirm import Comparison
from autotune.search.runner import Running


class Stage(StrEnum):
    """Stage of a search."""

    BASELINE = "baseline"
    SEARCH = "search"
    CONFIRM = "confirm"
    DONE = "done"


class StopReason(StrEnum):
    """Why no further trial is proposed."""

    TRIALS = "the number of trials is reached"
    TIME = "too little of the time budget is left for another trial and the final comparison"
    PATIENCE = "no gain for a while"
    SETTLED = "no other trial is expected to gain anything"
    GAIN = "another trial would cost more than it is expected to save"
    EXHAUSTED = "every legal candidate was tried"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The state of a search at one moment."""

    stage: Stage
    counts: Mapping[Outcome, int]
    """Trials of the record by outcome."""
    trials: tuple[Trial, ...]
    """Those of the record that answer for the job, by number."""
    n_done: int
    """Trials of the search proper that have ended, resumed ones included."""
    n_budget: int
    running: tuple[Running, ...]
    baseline: Standing | None
    best: Standing | None
    comparison: Comparison | None = None
    """None: the final comparison has not begun, or is over."""
    elapsed_s: float
    time_left_s: float | None
    """Estimate until the end, final comparison included; None while nothing is known."""
    note: str
    """The last thing worth saying, such as a retry; empty once the search has ended."""


class Observer(Protocol):
    """Whoever wants to watch a search."""

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """Called at every change and about twice a second while trials run."""

    def on_note(self, note: str) -> None:
        """Called once for everything worth saying (a skipped setting, a retry, why it stopped)."""
