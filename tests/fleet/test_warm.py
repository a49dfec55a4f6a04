"""Warm starts: each trial has processes of its own, and nothing of one reaches the next."""

import os
import signal
import time
from dataclasses import replace

import psutil
import pytest

from autotune.contract import Outcome
from autotune.fleet.local import LocalFleet
from autotune.fleet.processes import processes_of
from autotune.record import Study
from tests.trials import CPU, QUICK, ds_config, files, spec

pytestmark = pytest.mark.real

EIGHT = replace(QUICK, min_steps=8)
"""As many steps in each trial, so that their losses compare."""


@pytest.fixture
def study(tmp_path):
    study = Study(tmp_path / "results", "test")
    study.lock()
    yield study
    assert processes_of(study.folder) == [], "a trial left processes behind"


@pytest.fixture
def fleet():
    fleet = LocalFleet(CPU, world=2)
    yield fleet
    fleet.close()
    assert templates() == [], "a template outlives its fleet"


def templates() -> list[psutil.Process]:
    """The templates of this process; the trials forked from them are their children."""
    children = psutil.Process().children()
    return [c for c in children if "autotune.trial.template" in c.cmdline()]


def submit(fleet, study, trial_spec):
    return fleet.submit(trial_spec, study.write_spec(trial_spec, files(ds_config())))


def run(fleet, study, number, start="warm", **changes):
    return submit(fleet, study, spec(number, start=start, measure=EIGHT, **changes)).wait()


def test_what_goes_wrong_in_a_trial_does_not_reach_the_next(fleet, study):
    before = run(fleet, study, 0)
    broken = [
        run(fleet, study, 1, factory="hoards", memory_limit_bytes=200 * 2**20),
        run(fleet, study, 2, factory="is_killed"),
        run(fleet, study, 3, factory="hangs", timeout_s=8.0),
    ]
    after = run(fleet, study, 4)

    assert [r.outcome for r in broken] == [Outcome.OOM, Outcome.CRASH, Outcome.TIMEOUT]
    assert {before.outcome, after.outcome} == {Outcome.OK}
    assert {r.start for r in (before, *broken, after)} == {"warm"}
    assert (before.loss_first, before.loss_last) == (after.loss_first, after.loss_last)
    assert after.peak_memory_bytes == pytest.approx(before.peak_memory_bytes, rel=0.02)
    assert len(templates()) == 1
    assert templates()[0].num_threads() == 1


def test_warm_and_cold_trials_train_alike(fleet, study):
    warm = run(fleet, study, 0)
    cold = run(fleet, study, 1, start="cold")

    assert (warm.start, cold.start) == ("warm", "cold")
    assert (warm.loss_first, warm.loss_last) == (cold.loss_first, cold.loss_last)
    assert warm.read_back == cold.read_back
    assert warm.environment == cold.environment
    assert warm.peak_memory_bytes == pytest.approx(cold.peak_memory_bytes, rel=0.02)


def test_an_environment_has_a_template_of_its_own(fleet, study):
    plain = run(fleet, study, 0)
    kept = {"MALLOC_TRIM_THRESHOLD_": "-1"}
    changed = run(fleet, study, 1, environment=kept)

    assert {plain.outcome, changed.outcome} == {Outcome.OK}
    assert "MALLOC_TRIM_THRESHOLD_" not in plain.environment
    assert changed.environment.items() >= kept.items()
    assert len(templates()) == 2


def test_a_killed_template_takes_its_trial_along_and_another_takes_its_place(fleet, study):
    handle = submit(fleet, study, spec(0, factory="hangs", start="warm"))
    _wait_until(lambda: len(processes_of(study.folder)) >= 3, "launcher and two ranks are up")
    (template,) = templates()
    os.kill(template.pid, signal.SIGKILL)
    lost = handle.wait()
    _wait_until(lambda: processes_of(study.folder) == [], "the trial ends with its template")

    assert lost.outcome.is_platform_fault, lost.evidence
    again = run(fleet, study, 1)
    assert (again.outcome, again.start) == (Outcome.OK, "warm")


def test_a_template_that_cannot_import_is_said_and_not_tried_again(fleet, study, tmp_path):
    (tmp_path / "deepspeed.py").write_text("raise ImportError('half installed')")
    failed = run(fleet, study, 0, environment={"PYTHONPATH": str(tmp_path)})
    assert failed.outcome is Outcome.LAUNCH
    assert "half installed" in failed.evidence

    after = run(fleet, study, 1)
    assert (after.outcome, after.start) == (Outcome.OK, "cold")


def test_a_trial_is_cancelled_before_its_template_is_ready(fleet, study):
    handle = submit(fleet, study, spec(0, start="warm"))
    handle.cancel()

    assert handle.wait().outcome is Outcome.CANCELLED
    assert processes_of(study.folder) == []
    assert templates() == []


def _wait_until(condition, what, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
