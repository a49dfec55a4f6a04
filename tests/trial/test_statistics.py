import math

import numpy as np
import pytest

from autotune.trial.statistics import MIN_SAMPLES, median_interval, relative_half_width


def test_interval_of_a_constant_is_a_point():
    assert median_interval([2.0] * 10) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize("n", [6, 7, 10, 20, 31])
def test_interval_covers_the_true_median_as_often_as_it_says(n):
    rng = np.random.default_rng(n)
    samples = rng.lognormal(size=(4000, n))  # skewed, as step times are; the true median is 1
    covered = sum(low <= 1 <= high for _, low, high in map(median_interval, samples.tolist()))
    assert covered / 4000 >= 0.94


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
