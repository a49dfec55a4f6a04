"""When enough steps were seen: steady and known, out of time, or clearly too slow."""

import dataclasses
import math

import numpy as np
import pytest

from autotune.contract import Measure
from autotune.trial.statistics import relative_half_width
from autotune.trial.stopwatch import Course

MEASURE = Measure(
    warmup_steps=2, min_steps=6, max_steps=1000, target_half_width=0.03, budget_s=100.0
)


def run(measure, times_s):
    """Feed steps until the course has enough; returns it with the steps that it took."""
    course, taken = Course(measure), []
    for step_time_s in times_s:
        taken.append(step_time_s)
        if course.add(step_time_s):
            return course, taken
    raise AssertionError("it never had enough")


def noisy(seed, n, noise=0.05, slow_until=0):
    rng = np.random.default_rng(seed)
    times_s = np.exp(noise * rng.normal(size=n))
    times_s[:slow_until] *= 1.6
    return times_s.tolist()


def test_six_equal_steps_are_enough():
    course, taken = run(MEASURE, [0.1] * 50)
    assert len(taken) == MEASURE.min_steps
    assert (course.n_warm_up, course.is_steady, course.is_losing) == (0, True, False)


@pytest.mark.parametrize("seed", range(8))
def test_it_goes_on_until_the_interval_is_narrow(seed):
    patient = dataclasses.replace(MEASURE, budget_s=math.inf)
    course, taken = run(patient, noisy(seed, 400, noise=0.1))
    measured = taken[course.n_warm_up :]
    assert MEASURE.min_steps < len(taken) < 400
    assert relative_half_width(measured) <= MEASURE.target_half_width


@pytest.mark.parametrize("seed", range(8))
def test_what_was_warm_up_is_told_from_the_series(seed):
    course, taken = run(MEASURE, noisy(seed, 400, slow_until=4))
    assert course.is_steady
    assert 4 <= course.n_warm_up <= len(taken) // 2
    assert np.median(taken[course.n_warm_up :]) == pytest.approx(1.0, abs=0.05)


def test_the_budget_ends_a_series_that_does_not_settle():
    course, taken = run(
        dataclasses.replace(MEASURE, budget_s=40.0), [2.0 - 0.02 * i for i in range(90)]
    )
    assert sum(taken) >= 40.0 > sum(taken[:-1])
    assert not course.is_steady
    assert course.n_warm_up == len(taken) // 2


def test_the_fewest_steps_are_kept_however_long_they_take():
    course, taken = run(
        dataclasses.replace(MEASURE, budget_s=1.0), [30.0, 9.0, 9.1, 9.0, 9.2, 9.1]
    )
    assert len(taken) - course.n_warm_up == MEASURE.min_steps


def test_a_number_of_steps_ends_it_too():
    _, taken = run(dataclasses.replace(MEASURE, max_steps=9), noisy(1, 50, noise=0.5))
    assert len(taken) == 9


def test_a_clearly_slow_trial_stops_early_and_not_before_the_floor():
    losing = dataclasses.replace(MEASURE, losing_step_time_s=0.5, target_half_width=1e-6)
    course, taken = run(losing, noisy(2, 400))
    assert course.is_losing
    assert MEASURE.min_steps <= len(taken) < 30
    assert min(taken) > 0.5


@pytest.mark.parametrize(
    ("first", "n_steps"), [([1.1, 1.2, 1.3], 3), ([1.1, 0.9, 1.3], 6), ([3.0, 2.0, 0.4], 6)]
)
def test_three_steps_end_one_that_is_far_too_slow(first, n_steps):
    losing = dataclasses.replace(MEASURE, losing_step_time_s=0.5, budget_s=1.0)
    course, taken = run(losing, [*first, *[1.1] * 9])
    assert (course.is_losing, len(taken), course.n_warm_up) == (n_steps == 3, n_steps, 0)


def test_one_that_may_still_win_is_measured_to_the_end():
    threshold = dataclasses.replace(MEASURE, losing_step_time_s=1.0, budget_s=60.0)
    course, _ = run(dataclasses.replace(threshold, target_half_width=1e-6), noisy(3, 400))
    assert not course.is_losing


def test_enough_is_enough_even_of_a_slow_one():
    course, _ = run(dataclasses.replace(MEASURE, losing_step_time_s=0.06), [0.1] * 50)
    assert not course.is_losing


def test_a_soak_takes_every_step_of_its_budget():
    soak = dataclasses.replace(MEASURE, target_half_width=0.0, budget_s=30.0, max_steps=2**31)
    course, taken = run(soak, [3.0] * 2 + [0.1] * 500)
    assert sum(taken) == pytest.approx(30.0, abs=0.2)
    assert (course.n_warm_up, course.is_steady) == (0, True)


@pytest.mark.parametrize("n", [6, 7, 11, 12, 40])
def test_the_floor_is_kept_at_any_length(n):
    measure = dataclasses.replace(MEASURE, max_steps=n, target_half_width=1e-9, budget_s=math.inf)
    course, taken = run(measure, [math.exp(-i) for i in range(n)])
    assert len(taken) == n
    assert n - course.n_warm_up >= measure.min_steps
