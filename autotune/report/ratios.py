"""How many times faster, with an interval that says what it knows of.

Runs tell more than the steps of one run: two sets of processes of the same configuration differ by
more than their steps do. So the interval comes from fresh runs where there are enough of them, and
says so where it does not.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from autotune.contract import Role, TrialResult
from autotune.record import Trial
from autotune.search.confirm import first_round_of
from autotune.search.history import results
from autotune.search.objective import figure_of
from autotune.search.student import t_quantile

_CONFIDENCE = 0.975
"""Upper quantile of a two-sided 95% interval."""


class Basis(StrEnum):
    """What an interval is made of."""

    RUNS = "runs"
    """The spread between fresh runs."""
    STEPS = "steps"
    """The spread of the steps within one run each; how runs differ is not in it."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Samples/s of one over samples/s of another, with its 95% interval."""

    ratio: float
    low: float
    high: float
    basis: Basis
    n_runs: tuple[int, int]
    """Runs behind the one and behind the other."""

    @property
    def is_told_apart(self) -> bool:
        """Whether the interval leaves 1 out."""
        return self.low > 1 or self.high < 1


def telling_runs(trials: Sequence[Trial]) -> list[TrialResult]:
    """The measured runs of one candidate that its figure rests on.

    Those of its last final comparison where there is one: the search's own trial may have been
    picked for being lucky, and runs of an earlier comparison may be hours older.
    """
    confirmed = [trial for trial in trials if trial.spec.role is Role.CONFIRM]
    blocks = [first_round_of(trial.spec.confirm_round or 0) for trial in confirmed]
    last = [t for t, block in zip(confirmed, blocks, strict=True) if block == max(blocks)]
    for some in (last, trials):
        measured = [r for r in results(some) if r.outcome.is_measured and r.samples_per_s]
        if measured:
            return measured
    return []


def ratio_of(ours: Sequence[TrialResult], theirs: Sequence[TrialResult]) -> Ratio:
    """Compare the runs of two configurations, or of one on two occasions.

    With log samples/s, run-to-run noise is a share, and its variance is pooled over both sides
    (Student's t, n - 1 degrees of freedom each). With one run on each side, the intervals of their
    median steps are combined in quadrature instead.

    Args:
        ours: At least one measured run.
        theirs: At least one measured run.
    """
    logs = [[math.log(run.samples_per_s or 1.0) for run in runs] for runs in (ours, theirs)]
    difference = statistics.fmean(logs[0]) - statistics.fmean(logs[1])
    degrees = len(ours) + len(theirs) - 2
    if degrees:
        squares = sum((x - statistics.fmean(side)) ** 2 for side in logs for x in side)
        error = math.sqrt(squares / degrees * (1 / len(ours) + 1 / len(theirs)))
        below = above = t_quantile(_CONFIDENCE, degrees) * error
    else:
        (our_low, our_high), (their_low, their_high) = _spread(ours[0]), _spread(theirs[0])
        below, above = math.hypot(our_low, their_high), math.hypot(our_high, their_low)
    return Ratio(
        ratio=math.exp(difference),
        low=math.exp(difference - below),
        high=math.exp(difference + above),
        basis=Basis.RUNS if degrees else Basis.STEPS,
        n_runs=(len(ours), len(theirs)),
    )


def describe_ratio(ratio: Ratio) -> str:
    """`1.12x (1.05 to 1.19)`, and what the interval does not know."""
    text = f"{ratio.ratio:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})"
    if ratio.basis is Basis.STEPS:
        return f"{text} by the steps of one run each; how runs differ is not in it"
    ours, theirs = ratio.n_runs
    return f"{text} from {ours} and {theirs} runs"


def _spread(run: TrialResult) -> tuple[float, float]:
    """How far a run's interval reaches below and above its rate, in logarithms."""
    figure = figure_of(run)
    return (
        math.log(figure.samples_per_s / figure.low),
        math.log(figure.high / figure.samples_per_s),
    )
