import math

import numpy
import pytest

from autotune.base.student_t import expected_loss, upper_probability
from autotune.contract import Start
from autotune.search.race import MISSED, WARM, Logs, Race, Rules

KEYS = ("a", "b", "c", "start")


def race_of(logs: Logs, n_rounds: int, rules: Rules = WARM, **changes: object) -> Race:
    peaks = {key: float(at) for at, key in enumerate(logs)}
    known = {"peaks": peaks, "baseline": "start", "logs": logs, "n_rounds": n_rounds}
    return Race(**{**known, "rules": rules, **changes})


def raced(truth: dict[str, float], draw: numpy.random.Generator, deviation: float) -> Race:
    """A whole race."""
    logs: dict[str, dict[int, float]] = {key: {} for key in truth}
    confirmed: set[str] = set()
    for number in range(20):
        race = race_of(logs, number, confirmed=confirmed)
        asked = race.next_round()
        if asked is None:
            return race
        slower = draw.normal(0, 0.03)
        for key in asked.keys:
            logs[key][number] = truth[key] + slower + draw.normal(0, deviation)
        confirmed |= set(asked.keys) if asked.start is Start.COLD else set()
    raise AssertionError("it does not end")


def test_losers_drop_out_and_the_best_and_the_baseline_are_confirmed_cold():
    race = raced({"a": 0.5, "b": 0.1, "c": 0.0, "start": 0.2}, numpy.random.default_rng(0), 0.005)
    assert race.best == "a"
    assert race.confirmed == {"a", "start"}
    assert max(len(race.logs[key]) for key in "bc") < len(race.logs["a"])


def test_the_smaller_memory_wins_among_equals():
    off = {"a": 0.001, "b": 0.0, "start": -0.5}
    logs = {key: {n: log + 0.001 * (n % 2) for n in range(9)} for key, log in off.items()}
    assert race_of(logs, 9, peaks={"a": 2.0, "b": 1.0, "start": 0.0}).standing == ("b",)


def test_left_behind_are_those_that_dropped_out_as_surely_slower():
    off = {"a": 0.0, "b": -0.2, "c": 0.0, "start": -0.5}
    logs = {key: {n: log for n in range(5)} for key, log in off.items()}
    logs["b"], logs["c"] = {0: -0.2}, {0: 0.0, 1: 0.0}
    race = race_of(logs, 5)
    assert race.left_behind("abc") == {"b"}, "one stopped, and the baseline runs on"
    assert race.left_behind("b") == set(), "whoever beat it is not handed out"
    assert race_of({**logs, "b": {n: -0.2 for n in range(5)}}, 5).left_behind("abc") == set()


def test_one_slow_run_does_not_throw_out_a_candidate_that_its_own_trial_speaks_for():
    logs = {"a": {0: 0.0}, "b": {0: -0.2}, "c": {0: 0.0}, "start": {0: -0.5}}
    own = {"a": 0.0, "b": 0.03, "c": 0.0, "start": -0.5}
    assert "b" in race_of(logs, 1, peaks=dict.fromkeys(own, 1.0), trial_logs=own).standing


def test_the_interval_pays_for_each_rival():
    draw = numpy.random.default_rng(1)
    logs = {key: {n: draw.normal(0, 0.02) for n in range(5)} for key in KEYS}
    race = race_of(logs, 5)
    gain = race.gain("a", "start")
    alone = race.blocks.gain({"a": 1.0, "start": -1.0}, missed=MISSED)
    assert gain.high / gain.ratio > alone.high / alone.ratio > 1.0
    one = race.gain("a", "a")
    assert one.ratio == 1.0
    assert one.low < 1.0 < one.high


@pytest.mark.parametrize("gain", [0.0, 0.1])
def test_the_interval_holds_whenever_the_race_ends(gain: float):
    draw, missed, n = numpy.random.default_rng(3), 0, 150
    for _ in range(n):
        race = raced({"a": gain, "b": gain, "c": gain - 0.02, "start": 0.0}, draw, 0.02)
        gained = race.gain(race.best, "start")
        true = math.exp({"a": gain, "b": gain, "c": gain - 0.02, "start": 0.0}[race.best])
        missed += not gained.low <= true <= gained.high
    # Two standard errors of a count above 5%.
    assert missed <= 0.05 * n + 2 * math.sqrt(0.05 * n)


def test_a_race_without_a_baseline_or_a_rival_ends():
    alone = race_of({"a": {}}, 0, baseline=None)
    assert alone.next_round() is not None
    over = race_of({"a": {0: 0.0, 1: 0.0}}, 2, baseline=None, confirmed={"a"})
    assert over.next_round() is None


def test_losses_by_hand():
    """With many degrees of freedom they are the normal distribution's: f(0) = 0.3989."""
    assert expected_loss(0.0, 10**6) == pytest.approx(0.398942, abs=1e-5)
    assert upper_probability(2.015048, 5) == pytest.approx(0.05, abs=1e-6)
    assert upper_probability(-2.015048, 5) == pytest.approx(0.95, abs=1e-6)
    with pytest.raises(ValueError, match="degrees"):
        expected_loss(0.0, 1)
