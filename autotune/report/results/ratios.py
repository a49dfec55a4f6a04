"""How many times faster one configuration is, with an interval that says what it rests on.

Two sets of processes of the same configuration differ by more than their steps do. The study's
spread says by how much (`autotune.record.spread`); the interval says where nothing ran twice.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from autotune.base.student_t import CONFIDENCE, t_quantile
from autotune.contract import TrialResult
from autotune.record.answer import Speedup
from autotune.record.spread import Spread, mean_log_rate
from autotune.search.confirm import last_comparison
from autotune.search.history import CandidateTrials
from autotune.search.race import MIN_ROUNDS


class Basis(StrEnum):
    """Evidence behind an interval."""

    RUNS = "runs"
    """The spread between the runs of candidates that were run more than once."""
    ASSUMED = "assumed"
    """How runs differ as measured elsewhere: in one of the studies nothing was run twice."""


@dataclass(frozen=True, kw_only=True)
class Ratio(Speedup):
    """Samples/s of one over samples/s of another, with its 95% interval."""

    basis: Basis
    n_runs: tuple[int, int]
    """Runs behind the one and behind the other."""


def telling_runs(tried: CandidateTrials) -> list[TrialResult]:
    """The measured runs of a candidate that its figure rests on.

    They are those of its last final comparison where that had rounds enough: the search's own
    trial may have been picked for being lucky, and runs of an earlier comparison may be hours
    older.
    """
    number = last_comparison(tried.trials)
    last = [run for n, run in tried.runs.items() if n is not None and n >= number]
    is_told = len(last) >= MIN_ROUNDS or (last and tried.compared is not None)
    return last if is_told else [*tried.runs.values()]


def ratio_of(
    ours: Sequence[TrialResult],
    others: Sequence[TrialResult],
    *,
    spreads: tuple[Spread, Spread],
) -> Ratio:
    """Compare the runs of two configurations, or of one on two occasions.

    With log samples/s, run-to-run noise is a share; that of a mean of runs is as the spread of its
    study says, and the interval is Student's, with the fewer degrees of freedom of the two.

    Args:
        ours: At least one measured run.
        others: At least one measured run.
        spreads: Spreads of the studies that the trials are of.
    """
    difference = mean_log_rate(ours) - mean_log_rate(others)
    sides = ((ours, spreads[0]), (others, spreads[1]))
    error = math.sqrt(sum(spread.variance_of_mean(runs) for runs, spread in sides))
    half_width = t_quantile(CONFIDENCE, min(spread.degrees for spread in spreads)) * error
    basis = Basis.RUNS if all(spread.knows_repeats for spread in spreads) else Basis.ASSUMED
    n_runs = len(ours), len(others)
    return Ratio.around(difference, half_width, basis=basis, n_runs=n_runs)


def ratio_of_gains(ours: Speedup, others: Speedup) -> Speedup:
    """A gain beside another one, such as those of two studies over the baseline of each.

    What made one study's machine faster than the other's is in both runs of a gain, and drops out.
    """
    log = math.log(ours.ratio / others.ratio)
    half_width = math.hypot(*(math.log(gain.high / gain.ratio) for gain in (ours, others)))
    return Speedup.around(log, half_width)
