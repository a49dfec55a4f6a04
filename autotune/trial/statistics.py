"""The interval that is reported with a median."""

import math
import statistics
from collections.abc import Sequence

ONE_IN = 20
"""How often an interval misses: one in 20 is what 95% leave."""
MIN_SAMPLES = 6
"""Below this many samples even [smallest, largest] covers the median in less than 95% of cases."""


def median_interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Median with its distribution-free interval from order statistics.

    The k-th smallest and k-th largest of n samples enclose the median with probability
    1 - 2 * P(Binomial(n, 1/2) < k): the largest k that keeps 95% is taken (David and Nagaraja,
    Order Statistics, section 7.1). It speaks of the steps of this run, not of another run.

    Args:
        samples: At least one value, in any unit.

    Returns:
        (median, low, high) in the same unit.

    Raises:
        ValueError: There is no sample.
    """
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    n = len(ordered)
    k = _depth(n)
    return statistics.median(ordered), ordered[k - 1], ordered[n - k]


def relative_half_width(samples: Sequence[float]) -> float:
    """Half the interval's width over the median; infinite below `MIN_SAMPLES`."""
    if len(samples) < MIN_SAMPLES:
        return math.inf
    median, low, high = median_interval(samples)
    return (high - low) / 2 / median


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """How fast values grow: the median slope of all pairs (Theil and Sen), 0 below two times.

    A median, because memory grows in steps and jumps: one that is not repeated is no growth.

    Args:
        times: In any unit, not all equal.
        values: One per time.

    Returns:
        Units of `values` per unit of `times`.
    """
    slopes = [
        (values[j] - values[i]) / (times[j] - times[i])
        for i in range(len(times))
        for j in range(i + 1, len(times))
        if times[j] != times[i]
    ]
    return statistics.median(slopes) if slopes else 0.0


def _depth(n: int) -> int:
    """The largest k with 1 - 2 * P(Binomial(n, 1/2) < k) of at least 95%; 1 where there is none.

    In whole numbers, term by term: a soak has tens of thousands of steps.
    """
    k, term, below = 1, n, 1 + n  # below: the sum of the binomials (n 0) to (n k)
    while 2 * (k + 1) <= n and 2 * ONE_IN * below <= 2**n:
        k += 1
        term = term * (n - k + 1) // k
        below += term
    return k
