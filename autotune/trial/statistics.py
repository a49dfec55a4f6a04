"""The interval that is reported with a median."""

import math
import statistics
from collections.abc import Sequence

CONFIDENCE = 0.95
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
    k = 1
    while 2 * (k + 1) <= n and 1 - 2 * _binomial_cdf(n, k) >= CONFIDENCE:
        k += 1
    return statistics.median(ordered), ordered[k - 1], ordered[n - k]


def relative_half_width(samples: Sequence[float]) -> float:
    """Half the interval's width over the median; infinite below `MIN_SAMPLES`."""
    if len(samples) < MIN_SAMPLES:
        return math.inf
    median, low, high = median_interval(samples)
    return (high - low) / 2 / median


def _binomial_cdf(n: int, k: int) -> float:
    """P(Binomial(n, 1/2) <= k)."""
    return float(sum(math.comb(n, i) for i in range(k + 1)) / 2**n)
