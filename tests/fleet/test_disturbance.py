"""What is taken for interference, and what is not."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given

from autotune.contract import RankReport, Surroundings
from autotune.fleet.collect import MIN_WATCHED_S, SPEEDS_APART, disturbance, two_speeds
from tests import trials
from tests.trial.test_statistics import SERIES, correlated

SPEC = trials.spec()


def rank(
    number=0, *, core=0, cpu_s=1.9, busy_s=1.95, stolen_s=0.0, throttled_s=0.0, elapsed_s=2.0, **of
):
    """A rank that had a core for two seconds."""
    seen = Surroundings(
        cores=[core],
        elapsed_s=elapsed_s,
        busy_s=busy_s,
        stolen_s=stolen_s,
        throttled_s=throttled_s,
    )
    return RankReport(
        rank=number, cpu_s=cpu_s, surroundings=seen, **{"step_times_s": [0.1] * 20, **of}
    )


@pytest.mark.cases("ranks", "causes")
def test_what_took_time_from_ranks_is_named(ranks, causes):
    seen = [rank(number, **changes) for number, changes in enumerate(ranks)]
    assert disturbance(SPEC, seen) == causes


def test_processes_that_load_data_are_no_others_to_their_rank():
    seen = rank(cpu_s=0.9, busy_s=1.95)
    assert disturbance(SPEC, [seen]) != ""
    beside = dataclasses.replace(seen.surroundings, children_s=1.0)
    assert disturbance(SPEC, [dataclasses.replace(seen, surroundings=beside)]) == ""


def test_of_a_moment_nothing_is_said():
    moment = {"elapsed_s": MIN_WATCHED_S / 2, "cpu_s": 0.0, "busy_s": 0.2, "stolen_s": 0.2}
    assert disturbance(SPEC, [rank(**moment)]) == ""


def test_two_speeds_need_no_reading_of_the_machine():
    steps = [0.1, 0.101] * 8 + [0.16, 0.161] * 8
    report = RankReport(rank=0, step_times_s=steps)
    assert disturbance(SPEC, [report]) == (
        "steps ran at two speeds: 100 ms, and for 50% of them 160 ms"
    )
    drawn = trials.spec(lengths={"kind": "histogram", "histogram": [[8, 1.0]]})
    assert disturbance(drawn, [report]) == "", "drawn lengths make steps of any duration"


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
            fast, slow, share = modes
            assert slow / fast == pytest.approx(1.4, rel=0.1)
            assert share == pytest.approx(1 / 3, abs=0.1)
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
    assert modes is None or modes[0] * (1 + SPEEDS_APART) <= modes[1] * (1 + 1e-9)
