"""Series of step times as they come: independent, correlated, warming up, at two speeds."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autotune.trial.statistics import (
    MIN_SAMPLES,
    median_interval,
    n_effective,
    relative_half_width,
    share_beyond_median,
    steady_from,
)

SERIES = st.lists(st.floats(0.001, 100.0), min_size=1, max_size=60)
NOISE = 0.05


def correlated(rng: np.random.Generator, n: int, correlation: float, *, noise: float = NOISE):
    """Step times around 1 s whose logarithms are a first-order autoregression."""
    draws = rng.normal(size=n + 50)
    for i in range(1, n + 50):
        fresh = math.sqrt(1 - correlation**2) * draws[i]
        draws[i] = correlation * draws[i - 1] + fresh
    return np.exp(noise * draws[50:]).tolist()


def test_interval_of_a_constant_is_a_point():
    assert median_interval([2.0] * 10) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize("n", [6, 7, 10, 20, 31])
def test_interval_covers_the_true_median_as_often_as_it_says(n):
    rng = np.random.default_rng(n)
    samples = rng.lognormal(size=(4000, n))  # skewed, as step times are; the true median is 1
    covered = sum(low <= 1 <= high for _, low, high in map(median_interval, samples.tolist()))
    assert covered / 4000 >= 0.94


@pytest.mark.parametrize(("correlation", "n"), [(0.3, 40), (0.6, 40), (0.6, 100), (0.8, 100)])
def test_interval_holds_where_steps_resemble_their_neighbours(correlation, n):
    rng = np.random.default_rng(n)
    series = [correlated(rng, n, correlation) for _ in range(600)]
    covered = sum(low <= 1 <= high for _, low, high in map(median_interval, series))
    assert covered / 600 >= 0.93


def test_interval_narrows_with_more_samples():
    rng = np.random.default_rng(0)
    few, many = rng.normal(10, 1, 8).tolist(), rng.normal(10, 1, 200).tolist()
    assert relative_half_width(many) < relative_half_width(few)


def test_too_few_samples_never_look_precise():
    assert relative_half_width([1.0] * (MIN_SAMPLES - 1)) == math.inf
    assert relative_half_width([1.0] * MIN_SAMPLES) == 0


def test_no_samples_is_an_error():
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


@given(SERIES)
def test_interval_holds_the_median_and_is_of_the_samples(samples):
    median, low, high = median_interval(samples)
    assert low <= median <= high
    assert {low, high} <= set(samples)


@given(SERIES)
def test_a_series_counts_for_no_more_than_its_length(samples):
    assert 0 < n_effective(samples) <= len(samples)


@given(SERIES, st.floats(0.1, 10.0))
@example([66.72908419904398, 66.72908419904398, 1.0, 1.0], 0.1)  # just as much as noise may be
def test_nothing_depends_on_the_unit(samples, unit):
    scaled = [unit * x for x in samples]
    assert n_effective(scaled) == pytest.approx(n_effective(samples), rel=1e-3)


def test_correlated_samples_count_for_fewer():
    rng = np.random.default_rng(5)
    counted = [n_effective(correlated(rng, 200, r)) for r in (0.0, 0.5, 0.9)]
    assert counted[0] > 150
    assert counted[1] == pytest.approx(200 / 3, rel=0.4)
    assert counted[2] < 30


@given(SERIES)
def test_at_most_half_of_a_series_is_warm_up(samples):
    start = steady_from(samples)
    assert start is None or 0 <= start <= len(samples) // 2


@pytest.mark.parametrize("n_slow", [1, 3, 8, 12])
def test_slow_first_steps_are_warm_up(n_slow):
    rng = np.random.default_rng(n_slow)
    for _ in range(200):
        series = [x * (1.5 if i < n_slow else 1.0) for i, x in enumerate(correlated(rng, 40, 0.0))]
        start = steady_from(series)
        assert start is None or start >= n_slow, series


def test_steps_that_get_faster_bit_by_bit_are_cut_where_that_ends():
    rng = np.random.default_rng(3)
    medians = []
    for _ in range(200):
        noise = correlated(rng, 60, 0.0)
        series = [x * (1 + math.exp(-i / 3)) for i, x in enumerate(noise)]
        start = steady_from(series)
        if start is not None:
            assert start >= 3
            medians.append(median_interval(series[start:])[0])
    assert len(medians) > 150
    assert np.mean(medians) == pytest.approx(1.0, abs=0.01)


def test_a_series_that_is_steady_is_kept():
    rng = np.random.default_rng(4)
    starts = [steady_from(correlated(rng, 40, 0.0)) for _ in range(300)]
    assert sum(start is None for start in starts) < 0.1 * 300
    assert np.mean([start for start in starts if start is not None]) < 4
    assert steady_from([1.0] * 20) == 0


def test_one_that_speeds_up_until_the_end_is_not_steady():
    assert steady_from([2.0 - 0.02 * i for i in range(40)]) is None


def test_a_single_slow_step_is_not_the_end_of_warm_up():
    series = [1.0, 1.01, 0.99, 1.0, 1.01, 0.99] * 5
    series[20] = 30.0
    assert steady_from(series) == 0


def test_time_that_the_median_step_does_not_show() -> None:
    assert share_beyond_median([1.0] * 9 + [6.0]) == pytest.approx(5 / 15)
    assert share_beyond_median([1.0] * 10) == 0
