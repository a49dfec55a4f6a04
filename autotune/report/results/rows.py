"""The rows of a report: one per candidate, and their order."""

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.contract import Outcome, TrialResult
from autotune.record.answer import Standing
from autotune.search.confirm import Comparison
from autotune.search.front import front_of
from autotune.search.history import History, Tried
from autotune.search.objective import Objective
from autotune.space.candidate import Candidate


@dataclass(frozen=True, kw_only=True)
class Row:
    """One candidate and how it did."""

    trial: int
    """Number of the trial that stands for it."""
    candidate: Candidate
    figure: Standing | None
    """Standing of the final comparison where it took part, else of its own trial."""
    n_runs: int
    """Fresh sets of processes behind the figure."""
    outcome: Outcome | None
    """None while it is in flight."""
    fits: bool
    """Whether it keeps the memory limit."""
    evidence: str
    """Why it failed, with the place where it says so; empty where it did not."""
    is_compared: bool = False
    """Whether its figure is that of the final comparison."""
    is_disturbed: bool = False
    """Whether something else on the machine disturbed the trial that its figure rests on."""

    @property
    def rate(self) -> float:
        """Samples/s to order and to draw by; 0 without a figure."""
        return 0.0 if self.figure is None else self.figure.samples_per_s

    @property
    def peak_bytes(self) -> int:
        """Peak memory to draw by; 0 where it is not known."""
        return 0 if self.figure is None else self.figure.peak_memory_bytes or 0


def make_rows(
    history: History, objective: Objective, comparison: Comparison | None = None
) -> list[Row]:
    """One row per candidate of the record; the objective says what the memory limit allows.

    `comparison` is the final one, where there was one: its figures stand for who took part.
    """
    rows = []
    for tried in history.tried:
        confirmed = None if comparison is None else comparison.figures.get(tried.candidate.hash)
        rows.append(_row(tried, objective, confirmed))
    return sorted(rows, key=lambda row: (row.figure is None, -row.rate, row.trial))


def ranked(rows: Sequence[Row], best: int | None) -> list[Row]:
    """Rows in the order of the answer, given the trial of the best.

    The best comes first, then whom it was compared with, then those that were tried once: the
    luckiest of many single runs is faster than a mean of several, and no better for it. What
    breaks the memory limit follows what keeps it, and those without a figure are last.
    """

    def place(row: Row) -> tuple[bool, bool, bool, bool, float, int]:
        is_best = best is not None and row.trial == best
        has_none = row.figure is None
        return not is_best, has_none, not row.fits, not row.is_compared, -row.rate, row.trial

    return sorted(rows, key=place)


def _row(tried: Tried, objective: Objective, confirmed: Standing | None) -> Row:
    # A fault comes before a measurement that another run of the same candidate reached.
    ended = [t.result for t in tried.trials if t.result is not None]
    result = tried.fault or tried.measured or (ended[-1] if ended else None)
    figure = confirmed
    if figure is None and result is tried.measured:
        figure = tried.figure
    return Row(
        trial=tried.trials[0].spec.identity.number if result is None else result.number,
        candidate=tried.candidate,
        figure=figure,
        n_runs=1 if figure is None else figure.n_runs,
        outcome=None if result is None else result.outcome,
        is_compared=confirmed is not None,
        fits=figure is None or objective.fits(figure.peak_memory_bytes),
        is_disturbed=confirmed is None and result is not None and bool(result.disturbed),
        evidence=describe_evidence(result) if result and result.outcome is not Outcome.OK else "",
    )


def front_rows(rows: Sequence[Row]) -> list[Row]:
    """Trials within the limit that no other matches in memory and beats in speed; least first."""
    known = {str(row.trial): row for row in rows if row.fits and row.figure}
    figures = {name: row.figure for name, row in known.items() if row.figure}
    front = front_of({name: f for name, f in figures.items() if f.peak_memory_bytes})
    return [known[name] for name in reversed(front)]


def describe_evidence(result: TrialResult) -> str:
    """The line that an outcome was read from, and where it stands."""
    return result.evidence + (f" [{result.evidence_source}]" if result.evidence_source else "")
