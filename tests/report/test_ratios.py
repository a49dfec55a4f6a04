import dataclasses
import math

import pytest

from autotune.base.student_t import t_quantile
from autotune.contract import Role, TrialResult, TrialSpec
from autotune.record.spread import Spread
from autotune.record.study import Trial
from autotune.report.results.ratios import Basis, Ratio, ratio_of, telling_runs
from autotune.search.history import CandidateTrials
from autotune.search.race import BLOCK
from autotune.space.candidate import Candidate
from tests import trials
from tests.report.told import macro
from tests.search.scripted import ok


def run(samples_per_s: float) -> TrialResult:
    return ok(trials.spec(), samples_per_s)


def trial(role: Role, samples_per_s: float, tmp_path, confirm_round: int | None = None) -> Trial:
    spec: TrialSpec = trials.spec(role=role, confirm_round=confirm_round)
    return Trial(folder=tmp_path, spec=spec, result=ok(spec, samples_per_s))


STEPS = (math.log(1.01 / 0.99) / 2 / 1.96) ** 2
"""Variance of a scripted run's median: it reaches 1% below and 1% above its rate."""


def test_an_interval_that_says_nothing_is_not_spelled():
    ratio = Ratio(ratio=1.5, low=1e-7, high=2e7, basis=Basis.RUNS, n_runs=(2, 2))
    said = "1.50x (runs differ too much for an interval)"
    assert macro("ratio", ratio) == f"{said} from 2 and 2 runs"


def test_one_run_each_differs_by_what_is_assumed_of_runs():
    assumed = Spread()
    ratio = ratio_of([run(120.0)], [run(100.0)], spreads=(assumed, assumed))
    assert ratio.basis is Basis.ASSUMED
    assert ratio.ratio == pytest.approx(1.2)
    error = math.sqrt(2 * (assumed.variance + STEPS))
    half_width = t_quantile(0.975, assumed.degrees) * error
    assert ratio.low == pytest.approx(1.2 * math.exp(-half_width))
    assert ratio.is_told_apart
    assert "no two runs of one candidate" in macro("ratio", ratio)


def test_several_runs_know_more_than_one():
    ours, theirs = [run(110.0 * x) for x in (0.99, 1.0, 1.01)], [run(100.0)]
    spreads = (Spread(variance=0.03**2, degrees=20), Spread(variance=0.05**2, degrees=30))
    ratio = ratio_of(ours, theirs, spreads=spreads)
    error = math.sqrt((0.03**2 + STEPS) / 3 + 0.05**2 + STEPS)
    assert ratio.basis is Basis.RUNS
    assert ratio.n_runs == (3, 1)
    assert math.log(ratio.high / ratio.ratio) == pytest.approx(t_quantile(0.975, 20) * error)
    assert not ratio.is_told_apart


SEARCHED, LAST = (None, 999.0), BLOCK + 1


@pytest.mark.parametrize(
    ("runs", "telling"),
    [
        ([SEARCHED], [999.0]),
        ([(None, None)], []),
        ([SEARCHED, (0, 100.0), (1, 101.0)], [100.0, 101.0]),
        # One that was cut short after a round has said nothing: all runs count.
        ([SEARCHED, (0, 100.0)], [999.0, 100.0]),
        ([SEARCHED, (0, 100.0), (BLOCK, None)], [999.0, 100.0]),
        # An earlier comparison is left out.
        ([*((n, 100.0 + n) for n in range(BLOCK + 2))], [100.0 + BLOCK, 100.0 + LAST]),
    ],
)
def test_the_last_comparison_tells_before_the_search_s_own_trial(runs, telling, tmp_path):
    found = []
    for number, rate in runs:
        role = Role.SEARCH if number is None else Role.CONFIRM
        made = trial(role, rate or 1.0, tmp_path, confirm_round=number)
        found.append(made if rate else dataclasses.replace(made, result=None))
    tried = CandidateTrials(
        candidate=Candidate.of({}, world=2, global_batch=8), trials=tuple(found)
    )
    assert [run.samples_per_s for run in telling_runs(tried)] == telling
