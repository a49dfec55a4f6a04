"""The normal distribution over arrays: NumPy has its density, not its integral."""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_FAR = 20.0
"""Beyond so many deviations the first terms of an expansion are more exact than the integral."""
_ERFC = np.frompyfunc(math.erfc, 1, 1)


def density(z: Floats) -> Floats:
    """exp(-z^2 / 2) / sqrt(2 pi)."""
    found: Floats = np.exp(-0.5 * np.square(z)) / math.sqrt(2 * math.pi)
    return found


def below(z: Floats) -> Floats:
    """The probability of a value below z: erfc(-z / sqrt 2) / 2."""
    found: Floats = 0.5 * np.asarray(_ERFC(-np.asarray(z) / math.sqrt(2)), dtype=np.float64)
    return found


def log_expected_gain(z: Floats) -> Floats:
    """log(z P(z) + p(z)): the logarithm of expected improvement, in deviations.

    Far below it is p(z) (1 - 3 / z^2) / z^2, the start of its expansion; the plain formula is a
    difference of two numbers that are equal there. Source: Ament et al., Unexpected
    Improvements to Expected Improvement (arXiv:2310.20708), section 4.1.
    """
    near = np.maximum(z, -_FAR)
    plain = np.log(near * below(near) + density(near))
    square = np.square(np.minimum(z, -_FAR))
    far = -0.5 * (square + math.log(2 * math.pi)) - np.log(square) + np.log1p(-3 / square)
    found: Floats = np.where(z > -_FAR, plain, far)
    return found


def beyond_bound(
    mean: float, variance: float, bound: float, *, is_above: bool
) -> tuple[float, float]:
    """Mean and variance of a normal value that is known to be above a bound, or below it.

    Source: Johnson, Kotz and Balakrishnan, Continuous Univariate Distributions 1 (1994), 13.10.1.
    """
    side = 1.0 if is_above else -1.0
    deviation = math.sqrt(variance)
    z = side * (bound - mean) / deviation
    if z > _FAR:  # the whole tail stands close to the bound, as an exponential does
        return bound + side * deviation / z, variance / z**2
    at = np.array(z)
    hazard = float(density(at) / below(-at))
    return mean + side * deviation * hazard, variance * max(1e-6, 1 - hazard * (hazard - z))
