"""How the ladder of the baseline is climbed, with or without a forecast of its candidates."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum

from autotune.space.candidate import Candidate

CERTAIN = 0.995
"""Probability of running out of memory from which a candidate is not tried. With nothing measured
the forecast's own deviation is about 0.1, so a candidate is left out from 1.3 times the limit on;
after a trial that ran, the deviation is a few hundredths. What `benchmarks/baseline_trials.py`
prints hardly differs from 0.99 to 0.999."""
_LIKELY = 0.5
"""Probability of running out of memory up to which a candidate is expected to run."""


class Rung(Enum):
    """What is known of a candidate of the ladder."""

    RUNS = "runs within the limits"
    TOO_LARGE = "ran out of memory"
    FAILS = "is illegal, or fails otherwise"


class UntriedError(Exception):
    """The ladder needs a candidate that has no answer in the record."""

    def __init__(self, candidate: Candidate) -> None:
        super().__init__(str(candidate))
        self.candidate = candidate


def climb(
    ladder: Iterable[Sequence[Candidate]],
    known: Callable[[Candidate], Rung | None],
    ask: Callable[[Candidate], Rung],
    risks: Callable[[Sequence[Candidate]], Iterable[float]] | None = None,
) -> tuple[Candidate | None, list[Candidate]]:
    """Climb a ladder (as of `Engine.ladder`) from where the forecast expects the baseline.

    The first candidate of the ladder that is expected to run is tried first. Its memory corrects
    the forecast, and then those that a careful user would rather have are tried, unless they are
    now certain to run out of memory. Where none is expected to run, the likeliest is tried.
    Without a forecast each rung is bisected: the largest candidate comes first (one trial where it
    runs), then the smallest (one trial more to leave a rung that is hopeless).

    With more answers it takes the same way again, so an interrupted climb resumes.

    Args:
        ladder: Legal candidates.
        known: What the record says of a candidate; None: nothing.
        ask: The same, where a candidate may have to be tried first.
        risks: P(out of memory) of candidates, by the record; None: nobody knows.

    Returns:
        The baseline, None where nothing runs; and the candidates that come before it and that the
        forecast left out.

    Raises:
        UntriedError: Of `ask`.
    """
    rungs = [list(rung) for rung in ladder if rung]

    def counted(found: Rung) -> Rung:
        """Without a forecast a rung is left whatever its candidates fail by."""
        return found if risks is not None or found is Rung.RUNS else Rung.TOO_LARGE

    answers = {c: counted(found) for c in _in_order(rungs) if (found := known(c)) is not None}
    while True:
        _spread(rungs, answers)
        open_ = _open(rungs, answers)
        risk = dict(zip(open_, risks(open_), strict=True)) if open_ and risks else {}
        wanted = [c for c in open_ if risk.get(c, 0.0) < CERTAIN]
        if not wanted:
            best = next((c for c in _in_order(rungs) if answers.get(c) is Rung.RUNS), None)
            return best, open_
        if risks is None:
            chosen = _bisected(next(rung for rung in rungs if open_[0] in rung), answers)
        else:
            likely = [c for c in wanted if risk[c] < _LIKELY]
            chosen = likely[0] if likely else min(wanted, key=lambda c: risk[c])
        answers[chosen] = counted(ask(chosen))


def _bisected(rung: Sequence[Candidate], answers: Mapping[Candidate, Rung]) -> Candidate:
    """The largest of a rung, then the smallest, then the middle of what is open."""
    left = [candidate for candidate in rung if candidate not in answers]
    first = next((c for c in (rung[-1], rung[0]) if c in left), None)
    return left[(len(left) - 1) // 2] if first is None else first


def _in_order(rungs: Sequence[Sequence[Candidate]]) -> Iterator[Candidate]:
    """The candidates, the one that a careful user wants most first."""
    for rung in rungs:
        yield from reversed(rung)


def _spread(rungs: Sequence[Sequence[Candidate]], answers: dict[Candidate, Rung]) -> None:
    """Add what follows from answers: what needs more than one that ran out does so too."""
    for rung in rungs:
        too_large = False
        for candidate in rung:
            too_large = too_large or answers.get(candidate) is Rung.TOO_LARGE
            if too_large:
                answers.setdefault(candidate, Rung.TOO_LARGE)


def _open(
    rungs: Sequence[Sequence[Candidate]], answers: Mapping[Candidate, Rung]
) -> list[Candidate]:
    """Candidates without an answer that would be the baseline if they ran."""
    found = []
    for candidate in _in_order(rungs):
        if candidate not in answers:
            found.append(candidate)
        elif answers[candidate] is Rung.RUNS:
            break
    return found
