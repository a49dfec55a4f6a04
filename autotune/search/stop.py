"""When a search stops proposing: trials, time, no gain, or none that pays."""

import math
from collections.abc import Iterable
from itertools import islice, takewhile

from autotune.base.units import format_amount
from autotune.job.job import Budget
from autotune.record.study import results
from autotune.search.base import StopReason
from autotune.search.history import CandidateTrials, History
from autotune.search.objective import Objective
from autotune.search.race import LOSS
from autotune.search.session import Session
from autotune.space.candidate import Candidate

CONFIRM_SHARE = 1 / 2
"""Largest share of a time budget that is kept back for the final comparison. Of a short budget, a
proven gain is worth more than further trials."""

LAST_FORECASTS = 3
"""Forecasts in a row that have to agree that no trial gains anything. One alone may be wrong; what
the trials after it measure corrects the next (`benchmarks/search_efficiency.py`)."""


def searched(history: History) -> list[CandidateTrials]:
    """Candidates of the search proper, in order; those that were only cancelled are open again."""
    return history.once(searched, lambda: [t for t in history.tried if _counts(t)])


def n_done(history: History) -> int:
    """How many candidates the search proper has settled, their reduced forms included."""
    return sum(t.is_settled for t in (*searched(history), *searched(history.reduced)))


def has_time(
    history: History, budget: Budget, *, used_s: float, kept_s: float, n_trials: int = 1
) -> bool:
    """Whether the time budget has room for so many more trials, first or repeated.

    Args:
        history: What was tried.
        budget: The job's.
        used_s: Wall-clock seconds that trials took so far, earlier sessions included.
        kept_s: Seconds that the final comparison will need; at most `CONFIRM_SHARE` is kept, and
            nothing before there is a candidate to compare.
        n_trials: How many of them.
    """
    if budget.time_s is None:
        return True
    is_comparable = any(tried.is_running or tried.measured for tried in searched(history))
    kept_s = min(kept_s, budget.time_s * CONFIRM_SHARE) if is_comparable else 0.0
    return used_s + n_trials * (history.typical_s or 0.0) + kept_s <= budget.time_s


def why_stop(
    history: History, objective: Objective, budget: Budget, *, used_s: float, kept_s: float
) -> StopReason | None:
    """The reason not to try another candidate; None to go on; seconds as of `has_time`."""
    parts = (history, history.reduced)
    if sum(len(searched(part)) for part in parts) >= budget.trials:
        return StopReason.TRIALS
    if not has_time(history, budget, used_s=used_s, kept_s=kept_s):
        return StopReason.TIME
    if budget.patience is not None and _n_since_gain(history, objective) >= budget.patience:
        return StopReason.PATIENCE
    return None


def expects_no_gain(expected_gains: Iterable[float]) -> bool:
    """Whether the last forecasts agree that no trial gains a share of `LOSS`; the newest first."""
    small = list(takewhile(lambda gain: gain < LOSS, islice(expected_gains, LAST_FORECASTS)))
    return len(small) == LAST_FORECASTS


def why_no_gain(
    expected_gain: float, history: History, session: Session, *, baseline: Candidate | None
) -> str:
    """Why a trial that is expected to take a share off the best step time does not pay.

    The training's hours are those at the baseline's speed, if one ran; what was found since has
    made them fewer. Without a baseline they are those at the best speed so far. Empty: it pays, or
    nothing was measured yet.
    """
    job = session.job
    assert job.budget.gpu_hours is not None, "asked for only where the job names the hours"
    rates = {k: f.samples_per_s for k, f in session.objective.figures(history).items()}
    best = max(rates.values(), default=math.inf)
    left_share = 1.0 if baseline is None else rates.get(baseline.hash, best) / best
    saved_hours = job.budget.gpu_hours * left_share * expected_gain
    cost_hours = job.world * (history.typical_s or 0.0) / 3600
    if not rates or saved_hours >= cost_hours:
        return ""

    def worded(hours: float) -> str:
        price = job.price_per_hour
        priced = "" if price is None else f" ({format_amount(hours * price)})"
        return f"{format_amount(hours)} GPU-hours{priced}"

    return (
        f"another trial is expected to save {worded(saved_hours)} of the training and costs "
        f"{worded(cost_hours)}"
    )


def _n_since_gain(history: History, objective: Objective) -> int:
    """Settled trials of the search since the last gain; all of them while there is none."""
    leaders = objective.leaders(objective.figures(history))
    gained_at = max((t.number for t in history.tried if t.candidate.hash in leaders), default=-1)
    return sum(t.is_settled and t.number > gained_at for t in searched(history))


def _counts(tried: CandidateTrials) -> bool:
    is_begun = tried.is_running or any(
        result.outcome.is_platform_fault or result.outcome.is_measured
        for result in results(tried.explored)
    )
    return tried.is_searched and (tried.is_settled or is_begun)
