"""Student's t distribution: quantiles and expected losses; no reason to depend on scipy."""

import functools
import math

CONFIDENCE = 0.975
"""Upper quantile of a two-sided 95% interval."""


@functools.cache  # every figure of a report asks for the same one
def t_quantile(p: float, degrees: int) -> float:
    """The value that a t-distributed number stays below with probability `p`.

    The cumulative distribution is a finite sum for a whole number of degrees of freedom
    (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4); bisection
    inverts it to the precision of a float.

    Raises:
        ValueError: `p` is not from 0.5 to below 1, or there is no degree of freedom.
    """
    if not 0.5 <= p < 1 or degrees < 1:
        raise ValueError(f"t quantile of p={p} with {degrees} degrees of freedom")
    low, high = 0.0, math.pi / 2
    while (theta := (low + high) / 2) not in (low, high):
        if _central_probability(theta, degrees) < 2 * p - 1:
            low = theta
        else:
            high = theta
    return math.sqrt(degrees) * math.tan(theta)


def upper_probability(t: float, degrees: int) -> float:
    """Probability that a t-distributed number is above `t`."""
    half = _central_probability(math.atan(abs(t) / math.sqrt(degrees)), degrees) / 2
    return 0.5 - half if t >= 0 else 0.5 + half


def expected_loss(t: float, degrees: int) -> float:
    """Mean of max(0, x - t) for a t-distributed x: what is lost by settling for `t`.

    (n + t^2) / (n - 1) f(t) - t P(x > t), f being the density (Chick and Inoue, New Two-Stage and
    Sequential Procedures for Selecting the Best Simulated System, 2001).

    Raises:
        ValueError: With fewer than two degrees of freedom there is no mean.
    """
    if degrees < 2:
        raise ValueError(f"mean of a t distribution with {degrees} degrees of freedom")
    log_density = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
    log_density -= math.log(degrees * math.pi) / 2
    log_density -= (degrees + 1) / 2 * math.log1p(t * t / degrees)
    tail = t * upper_probability(t, degrees)
    return max(0.0, (degrees + t * t) / (degrees - 1) * math.exp(log_density) - tail)


def _central_probability(theta: float, degrees: int) -> float:
    """Probability of |t| < sqrt(degrees) * tan(theta)."""
    cosine = math.cos(theta)
    odd = degrees % 2 == 1
    term = cosine if odd else 1.0
    total = 0.0
    for k in range(3 if odd else 2, degrees + 1, 2):
        total += term
        term *= cosine**2 * (k - 1) / k
    if odd:
        return 2 / math.pi * (theta + math.sin(theta) * total)
    return math.sin(theta) * total
