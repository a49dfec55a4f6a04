"""The interval that is reported: by hand, and whether it holds where the truth is known."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.base.student_t import t_quantile
from autotune.contract import Role, TrialResult
from autotune.record.spread import PRIOR_DEGREES, PRIOR_DEVIATION, Spread, is_figure, spread_of
from autotune.record.study import Trial
from tests import trials
from tests.search.scripted import ok
from tests.trials import changed


def run(
    number: int,
    samples_per_s: float,
    *,
    candidate: str = "a",
    steps: float = 0.0,
    role: Role = Role.SEARCH,
    **changes,
) -> Trial:
    """A trial; `steps` is the standard error of its median, in logarithms."""
    spec = trials.spec(number, role=role)
    spec = changed(spec, candidate_hash=candidate)
    reach = math.exp(1.96 * steps)
    interval = {
        "samples_per_s_low": samples_per_s / reach,
        "samples_per_s_high": samples_per_s * reach,
    }
    result = replace(ok(spec, samples_per_s), **interval, **changes)
    return Trial(folder=Path(), spec=spec, result=result)


def result_of(trial: Trial) -> TrialResult:
    assert trial.result is not None
    return trial.result


def test_without_repeats_it_is_what_the_benchmark_measured():
    assert spread_of([run(0, 100.0), run(1, 90.0, candidate="b")]) == Spread(
        variance=pytest.approx(PRIOR_DEVIATION**2), degrees=PRIOR_DEGREES
    )
    assert not Spread().knows_repeats


def test_repeats_are_pooled_and_weighed_with_the_prior():
    own = 0.01
    rates = {"a": [0.0, 0.1], "b": [0.0, 0.05, -0.05]}
    found = spread_of(
        run(n, math.exp(x), candidate=key, steps=own)
        for key, logs in rates.items()
        for n, x in enumerate(logs)
    )
    squares = 0.1**2 / 2 + 2 * 0.05**2 - 3 * own**2
    prior = PRIOR_DEGREES * PRIOR_DEVIATION**2
    assert found.degrees == PRIOR_DEGREES + 3
    assert found.variance == pytest.approx((prior + squares) / (PRIOR_DEGREES + 3))
    assert found.knows_repeats


def test_steady_repeats_narrow_it_and_never_to_nothing():
    equal = spread_of(run(n, 100.0, steps=0.05) for n in range(4))
    assert 0 < equal.variance < PRIOR_DEVIATION**2


@pytest.mark.parametrize("changes", [{"role": Role.CONFIRM}, {"candidate": "b"}])
def test_what_is_no_repeat(changes):
    """Runs of another candidate or stage (the search's own may have been lucky) are no repeats."""
    assert not spread_of([run(0, 100.0), run(1, 200.0, **changes)]).knows_repeats
    assert spread_of([run(0, 100.0), run(1, 200.0)]).knows_repeats


def test_a_disturbed_run_that_was_repeated_is_left_out_and_one_that_counts_is_not():
    disturbed = run(0, 50.0, disturbed="other load")
    repeat = run(1, 100.0)
    repeat = replace(repeat, spec=changed(repeat.spec, repeat_of=0))
    assert not spread_of([disturbed, repeat]).knows_repeats
    assert spread_of([disturbed, run(1, 100.0)]).variance > PRIOR_DEVIATION**2


def test_more_trials_that_ran_once_move_no_interval():
    """Table, report and page are made of different selections of one record."""
    repeated = [run(n, 100.0 + n, steps=0.02) for n in range(5)]
    singles = [run(9 + n, 90.0, candidate=f"c{n}", steps=0.2) for n in range(9)]
    assert spread_of([*repeated, *singles]) == spread_of(repeated)


def test_interval_by_hand():
    spread = Spread(variance=0.03**2, degrees=10)
    one = spread.interval([result_of(run(0, 50.0, steps=0.04))])
    half_width = t_quantile(0.975, 10) * 0.05 * math.sqrt(2)
    assert one.rate == pytest.approx(50.0)
    assert math.log(one.high / 50.0) == pytest.approx(half_width)
    assert math.log(50.0 / one.low) == pytest.approx(half_width)
    runs = [result_of(run(n, rate, steps=0.04)) for n, rate in enumerate((40.0, 50.0, 62.5))]
    several = spread.interval(runs)
    half_width = t_quantile(0.975, 10) * 0.05 * math.sqrt(1 + 1 / 3)
    assert several.rate == pytest.approx(50.0)
    assert math.log(several.high / 50.0) == pytest.approx(half_width)


@pytest.mark.parametrize("damage", [None, 0.0, -3.0, math.inf, math.nan])
def test_a_damaged_rate_is_no_figure(damage: float | None):
    sound = [run(n, 100.0) for n in range(2)]
    damaged = [
        replace(trial, result=replace(result_of(trial), samples_per_s=damage)) for trial in sound
    ]
    assert not is_figure(result_of(damaged[0]))
    assert not spread_of(damaged).knows_repeats
    odd = replace(result_of(sound[0]), samples_per_s_low=damage)
    assert Spread().interval([odd]).rate == pytest.approx(100.0)
