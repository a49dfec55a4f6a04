"""Whether trials that ran beside others were slower for it: told once, after the final comparison.

Its runs have the fleet for themselves, so its members were measured both ways.
"""

import math
import statistics
from collections.abc import Iterable

from autotune.base.units import format_count
from autotune.contract import Role, TrialResult
from autotune.search.history import History, Tried, results

LEAST_SHARE = 0.05
"""Share by which steps beside others are slower, at the least, to be worth a word."""


def slowed_by_others(history: History) -> str:
    """What running beside others cost, in words; empty: nothing shows, or nothing ran so.

    The speed of the machine may have changed meanwhile. A member whose first trial was alone as
    well, such as the baseline, shows by how much, and the others are taken relative to it.
    """
    ended = [r for tried in history.tried for r in results(tried.trials) if r.wall_s]
    beside: list[float] = []
    alone: list[float] = []
    for tried in history.tried:
        compared = [r.step_time_s for r in _confirmed(tried) if r.step_time_s]
        first = tried.measured
        if not compared or first is None or not first.step_time_s:
            continue
        ratio = first.step_time_s / statistics.median(compared)
        (beside if _overlaps(first, ended) else alone).append(ratio)
    drift = statistics.median(alone) if alone else 1.0
    slower = [ratio / drift for ratio in beside]
    if min(slower, default=0.0) < 1.0 + LEAST_SHARE:
        return ""
    return (
        f"{format_count(len(slower), 'candidate')} took {statistics.median(slower) - 1.0:.0%} "
        "longer for a step beside other trials than alone: what trials share slows them. "
        "--exclusive keeps them apart; the final comparison ran each alone"
    )


def _confirmed(tried: Tried) -> list[TrialResult]:
    return [
        result
        for result in results(tried.trials)
        if result.role is Role.CONFIRM and result.outcome.is_measured
    ]


def _overlaps(one: TrialResult, others: Iterable[TrialResult]) -> bool:
    end_s = one.started_at_s + one.wall_s
    return any(
        other.number != one.number
        and max(one.started_at_s, other.started_at_s)
        < min(end_s, other.started_at_s + other.wall_s) - math.ulp(end_s)
        for other in others
    )
