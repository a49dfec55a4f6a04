from dataclasses import replace
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("endings", "expected"),
    [
        ((1.0, 2.0), None),
        ((1.0, 2.0, 3.0), StopReason.TRIALS),
        ((1.0, 2.0, None), StopReason.TRIALS),
        ((1.0, Outcome.OOM, Outcome.INVALID), StopReason.TRIALS),
        ((1.0, 2.0, Outcome.CANCELLED), None),
    ],
)
def test_it_goes_on_until_the_number_of_trials(endings: tuple[object, ...], expected: object):
    assert reason(history(*endings)) is expected
    assert reason(history(*endings, role=Role.BASELINE)) is None, "they come on top"


@pytest.mark.parametrize(
    ("used_s", "kept_s", "expected"),
    [
        (90.0, 0.0, None),
        (90.1, 0.0, StopReason.TIME),
        (55.0, 30.0, None),
        (65.0, 30.0, StopReason.TIME),
        (40.0, 1e6, None),  # half at most is kept for the comparison
    ],
)
def test_a_trial_that_would_overrun_is_not_started(used_s: float, kept_s: float, expected: object):
    assert reason(history(1.0), used_s=used_s, kept_s=kept_s, time_s=100.0) is expected


@pytest.mark.parametrize(
    ("endings", "expected"),
    [
        ((1.0, 3.0, 2.0), None),
        ((1.0, 3.0, 2.0, None), None),
        ((1.0, 3.0, 2.0, Outcome.OOM), StopReason.PATIENCE),
        ((1.0, 3.0, 2.0, 4.0), None),
        ((Outcome.OOM, Outcome.OOM), StopReason.PATIENCE),
    ],
)
def test_patience_counts_settled_trials_since_the_best(
    endings: tuple[object, ...], expected: object
):
    assert reason(history(*endings), trials=99, patience=2) is expected


def test_done_are_those_that_nothing_is_owed_to():
    assert n_done(history(1.0, Outcome.OOM, Outcome.LOST, None, Outcome.CANCELLED)) == 2


def test_time_of_trials_at_once_counts_once():
    assert busy_s([(0.0, 10.0), (5.0, 12.0), (6.0, 7.0), (20.0, 21.0)]) == 13.0
