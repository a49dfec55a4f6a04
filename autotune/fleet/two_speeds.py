"""Whether a series of step times changed between two speeds: what interference looks like."""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.trial.statistics import MIN_SAMPLES

SPEEDS_APART = 0.1
"""Share by which the slower one is slower, at the least: less is lost in the interval."""
_ASHMAN_D = 4.0
"""A normal distribution cut in half has 2.3, a uniform one 3.5: two speeds have more."""
_STAYS_Z = -2.33
"""Standard deviations below the expected number of runs: 1% by chance."""


@dataclass(frozen=True, kw_only=True)
class TwoSpeeds:
    """Two speeds that a series changed between."""

    fast: float
    """Median of the faster samples, in their unit."""
    slow: float
    slow_share: float
    """Share of the slow samples, 0 to 1."""


def two_speeds(samples: Sequence[float]) -> TwoSpeeds | None:
    """The two speeds of a series that ran now at one and now at the other; None: it did not.

    The split is Otsu's (A Threshold Selection Method from Gray-Level Histograms, 1979), of the
    logarithms. It counts where each side has `MIN_SAMPLES`, the medians are `SPEEDS_APART` apart,
    the sides are clearly two (Ashman's D, in Ashman, Bird and Zepf, Detecting Bimodality in
    Astronomical Datasets, 1994), and the series stays with a side for longer than chance would
    (Wald and Wolfowitz, On a Test Whether Two Samples are from the Same Population, 1940): what
    alternates by design, like an optimizer that acts every fourth step, is no interference.

    Args:
        samples: In the order in which they were measured; above 0.
    """
    n = len(samples)
    if n < 2 * MIN_SAMPLES:
        return None
    logs = [math.log(x) for x in samples]
    threshold = _split(sorted(logs))
    slow = [x for x in logs if x > threshold]
    fast = [x for x in logs if x <= threshold]
    if min(len(slow), len(fast)) < MIN_SAMPLES:
        return None
    apart = statistics.median(slow) - statistics.median(fast)
    spread = math.hypot(statistics.pstdev(slow), statistics.pstdev(fast))
    if apart < math.log(1 + SPEEDS_APART) or math.sqrt(2) * apart <= _ASHMAN_D * spread:
        return None
    if not _stays([x > threshold for x in logs]):
        return None
    return TwoSpeeds(
        fast=math.exp(statistics.median(fast)),
        slow=math.exp(statistics.median(slow)),
        slow_share=len(slow) / n,
    )


def _split(ordered: Sequence[float]) -> float:
    """The value after which two classes explain most of the variance (Otsu)."""
    n, total = len(ordered), math.fsum(ordered)
    best, threshold, below = -1.0, ordered[0], 0.0
    for k in range(1, n):
        below += ordered[k - 1]
        if ordered[k] == ordered[k - 1]:
            continue
        between = k * (n - k) * (below / k - (total - below) / (n - k)) ** 2
        if between > best:
            best, threshold = between, ordered[k - 1]
    return threshold


def _stays(sides: Sequence[bool]) -> bool:
    """Whether a series of two sides has fewer runs than chance would make."""
    n_1 = sum(sides)
    n_0, n = len(sides) - n_1, len(sides)
    runs = 1 + sum(a != b for a, b in itertools.pairwise(sides))
    expected = 1 + 2 * n_0 * n_1 / n
    deviation = math.sqrt((expected - 1) * (expected - 2) / (n - 1))
    return runs - expected < _STAYS_Z * deviation
