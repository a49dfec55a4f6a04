"""Whether something else on the machine disturbed a trial while it measured, and the evidence."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from autotune.base.units import format_rate
from autotune.contract import RankReport, Surroundings, TrialSpec
from autotune.trial.scripts.lengths import is_drawn
from autotune.trial.statistics import MIN_SAMPLES

LOAD_SHARE = 0.1
"""Share of a rank's cores that other processes may use: more slows its steps by as much,
which is more than intervals allow for. The search's own process stays below half of it."""
MIN_WATCHED_S = 0.5
"""Shortest watched time that is judged: processors count in ticks of 10 ms."""
SPEEDS_APART = 0.1
"""Share by which the slower one is slower, at the least: less is lost in the interval."""
_ASHMAN_D = 4.0
"""A normal distribution cut in half has 2.3, a uniform one 3.5: two speeds have more."""
_STAYS_Z = -2.33
"""Standard deviations below the expected number of runs: 1% by chance."""


def disturbance(spec: TrialSpec, reports: Sequence[RankReport]) -> str:
    """Causes that disturbed a measured trial, in words; empty: nothing that was noticed."""
    words = [_load(reports), _held_up(reports)]
    # Drawn lengths make steps of many durations by themselves.
    modes = None if is_drawn(spec.workload.lengths) else two_speeds(reports[0].step_times_s)
    if modes is not None:
        fast_ms, slow_ms = (format_rate(step_s * 1e3) for step_s in modes[:2])
        words.append(
            f"steps ran at two speeds: {fast_ms} ms, and for {modes[2]:.0%} of them {slow_ms} ms"
        )
    return "; ".join(word for word in words if word)


def _load(reports: Sequence[RankReport]) -> str:
    """Other processes on the cores of a rank; ranks that share their cores are counted as one."""
    groups: dict[tuple[int, ...], list[tuple[Surroundings, float]]] = {}
    for report in reports:
        seen, cpu_s = report.surroundings, report.cpu_s
        if seen is not None and cpu_s is not None:
            groups.setdefault(tuple(seen.cores), []).append((seen, cpu_s + seen.children_s))
    worst, where = 0.0, ""
    for cores, ranks in groups.items():
        elapsed_s = min(seen.elapsed_s for seen, _ in ranks)
        others_s = min(seen.busy_s for seen, _ in ranks) - sum(cpu_s for _, cpu_s in ranks)
        if elapsed_s >= MIN_WATCHED_S and others_s / (elapsed_s * len(cores)) > worst:
            worst, where = others_s / (elapsed_s * len(cores)), ", ".join(map(str, cores))
    return f"other processes took {worst:.0%} of core {where}" if worst > LOAD_SHARE else ""


def _held_up(reports: Sequence[RankReport]) -> str:
    """Time in which a rank's cores did not run because a hypervisor or a quota held them up."""
    worst: dict[str, float] = {}
    for report in reports:
        seen = report.surroundings
        if seen is None or seen.elapsed_s < MIN_WATCHED_S:
            continue
        shares = {
            "was stolen by other virtual machines": seen.stolen_s / len(seen.cores),
            "was withheld by a CPU quota": seen.throttled_s,
        }
        for what, held_up_s in shares.items():
            share = held_up_s / seen.elapsed_s
            if share > max(LOAD_SHARE, worst.get(what, 0.0)):
                worst[what] = share
    return "; ".join(f"{min(1.0, share):.0%} of the time {what}" for what, share in worst.items())


def two_speeds(samples: Sequence[float]) -> tuple[float, float, float] | None:
    """The two speeds of a series that ran now at one and now at the other; None: it did not.

    The split is Otsu's (A Threshold Selection Method from Gray-Level Histograms, 1979), of the
    logarithms. It counts where each side has `MIN_SAMPLES`, the medians are `SPEEDS_APART` apart,
    the sides are clearly two (Ashman's D, in Ashman, Bird and Zepf, Detecting Bimodality in
    Astronomical Datasets, 1994), and the series stays with a side for longer than chance would
    (Wald and Wolfowitz, On a Test Whether Two Samples are from the Same Population, 1940): what
    alternates by design, like an optimizer that acts every fourth step, is no interference.

    Args:
        samples: In the order in which they were measured; above 0.

    Returns:
        Medians of the faster and the slower ones, in their unit, and the share of the slower.
    """
    if len(samples) < 2 * MIN_SAMPLES:
        return None
    logs = np.log(samples)
    is_slow = logs > _split(np.sort(logs))
    slow, fast = logs[is_slow], logs[~is_slow]
    if min(len(slow), len(fast)) < MIN_SAMPLES:
        return None
    apart = np.median(slow) - np.median(fast)
    spread = math.hypot(slow.std(), fast.std())
    if apart < math.log(1 + SPEEDS_APART) or math.sqrt(2) * apart <= _ASHMAN_D * spread:
        return None
    # Fewer runs than chance would make.
    runs = 1 + np.count_nonzero(is_slow[1:] != is_slow[:-1])
    more = 2 * len(slow) * len(fast) / len(logs)  # than one, as chance would have it
    if runs - 1 - more >= _STAYS_Z * math.sqrt(more * (more - 1) / (len(logs) - 1)):
        return None
    return math.exp(np.median(fast)), math.exp(np.median(slow)), len(slow) / len(logs)


def _split(ordered: npt.NDArray[np.float64]) -> float:
    """The value after which two classes explain most of the variance (Otsu)."""
    n, sums = len(ordered), ordered.cumsum()
    k, below = np.arange(1, n), sums[:-1]
    between = k * (n - k) * (below / k - (sums[-1] - below) / (n - k)) ** 2
    between[ordered[1:] == ordered[:-1]] = -1.0
    return float(ordered[between.argmax()])
