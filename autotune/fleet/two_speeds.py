"""Whether a series of step times changed between two speeds: what interference looks like."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
    return TwoSpeeds(
        fast=math.exp(np.median(fast)),
        slow=math.exp(np.median(slow)),
        slow_share=len(slow) / len(logs),
    )


def _split(ordered: npt.NDArray[np.float64]) -> float:
    """The value after which two classes explain most of the variance (Otsu)."""
    n, sums = len(ordered), ordered.cumsum()
    k, below = np.arange(1, n), sums[:-1]
    between = k * (n - k) * (below / k - (sums[-1] - below) / (n - k)) ** 2
    between[ordered[1:] == ordered[:-1]] = -1.0
    return float(ordered[between.argmax()])
