"""Statistics of a series of step times: when it is steady, its median, how sure the median is."""

import itertools
import math
import statistics
from collections.abc import Sequence

ONE_IN = 20
"""How often an interval misses: one in 20 is what 95% leave."""
MIN_SAMPLES = 6
"""Below this many samples even [smallest, largest] covers the median in less than 95% of cases."""

SHOWN_BEYOND_MEDIAN = 0.1
"""Share of a run's time beyond the median step from which it is told."""

_TAMED_AT = 3.0
"""Robust standard deviations from the median to which samples farther away are moved."""
_MAD_OF_NORMAL = 0.6745
"""Median absolute deviation of a standard normal distribution."""
_NOISE_OF_CORRELATION = 0.5
"""Standard errors, each 1 / sqrt(n), up to which a correlation counts as 0."""
_LARGEST_CORRELATION = 0.99
_EQUAL = 1e-9
"""Share by which samples may differ and count as equal: what is left then is rounding."""


def median_interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Median with its distribution-free interval from order statistics.

    The k-th smallest and k-th largest of n samples enclose the median with probability
    1 - 2 * P(Binomial(n, 1/2) < k): the largest k that keeps 95% is taken (David and Nagaraja,
    Order Statistics, section 7.1). Correlated samples are taken for as many as `n_effective` says,
    at the same share of the ranks. It speaks of the steps of this run, not of another run.

    Args:
        samples: At least one value, in any unit, in the order in which they were measured.

    Returns:
        (median, low, high) in the same unit.

    Raises:
        ValueError: There is no sample.
    """
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    n = len(ordered)
    n_counted = int(n_effective(samples))
    k = max(1, _depth(n_counted) * n // n_counted) if n_counted >= MIN_SAMPLES else 1
    return statistics.median(ordered), ordered[k - 1], ordered[n - k]


def relative_half_width(samples: Sequence[float]) -> float:
    """Half the interval's width over the median; infinite below `MIN_SAMPLES` independent steps.

    Steps that resemble their neighbours say less: they count as `n_effective` says.
    """
    if n_effective(samples) < MIN_SAMPLES:
        return math.inf
    median, low, high = median_interval(samples)
    return (high - low) / 2 / median


def n_effective(samples: Sequence[float]) -> float:
    """Number of independent samples that a series is worth; at most its length.

    The number of a first-order autoregression, n (1 - r) / (1 + r), r being the correlation of
    neighbours (Bayley and Hammersley, The "Effective" Number of Independent Observations in an
    Autocorrelated Time Series, 1946). Estimated from a short series, r is too small by
    (1 + 4 r) / n (Marriott and Pope, Bias in the Estimation of Autocorrelations, 1954), which is
    added. It is estimated from `_tamed` samples: one that stands out would hide the rest.
    """
    n = len(samples)
    if n < 3:
        return float(n)
    tamed = _tamed(samples)
    mean = statistics.fmean(tamed)
    off = [x - mean for x in tamed]
    square = math.fsum(x * x for x in off)
    if square <= n * (_EQUAL * mean) ** 2:
        return float(n)
    r = math.fsum(a * b for a, b in itertools.pairwise(off)) / square
    # Without the band, noise alone would look like correlation in every second short series.
    if r <= _NOISE_OF_CORRELATION / math.sqrt(n) + _EQUAL:
        return float(n)
    r = min(_LARGEST_CORRELATION, r + (1 + 4 * r) / n)
    return n * (1 - r) / (1 + r)


def steady_from(samples: Sequence[float]) -> int | None:
    """Index of the first steady sample; None: more than half of the series is warm-up.

    The marginal standard error rule (White, An Effective Truncation Heuristic for Bias Reduction
    in Simulation Output, 1997): warm-up ends at the sample d for which sum((x - mean)^2) /
    (n - d)^2 of the samples from d on is smallest. A series whose d lies in the second half is too
    short to tell. The rule gets `_tamed` samples: a single one that stands out would mislead it.
    """
    n = len(samples)
    tamed = _tamed(samples)
    best, best_d, total, square = math.inf, 0, 0.0, 0.0
    for d in range(n - 1, -1, -1):
        total += tamed[d]
        square += tamed[d] ** 2
        left = n - d
        if left < MIN_SAMPLES and d:  # the error of so few may be anything
            continue
        error = max(0.0, square - total * total / left) / left**2
        if error <= best or error <= (_EQUAL * tamed[d]) ** 2:  # the most of equals
            best, best_d = error, d
    return best_d if best_d <= n // 2 else None


def share_beyond_median(samples: Sequence[float]) -> float:
    """Share of the whole time of steps beyond as many median steps; may be below 0."""
    return 1 - statistics.median(samples) / statistics.fmean(samples)


def _tamed(samples: Sequence[float]) -> list[float]:
    """The samples, with those beyond `_TAMED_AT` moved to that distance (winsorized)."""
    median = statistics.median(samples)
    deviation = statistics.median(abs(x - median) for x in samples) / _MAD_OF_NORMAL
    if deviation <= 0:
        return list(samples)
    low, high = median - _TAMED_AT * deviation, median + _TAMED_AT * deviation
    return [min(high, max(low, x)) for x in samples]


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
