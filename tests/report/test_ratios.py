import dataclasses
import math

import pytest

from autotune.contract import Role, TrialResult, TrialSpec
from autotune.record import Trial
from autotune.report.ratios import Basis, describe_ratio, ratio_of, telling_runs
from autotune.student import t_quantile
from tests import trials
from tests.search.scripted import ok


def run(samples_per_s: float) -> TrialResult:
    return ok(trials.spec(), samples_per_s)


def trial(role: Role, samples_per_s: float, tmp_path, confirm_round: int | None = None) -> Trial:
    spec: TrialSpec = trials.spec(role=role, confirm_round=confirm_round)
    return Trial(folder=tmp_path, spec=spec, result=ok(spec, samples_per_s))


def test_one_run_each_combines_the_intervals_of_the_steps():
    ratio = ratio_of([run(120.0)], [run(100.0)])
    assert ratio.basis is Basis.STEPS
    assert ratio.ratio == pytest.approx(1.2)
    # Both runs reach 1% below and 1% above their rate.
    below = math.hypot(math.log(1 / 0.99), math.log(1.01))
    assert ratio.low == pytest.approx(1.2 * math.exp(-below))
    assert ratio.is_told_apart
    assert "how runs differ is not in it" in describe_ratio(ratio)


def test_several_runs_give_students_interval():
    ours, theirs = [run(r) for r in (110.0, 120.0, 130.0)], [run(100.0)]
    ratio = ratio_of(ours, theirs)
    logs = [math.log(r) for r in (110.0, 120.0, 130.0)]
    mean = sum(logs) / 3
    error = math.sqrt(sum((x - mean) ** 2 for x in logs) / 2 * (1 / 3 + 1))
    half = t_quantile(0.975, 2) * error
    assert ratio.basis is Basis.RUNS
    assert ratio.n_runs == (3, 1)
    assert math.log(ratio.high / ratio.ratio) == pytest.approx(half)
    assert not ratio.is_told_apart


def test_the_runs_of_the_comparison_come_before_the_search_s_own(tmp_path):
    found = [trial(Role.SEARCH, 999.0, tmp_path), trial(Role.CONFIRM, 100.0, tmp_path)]
    assert [r.samples_per_s for r in telling_runs(found)] == [100.0]
    assert [r.samples_per_s for r in telling_runs(found[:1])] == [999.0]
    failed = dataclasses.replace(found[0], result=None)
    assert telling_runs([failed]) == []


def test_runs_of_an_earlier_comparison_are_left_out(tmp_path):
    found = [trial(Role.CONFIRM, 100.0 + n, tmp_path, confirm_round=n) for n in range(5)]
    assert [r.samples_per_s for r in telling_runs(found)] == [103.0, 104.0]
