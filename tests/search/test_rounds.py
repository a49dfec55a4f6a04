"""Rounds: their order, and where a record has got to."""

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.contract import Outcome, Start, TrialResult
from autotune.record.study import Trial
from autotune.search.rounds import Round, Runs, in_turn, seconds_of
from tests.search.scripted import fault, ok
from tests.trials import spec


def trial(number: int, key: str, round_number: int, outcome: Outcome = Outcome.OK) -> Trial:
    made = spec()
    identity = replace(
        made.identity, number=number, candidate_hash=key, confirm_round=round_number
    )
    made = replace(made, identity=identity)
    result: TrialResult = ok(made, 100.0) if outcome is Outcome.OK else fault(made, outcome)
    return Trial(folder=Path(), spec=made, result=result)


def both_twice(n_rounds: int) -> Round | None:
    return Round(keys=("a", "b")) if n_rounds < 2 else None


@pytest.mark.parametrize("n", [2, 5, 12])
def test_within_three_rounds_each_runs_at_different_times(n: int) -> None:
    keys = [f"{i:02}" for i in range(n)]
    orders = [in_turn(keys, number, seed=1) for number in range(3)]
    assert all(sorted(order) == keys for order in orders)
    for key in keys:
        places = {order.index(key) for order in orders}
        assert len(places) == min(3, n)
        assert n < 12 or max(places) - min(places) == 2 * n // 3


def test_a_round_is_over_when_its_trials_are_recorded() -> None:
    trials = [trial(0, "a", 0), trial(1, "b", 0), trial(2, "b", 1)]
    at = Runs.of(trials).progress(both_twice)
    assert (at.number, at.missing, at.is_begun) == (1, ("a",), True)
    at = Runs.of([*trials, trial(3, "a", 1)]).progress(both_twice)
    assert (at.round, at.missing) == (None, ())


def test_what_the_platform_ended_or_disturbed_runs_again_and_what_failed_does_not() -> None:
    lost = [trial(0, "a", 0, Outcome.COMM), trial(1, "b", 0, Outcome.OOM)]
    assert Runs.of(lost).progress(both_twice).missing == ("a",)
    disturbed = Runs.of([trial(0, "a", 0), trial(1, "b", 0)])
    assert disturbed.progress(both_twice, to_repeat={1}).missing == ("b",)


def test_rounds_count_from_the_first_one() -> None:
    trials = [trial(0, "a", 3), trial(1, "a", 8), trial(2, "a", 16)]
    assert Runs.of(trials, 8).trials.keys() == {("a", 0), ("a", 8)}
    assert Runs.of(trials, 8, 8).trials.keys() == {("a", 0)}


def test_warm_and_cold_runs_have_their_own_price() -> None:
    one_s = {Start.WARM: 1.0, Start.COLD: 10.0}
    assert seconds_of({Start.WARM: 3, Start.COLD: 2}, one_s) == 23.0
