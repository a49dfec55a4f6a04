"""Fits find the curve that points were made of, and say how far off they are."""

import dataclasses

import pytest

from autotune.base.errors import FleetError
from autotune.probe.curves import fit_link, fit_products
from autotune.probe.points import of_kind
from tests.probe.made_up import CALL_S, ELEMENTS_PER_S, FLOPS, LATENCY_S, RATES, points


@pytest.mark.parametrize("kind", RATES)
@pytest.mark.parametrize("n_ranks", [2, 8])
def test_latency_and_bandwidth_of_a_link_are_found_again(kind: str, n_ranks: int) -> None:
    curve = fit_link(of_kind(points(n_ranks), kind), kind, n_ranks)
    assert curve.latency_s == pytest.approx(LATENCY_S, rel=1e-6)
    assert curve.bytes_per_s == pytest.approx(RATES[kind], rel=1e-6)
    assert curve.error < 1e-6


def test_what_small_products_lose_is_found_again() -> None:
    curve = fit_products(of_kind(points(), "matmul"))
    assert curve.flops_per_s == pytest.approx(FLOPS, rel=1e-6)
    assert curve.elements_per_s == pytest.approx(ELEMENTS_PER_S, rel=1e-6)
    assert curve.latency_s == pytest.approx(CALL_S, rel=1e-6)
    assert curve.error < 1e-6
    # The best product of all is still a little slowed by its operands.
    assert 0.9 * FLOPS < curve.best_flops_per_s < 0.99 * FLOPS


def test_an_error_is_how_far_the_points_are_from_the_curve() -> None:
    exact = of_kind(points(2), "send")
    off = [
        dataclasses.replace(
            point, seconds=tuple(s * (1.2 if i % 2 else 0.8) for s in point.seconds)
        )
        for i, point in enumerate(exact)
    ]
    curve = fit_link(off, "send", 2)
    assert 0.1 < curve.error < 0.3
    assert curve.bytes_per_s == pytest.approx(RATES["send"], rel=0.3)


def test_no_coefficient_is_below_zero() -> None:
    """Times that grow faster than the sizes would have a negative latency."""
    steep = [
        dataclasses.replace(point, seconds=(1e-6 * 100.0**i,))
        for i, point in enumerate(of_kind(points(2), "send"))
    ]
    curve = fit_link(steep, "send", 2)
    assert curve.latency_s == 0.0
    assert curve.bytes_per_s > 0
    flat = [dataclasses.replace(point, seconds=(1e-3,)) for point in of_kind(points(2), "send")]
    flat_curve = fit_link(flat, "send", 2)
    assert flat_curve.latency_s == pytest.approx(1e-3, rel=0.01)
    shrinking = [
        dataclasses.replace(point, seconds=(1e-2 / 10.0**i,))
        for i, point in enumerate(of_kind(points(2), "send"))
    ]
    largest = shrinking[-1]
    curve = fit_link(shrinking, "send", 2)
    assert curve.bytes_per_s == pytest.approx(largest.size_bytes / largest.slowest_s)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    broken = [
        dataclasses.replace(point, seconds=(seconds,)) for point in of_kind(points(2), "send")
    ]
    with pytest.raises(FleetError, match="above zero"):
        fit_link(broken, "send", 2)
    with pytest.raises(FleetError, match="at least 3"):
        fit_products(of_kind(points(), "matmul")[:2])
