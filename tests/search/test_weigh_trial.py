"""A search ends when another trial is expected to gain nothing, or less than it costs."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.base.errors import JobError
from autotune.contract import Role
from autotune.job.job import DEFAULT_TRIALS
from autotune.record.answer import SearchAnswer
from autotune.record.study import Study, Trial
from autotune.search.base import StopReason
from autotune.search.history import History
from autotune.search.race import LOSS
from autotune.search.stop import expects_no_gain, why_no_gain
from tests.search.scripted import (
    Notebook,
    ScriptedFleet,
    candidate,
    make,
    ok,
    realistic,
    search,
    session_of,
)
from tests.search.test_sampler import spec_of
from tests.search.test_steering import steering

TRIAL_S = 36.0
"""Wall-clock seconds of a trial; on two devices 0.02 GPU-hours."""


def searched(study: Study, **job: object) -> tuple[SearchAnswer, Notebook]:
    made = make(**{"trials": 99, **job})
    study.lock()
    notebook = Notebook()
    result = search(
        study,
        made,
        fleet=ScriptedFleet(realistic),
        observer=notebook,
        steering=steering(made),
    )
    return result, notebook


def n_explored(study: Study) -> int:
    return sum(t.spec.identity.role is Role.SEARCH for t in study.read().trials)


def history(*rates: float) -> History:
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


def test_without_a_number_of_trials_a_search_ends_once_none_is_expected_to_gain(
    tmp_path: Path,
) -> None:
    whole, _ = searched(Study(tmp_path, "whole"))
    ended, _ = searched(Study(tmp_path, "ended"), trials=None)
    assert ended.stop_reason is StopReason.SETTLED
    assert n_explored(Study(tmp_path, "ended")) < DEFAULT_TRIALS
    assert whole.best is not None
    assert ended.best is not None
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


@pytest.mark.parametrize(
    ("with_baseline", "gain", "pays"),
    # The best is four times as fast as the baseline, so 25 of its 100 hours are left.
    [(True, 0.0004, False), (True, 0.0008, True), (False, 0.0001, False), (False, 0.0002, True)],
)
def test_hours_are_those_at_the_speed_of_the_baseline(
    with_baseline: bool, gain: float, pays: bool
) -> None:
    job = make(gpu_hours=100.0)
    session = session_of(Study(Path(), "scripted"), job)
    baseline = candidate(job, zero__stage=0) if with_baseline else None
    why = why_no_gain(gain, history(1.0, 4.0), session, baseline=baseline)
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
