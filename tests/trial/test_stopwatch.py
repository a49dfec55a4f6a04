"""What a rank does around its steps, and what a trial that is cut off leaves behind; timing itself
is tested on real engines."""

import dataclasses
import json
import os
from types import SimpleNamespace

import pytest
import torch

from autotune.contract import Measure
from autotune.trial import stopwatch as stopwatch_module
from autotune.trial.engines.deepspeed_live import LiveDeepSpeed
from autotune.trial.faults import ReadBackError
from autotune.trial.guest.intake import Intake
from autotune.trial.scripts.train import IGNORED
from autotune.trial.stopwatch import Stopwatch
from autotune.trial.variables import CORES_ENV
from tests import trials
from tests.trial.fake_rank import Ended, fake_rank

MEASURE = Measure(warmup_steps=2, min_steps=6, max_steps=6, target_half_width=0.1, budget_s=1.0)


class Engine:
    """Counts nothing and reduces nothing."""

    def backward(self, loss, scale_wrt_gas=True):
        return loss

    def step(self):
        pass


def make(folder, *, measure=MEASURE, read_back=lambda engine, expected: {}, **asked):
    """A stopwatch of a rank whose trial is in the folder."""
    spec = trials.spec(**{"expected": {}, **asked})
    rank = fake_rank(folder, dataclasses.replace(spec, measure=measure))
    driver = SimpleNamespace(read_back=read_back)
    return Stopwatch(rank, driver, LiveDeepSpeed(Engine()), is_loss_scaled=False)


class NoPass:
    """A diagnostic pass that nobody may begin."""

    def begin(self):
        raise AssertionError("a trial that has lost is not watched any longer")


def count(stopwatch, *step_times_s):
    for step_time_s in step_times_s:
        stopwatch._count(step_time_s)


def count_all(stopwatch, step_times_s):
    """Feed steps until the trial is done, which it has to be."""
    with pytest.raises(Ended):
        count(stopwatch, *step_times_s)


def test_the_first_step_is_on_disk_before_the_second_begins(tmp_path):
    stopwatch = make(tmp_path, expected={"stage": 2}, read_back=lambda *_: {"stage": 2})
    count(stopwatch, 0.1)
    report = json.loads((tmp_path / "ranks" / "00.json").read_text())
    assert report["warmup_step_times_s"] == [0.1]
    assert (report["read_back"], report["differences"]) == ({"stage": 2}, [])


def test_an_engine_that_runs_something_else_ends_the_trial_at_its_first_step(tmp_path):
    stopwatch = make(tmp_path, expected={"stage": 2}, read_back=lambda *_: {"stage": 1})
    with pytest.raises(ReadBackError, match="stage: asked 2, the engine runs 1"):
        count(stopwatch, 0.1)


def test_the_meter_settles_when_warming_up_is_over_and_only_then(tmp_path):
    warm_after = []
    stopwatch = make(tmp_path)
    stopwatch._rank.meter.settle = lambda: warm_after.append(stopwatch._applied)
    count(stopwatch, *[0.1] * 5)
    assert warm_after == [MEASURE.warmup_steps]


def test_what_the_series_shows_to_be_warm_up_is_thrown_away_and_kept_on_record(tmp_path):
    long = dataclasses.replace(MEASURE, max_steps=30, budget_s=30.0, target_half_width=1e-9)
    stopwatch = make(tmp_path, measure=long)
    slow, steady = [0.5] * 4, [0.1, 0.101, 0.099, 0.1, 0.101] * 5
    count_all(stopwatch, [9.0, 8.0, *slow, *steady, 0.1])

    report = stopwatch._rank.reporter.report
    assert stopwatch._applied == 32
    assert report.warmup_step_times_s == [9.0, 8.0, *slow]
    assert report.step_times_s == [*steady, 0.1]
    assert (report.is_steady, report.stopped_early) == (True, False)


def test_tokens_are_those_of_the_steps_that_are_kept():
    counter = Intake(torch.nn.Identity(), by_labels=True)
    for n_tokens in (9, 5, 6):
        counter.restart()
        labels = torch.tensor([[1] * n_tokens + [IGNORED] * (10 - n_tokens)])
        inputs = {"input_ids": torch.zeros_like(labels), "labels": labels}
        counter.see(torch.nn.Identity(), (), inputs)
        counter.add()
    assert counter.since(1) == (11, 20)


def test_a_trial_that_stops_early_says_so(tmp_path):
    losing = dataclasses.replace(
        MEASURE, losing_step_time_s=0.05, max_steps=100, budget_s=99.0, target_half_width=1e-9
    )
    stopwatch = make(tmp_path, measure=losing)
    stopwatch._rank.diagnostic_pass = NoPass()
    count_all(stopwatch, [0.09, 0.091, 0.092] * 15)
    report = stopwatch._rank.reporter.report
    assert report.stopped_early
    assert len(report.step_times_s) >= MEASURE.min_steps


@pytest.mark.parametrize(("asked", "loss"), [({}, 2.0), ({"scale_wrt_gas": False}, 4.0)])
def test_a_steps_loss_is_the_one_whose_gradient_it_follows(tmp_path, monkeypatch, asked, loss):
    """Trainer and accelerate divide by the accumulation: what they hand over adds up."""
    monkeypatch.setattr(stopwatch_module.dist, "all_reduce", lambda *_, **__: None)
    stopwatch = make(tmp_path)
    stopwatch.attach()
    stopwatch._live.was_applied = lambda: True
    for of_micro_batch in (1.0, 3.0):
        stopwatch._live.engine.backward(torch.tensor(of_micro_batch), **asked)
    stopwatch._agree(*stopwatch._seen())
    assert stopwatch._rank.reporter.report.losses == [loss]


@pytest.mark.parametrize("accelerator", ["cpu", "cuda"])
def test_only_cpu_ranks_are_watched_bound_or_not(tmp_path, monkeypatch, accelerator):
    monkeypatch.setenv(CORES_ENV, "0")
    stopwatch = make(tmp_path, accelerator=accelerator)
    stopwatch._begin_measuring()
    stopwatch._course.add(0.1)
    stopwatch._end_measuring()
    report = stopwatch._rank.reporter.report
    watched = report.surroundings and report.surroundings.cores
    assert watched == (sorted(os.sched_getaffinity(0)) if accelerator == "cpu" else None)
    at_the_end = (report.cpu_s, report.measured_s)
    assert report.measured_s > 0
    with pytest.raises(Ended):
        stopwatch._finale()
    assert (report.cpu_s, report.measured_s) == at_the_end
