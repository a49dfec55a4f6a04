"""Series of step times at one speed and at two."""

import numpy as np
import pytest
from hypothesis import given

from autotune.fleet.two_speeds import SPEEDS_APART, two_speeds
from tests.trial.test_statistics import SERIES, correlated


@pytest.mark.parametrize("n", [20, 60])
def test_a_while_at_another_speed_is_noticed(n):
    rng = np.random.default_rng(n)
    found = 0
    for _ in range(200):
        begin = int(rng.integers(0, n // 2))
        slow = range(begin, begin + n // 3)
        series = [x * (1.4 if i in slow else 1.0) for i, x in enumerate(correlated(rng, n, 0.0))]
        if modes := two_speeds(series):
            found += 1
            assert modes.slow / modes.fast == pytest.approx(1.4, rel=0.1)
            assert modes.slow_share == pytest.approx(1 / 3, abs=0.1)
    assert found > 0.95 * 200


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6])
def test_one_speed_is_not_taken_for_two(correlation):
    rng = np.random.default_rng(9)
    found = sum(two_speeds(correlated(rng, n, correlation)) is not None for n in [40, 100] * 150)
    assert found < 0.02 * 300


def test_what_alternates_by_design_is_no_interference():
    rng = np.random.default_rng(8)
    noise = correlated(rng, 80, 0.0)
    assert two_speeds([x * (2.0 if i % 4 == 0 else 1.0) for i, x in enumerate(noise)]) is None


def test_two_speeds_that_hardly_differ_do_not_matter():
    slower = 1 + SPEEDS_APART / 2
    assert two_speeds([1.0, 1.001] * 15 + [slower, slower + 0.001] * 15) is None
    assert two_speeds([1.0, 1.001] * 15 + [1.3, 1.301] * 15) is not None


@given(SERIES)
def test_any_series_is_answered(samples):
    modes = two_speeds(samples)
    assert modes is None or modes.fast * (1 + SPEEDS_APART) <= modes.slow * (1 + 1e-9)
