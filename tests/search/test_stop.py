from dataclasses import replace
from pathlib import Path

from autotune.contract import Outcome, Role
from autotune.record.study import Trial
from autotune.search.base import StopReason
from autotune.search.history import History, busy_s
from autotune.search.objective import Objective
from autotune.search.stop import n_done, why_stop
from tests.search.scripted import ENVIRONMENT, fault, make, ok, with_budget
from tests.search.test_sampler import spec_of

JOB = make(trials=3)
OBJECTIVE = Objective.of(JOB, ENVIRONMENT)


def history(*endings: object, role: Role = Role.SEARCH) -> History:
    """Rates, outcomes, or None for a trial in flight; each a candidate of its own, of 10 s."""
    found = History()
    for number, ending in enumerate(endings):
        spec = spec_of(JOB, number, role, zero__stage=number % 4, micro_batch=2 ** (number // 4))
        result = None
        if isinstance(ending, Outcome):
            result = fault(spec, ending)
        elif isinstance(ending, float):
            result = ok(spec, ending)
        if result is not None:
            result = replace(result, started_at_s=100.0 * number, wall_s=10.0)
        found = found.with_trial(Trial(folder=Path(), spec=spec, result=result))
    return found


def reason(found: History, *, used_s: float = 0.0, kept_s: float = 0.0, **budget: object):
    job = with_budget(JOB, **budget)
    return why_stop(found, OBJECTIVE, job.budget, used_s=used_s, kept_s=kept_s)


def test_goes_on_until_the_number_of_trials():
    assert reason(history(1.0, 2.0)) is None
    assert reason(history(1.0, 2.0, 3.0)) is StopReason.TRIALS


def test_trials_in_flight_count_as_started():
    assert reason(history(1.0, 2.0, None)) is StopReason.TRIALS


def test_config_faults_count_and_cancelled_trials_do_not():
    assert reason(history(1.0, Outcome.OOM, Outcome.INVALID)) is StopReason.TRIALS
    assert reason(history(1.0, 2.0, Outcome.CANCELLED)) is None


def test_baseline_trials_come_on_top():
    assert reason(history(1.0, 2.0, 3.0, role=Role.BASELINE)) is None


def test_done_are_those_that_nothing_is_owed_to():
    assert n_done(history(1.0, Outcome.OOM, Outcome.LOST, None, Outcome.CANCELLED)) == 2


def test_a_trial_that_would_overrun_is_not_started():
    found = history(1.0)
    assert reason(found, used_s=90.0, time_s=100.0) is None
    assert reason(found, used_s=90.1, time_s=100.0) is StopReason.TIME


def test_time_is_kept_for_the_comparison_but_half_at_most():
    found = history(1.0)
    assert reason(found, used_s=55.0, kept_s=30.0, time_s=100.0) is None
    assert reason(found, used_s=65.0, kept_s=30.0, time_s=100.0) is StopReason.TIME
    assert reason(found, used_s=40.0, kept_s=1e6, time_s=100.0) is None


def test_patience_counts_settled_trials_since_the_best():
    many = {"trials": 99, "patience": 2}
    assert reason(history(1.0, 3.0, 2.0), **many) is None
    assert reason(history(1.0, 3.0, 2.0, None), **many) is None
    assert reason(history(1.0, 3.0, 2.0, Outcome.OOM), **many) is StopReason.PATIENCE
    assert reason(history(1.0, 3.0, 2.0, 4.0), **many) is None


def test_patience_ends_a_search_in_which_nothing_runs():
    found = history(Outcome.OOM, Outcome.OOM)
    assert reason(found, trials=99, patience=2) is StopReason.PATIENCE


def test_time_of_trials_at_once_counts_once():
    assert busy_s([(0.0, 10.0), (5.0, 12.0), (6.0, 7.0), (20.0, 21.0)]) == 13.0
