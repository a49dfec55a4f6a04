"""Curves through what was measured: latency and bandwidth of links, what small products lose."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.base.errors import FleetError
from autotune.probe.points import Point

_Values = NDArray[np.float64]
_LEAST_COMPUTING = 0.7
"""Share of the best product's time; a fit that leaves less has taken scatter for a slope."""


@dataclass(frozen=True, kw_only=True)
class LinkCurve:
    """Seconds = hops x latency + moved bytes / bandwidth."""

    latency_s: float
    """Latency of one hop."""
    bytes_per_s: float
    """Bus bandwidth."""
    error: float
    """Mean of |curve / measured - 1| over the sizes."""


@dataclass(frozen=True, kw_only=True)
class ProductCurve:
    """Seconds = operations / rate + elements / element rate + latency."""

    best_flops_per_s: float
    """Rate of the best product, all of its time counted."""
    flops_per_s: float
    """The rate of the curve, which goes through that product: a little more."""
    elements_per_s: float
    """How fast operands and results are moved besides; inf where no product was slowed by it."""
    latency_s: float
    """Latency of one product, whatever its size."""
    error: float
    """As of `LinkCurve`."""


def fit_link(points: Sequence[Point], kind: str, n_ranks: int) -> LinkCurve:
    """Fit one kind of communication over its sizes.

    What is moved and how many hops it takes is as in the cost model: see
    `autotune.cost.collectives`, which this is the inverse of. Source: Thakur, Rabenseifner and
    Gropp (IJHPCA 19, 2005), section 2.

    Raises:
        FleetError: There are fewer than two sizes, or a time is not above zero.
    """
    seconds = _seconds(points, least=2)
    hops, share = _ring(kind, n_ranks)
    moved = share * np.array([float(point.size_bytes) for point in points])
    latency_s, per_byte_s = _not_negative([np.full_like(moved, hops), moved], seconds)
    if per_byte_s == 0.0:  # scattered beyond a slope: what the largest message reached
        largest = int(np.argmax(moved))
        per_byte_s = float(seconds[largest] / moved[largest])
    fitted = hops * latency_s + moved * per_byte_s
    return LinkCurve(
        latency_s=latency_s, bytes_per_s=1.0 / per_byte_s, error=_error(fitted, seconds)
    )


def fit_products(points: Sequence[Point]) -> ProductCurve:
    """Fit the products of one precision over their sizes.

    The curve goes through the best product, since large ones are what counts; what smaller ones
    take beyond goes by their operands and by each call: the roofline of Williams et al. (CACM 52,
    2009) with its corner rounded, as in `autotune.cost.compute`.

    Raises:
        FleetError: There are fewer than three, or a time is not above zero.
    """
    seconds = _seconds(points, least=3)
    flops = np.array([point.flops for point in points])
    elements = np.array([point.elements for point in points])
    best = int(np.argmax(flops / seconds))
    share = flops / flops[best]
    # The operands and the call of the best product are not computing.
    per_element_s, latency_s = _not_negative(
        [elements - share * elements[best], 1.0 - share],
        seconds - share * seconds[best],
        scale=seconds,
    )
    other_s = float(elements[best]) * per_element_s + latency_s
    computing_s = max(_LEAST_COMPUTING * float(seconds[best]), float(seconds[best]) - other_s)
    fitted = share * computing_s + elements * per_element_s + latency_s
    return ProductCurve(
        best_flops_per_s=float(flops[best] / seconds[best]),
        flops_per_s=float(flops[best]) / computing_s,
        elements_per_s=1.0 / per_element_s if per_element_s else math.inf,
        latency_s=latency_s,
        error=_error(fitted, seconds),
    )


def _ring(kind: str, n: int) -> tuple[float, float]:
    """Hops, and the share of the size that each rank's link moves."""
    if kind == "all_reduce":
        return 2.0 * math.log2(n), 2.0 * (n - 1) / n
    if kind == "send":
        return 1.0, 1.0
    return n - 1.0, (n - 1.0) / n


def _seconds(points: Sequence[Point], *, least: int) -> _Values:
    seconds = np.array([point.slowest_s for point in points], dtype=np.float64)
    if len(seconds) < least or not np.all(np.isfinite(seconds) & (seconds > 0)):
        raise FleetError.of("probe.too_few_points", n_seconds=len(seconds), least=least)
    return seconds


def _not_negative(
    columns: Sequence[_Values], target: _Values, *, scale: _Values | None = None
) -> tuple[float, ...]:
    """Least squares of relative errors with no coefficient below zero.

    Small and large sizes differ by thousands, so each counts by its share of the time. A
    coefficient that would be negative is zero, and the others are fitted without it.
    """
    weight = 1.0 / (target if scale is None else scale)
    used = list(range(len(columns)))
    found = np.zeros(len(columns))
    while used:
        matrix = np.stack([columns[index] * weight for index in used], axis=1)
        # Columns of like size: bytes and single calls differ by more than doubles hold well.
        size = np.linalg.norm(matrix, axis=0)
        values = np.linalg.lstsq(matrix / size, target * weight, rcond=None)[0] / size
        found[:] = 0.0
        found[used] = values
        if np.all(values >= 0):
            break
        used = [index for index, value in zip(used, values, strict=True) if value > 0]
    return tuple(float(value) for value in np.maximum(found, 0.0))


def _error(fitted: _Values, seconds: _Values) -> float:
    return float(np.mean(np.abs(fitted / seconds - 1.0)))
