"""When a search stops proposing: trials, time, no gain."""

from autotune.job.job import Budget
from autotune.search.base import StopReason
from autotune.search.history import History, Tried, results
from autotune.search.objective import Objective

CONFIRM_SHARE = 1 / 3
"""Largest share of a time budget that is kept back for the final comparison."""


def searched(history: History) -> list[Tried]:
    """Candidates of the search proper, in order; those that were only cancelled are open again."""
    return [t for t in history.tried if t.is_searched and (t.is_settled or _counts(t))]


def n_done(history: History) -> int:
    """How many candidates the search proper has settled, their reduced forms included."""
    return sum(t.is_settled for t in (*searched(history), *searched(history.reduced)))


def has_time(history: History, budget: Budget, *, used_s: float, kept_s: float) -> bool:
    """Whether the time budget has room for another trial, first or repeated.

    Args:
        history: What was tried.
        budget: The job's.
        used_s: Wall-clock seconds that trials took so far, earlier sessions included.
        kept_s: Seconds that the final comparison will need; at most `CONFIRM_SHARE` is kept.
    """
    if budget.time_s is None:
        return True
    kept_s = min(kept_s, budget.time_s * CONFIRM_SHARE)
    return used_s + (history.typical_s or 0.0) + kept_s <= budget.time_s


def why_stop(
    history: History, objective: Objective, budget: Budget, *, used_s: float, kept_s: float
) -> StopReason | None:
    """The reason not to try another candidate; None to go on.

    Args:
        history: What was tried.
        objective: What is better.
        budget: The job's.
        used_s: As for `has_time`.
        kept_s: As for `has_time`.
    """
    if len(searched(history)) + len(searched(history.reduced)) >= budget.trials:
        return StopReason.TRIALS
    if not has_time(history, budget, used_s=used_s, kept_s=kept_s):
        return StopReason.TIME
    if budget.patience is not None and _n_since_gain(history, objective) >= budget.patience:
        return StopReason.PATIENCE
    return None


def _n_since_gain(history: History, objective: Objective) -> int:
    """Settled trials of the search since the last gain; all of them while there is none."""
    tried = {t.candidate.hash: t for t in history.tried}
    figures = {key: f for key, t in tried.items() if (f := objective.figure(t)) is not None}
    gained_at = max((_number(tried[key]) for key in objective.leaders(figures)), default=-1)
    return sum(t.is_settled and _number(t) > gained_at for t in searched(history))


def _number(tried: Tried) -> int:
    return tried.trials[0].spec.identity.number


def _counts(tried: Tried) -> bool:
    return tried.is_running or any(
        result.outcome.is_platform_fault or result.outcome.is_measured
        for result in results(tried.explored)
    )
