"""Whether trials that ran beside others were slower for it: told once, after the final comparison.

Its runs have the fleet for themselves, so its members were measured both ways.
"""

import math
import statistics

from autotune.base.units import format_count
from autotune.contract import Role, TrialResult
from autotune.search.history import History, results

LEAST_SHARE = 0.05
"""Share by which steps beside others are slower, at the least, to be worth a word."""


def slowed_by_others(history: History) -> str:
    """What running beside others cost, in words; empty: nothing shows, or nothing ran so.

    The speed of the machine may have changed meanwhile. A member whose first trial was alone as
    well, such as the baseline, shows by how much, and the others are taken relative to it.
    """
    ended = [r for tried in history.tried for r in results(tried.trials) if r.wall_s]
    ratios: dict[bool, list[float]] = {False: [], True: []}
    for tried in history.tried:
        confirmed = [r for r in results(tried.trials) if r.role is Role.CONFIRM]
        compared = [r.step_time_s for r in confirmed if r.outcome.is_measured and r.step_time_s]
        first = tried.measured
        if compared and first is not None and first.step_time_s:
            is_beside = any(_overlap(first, other) for other in ended)
            ratios[is_beside].append(first.step_time_s / statistics.median(compared))
    drift = statistics.median(ratios[False]) if ratios[False] else 1.0
    slower = [ratio / drift for ratio in ratios[True]]
    if min(slower, default=0.0) < 1.0 + LEAST_SHARE:
        return ""
    return (
        f"{format_count(len(slower), 'candidate')} took {statistics.median(slower) - 1.0:.0%} "
        "longer for a step beside other trials than alone: what trials share slows them. "
        "--exclusive keeps them apart; the final comparison ran each alone"
    )


def _overlap(one: TrialResult, other: TrialResult) -> bool:
    begin_s = max(one.started_at_s, other.started_at_s)
    end_s = min(one.started_at_s + one.wall_s, other.started_at_s + other.wall_s)
    return one.number != other.number and begin_s < end_s - math.ulp(end_s)
