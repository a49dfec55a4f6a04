"""A search ends with its budget, or when another trial is expected to gain less than it costs."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.base.errors import JobError
from autotune.contract import Outcome, Role
from autotune.job.job import DEFAULT_TRIALS
from autotune.record.answer import SearchAnswer
from autotune.record.study import Study, Trial
from autotune.search.base import StopReason
from autotune.search.history import History, busy_s
from autotune.search.objective import Objective
from autotune.search.race import LOSS
from autotune.search.stop import expects_no_gain, n_done, why_no_gain, why_stop
from tests.search.scripted import (
    ENVIRONMENT,
    Notebook,
    ScriptedFleet,
    candidate,
    fault,
    make,
    ok,
    realistic,
    search,
    session_of,
    with_budget,
)
from tests.search.test_sampler import spec_of
from tests.search.test_steering import steering

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
def test_patience_counts_settled_trials_since_the_best(endings, expected):
    assert reason(history(*endings), trials=99, patience=2) is expected


def test_done_are_those_that_nothing_is_owed_to():
    assert n_done(history(1.0, Outcome.OOM, Outcome.LOST, None, Outcome.CANCELLED)) == 2


def test_time_of_trials_at_once_counts_once():
    assert busy_s([(0.0, 10.0), (5.0, 12.0), (6.0, 7.0), (20.0, 21.0)]) == 13.0


TRIAL_S = 36.0
"""Wall-clock seconds of a trial; on two devices 0.02 GPU-hours."""


def searched(study: Study, **job: object) -> tuple[SearchAnswer, Notebook]:
    made = make(**{"trials": 99, **job})
    study.lock()
    notebook = Notebook()
    result = search(
        study, made, fleet=ScriptedFleet(realistic), observer=notebook, steering=steering(made)
    )
    return result, notebook


def n_explored(study: Study) -> int:
    return sum(t.spec.identity.role is Role.SEARCH for t in study.read().trials)


def measured(*rates: float) -> History:
    found = History()
    for number, rate in enumerate(rates):
        spec = spec_of(make(), number, zero__stage=number)
        result = replace(ok(spec, rate), wall_s=TRIAL_S)
        found = found.with_trial(Trial(folder=Path(), spec=spec, result=result))
    return found


def test_the_longer_the_training_the_longer_the_search(tmp_path: Path) -> None:
    counts = []
    for hours in (0.001, 1.0, 1e9):
        study = Study(tmp_path, f"for-{hours:g}")
        result, _ = searched(study, gpu_hours=hours)
        counts.append(n_explored(study))
        # Candidates that are larger than one that ran out of memory are left in any case.
        assert result.stop_reason is StopReason.GAIN
    assert counts == sorted(counts)
    assert counts[0] < counts[1] < counts[2]


def test_without_a_number_of_trials_a_search_ends_once_none_is_expected_to_gain(tmp_path):
    whole, _ = searched(Study(tmp_path, "whole"))
    ended, _ = searched(Study(tmp_path, "ended"), trials=None)
    assert ended.stop_reason is StopReason.SETTLED
    assert n_explored(Study(tmp_path, "ended")) < DEFAULT_TRIALS
    assert ended.best.samples_per_s >= (1 - LOSS) * whole.best.samples_per_s


@pytest.mark.parametrize(
    ("gains", "ends"),
    [
        ([0.001, 0.002, 0.005, 0.1], True),
        ([0.001, 0.002], False),
        ([0.001, 0.1, 0.001, 0.001], False),
        ([0.001, 0.001, math.inf], False),
    ],
)
def test_no_gain_has_to_be_expected_three_times_in_a_row(gains: list[float], ends: bool) -> None:
    assert expects_no_gain(gains) is ends


def test_the_reason_is_said_with_both_figures(tmp_path: Path) -> None:
    _, notebook = searched(Study(tmp_path, "said"), gpu_hours=0.001, price=2.0)
    said = [note for note in notebook.notes if note.startswith("another trial is expected")]
    assert said
    assert re.search(r"save \S+ GPU-hours \(\S+\) of .* costs \S+ GPU-hours \(\S+\)$", said[-1])


@pytest.mark.cases("with_baseline", "gain", "pays")
def test_hours_are_those_at_the_speed_of_the_baseline(with_baseline, gain, pays):
    job = make(gpu_hours=100.0)
    session = session_of(Study(Path(), "scripted"), job)
    baseline = candidate(job, zero__stage=0) if with_baseline else None
    why = why_no_gain(gain, measured(1.0, 4.0), session, baseline=baseline)
    said = "save 0.01 GPU-hours of the training and costs 0.02 GPU-hours"
    assert why == "" if pays else why.endswith(said)
    assert not why_no_gain(gain, History(), session, baseline=None), "nothing was measured"


@pytest.mark.parametrize("key", ["gpu_hours", "price"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "much"])
def test_hours_and_prices_are_above_zero(key: str, value: object) -> None:
    with pytest.raises(JobError, match=key):
        make(**{key: value})


def test_other_objectives_save_no_hours() -> None:
    with pytest.raises(JobError, match=r"gpu_hours: 5: with the objective peak_memory"):
        make(gpu_hours=5, objective="peak_memory")
