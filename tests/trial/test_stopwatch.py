"""What a trial that is cut off leaves behind; timing itself is tested on real engines."""

import dataclasses
import json

import pytest
import torch

from autotune.contract import Measure
from autotune.trial import stopwatch as stopwatch_module
from autotune.trial.engines.deepspeed_live import LiveDeepSpeed
from autotune.trial.reporter import Reporter
from autotune.trial.scripts.train import IGNORED
from autotune.trial.stopwatch import Stopwatch, TokenCounter, TrialDone

MEASURE = Measure(warmup_steps=2, min_steps=6, max_steps=6, target_half_width=0.1, budget_s=1.0)


class Listener:
    """Wants nothing but what a test gives it."""

    def __init__(self, **wants):
        for name in ("on_first_step", "on_warm", "after_step", "on_measured"):
            setattr(self, name, wants.get(name, lambda: None))

    def finale(self):
        return True


def make(folder, *, measure=MEASURE, **wants):
    """A stopwatch of a rank whose trial is in the folder."""
    (folder / "ranks").mkdir()
    reporter = Reporter(folder, 0, 0.0)
    return Stopwatch(reporter, measure, Listener(**wants), is_loss_scaled=False)


def count_all(stopwatch, step_times_s):
    """Feed steps until the trial is done, which it has to be."""

    def feed():
        for step_time_s in step_times_s:
            stopwatch._count(step_time_s)

    with pytest.raises(TrialDone):
        feed()


def test_the_first_step_is_on_disk_before_the_second_begins(tmp_path):
    read_back = []
    stopwatch = make(tmp_path, on_first_step=lambda: read_back.append(True))
    stopwatch._count(0.1)

    assert read_back == [True]
    report = json.loads((tmp_path / "ranks" / "00.json").read_text())
    assert report["warmup_step_times_s"] == [0.1]


def test_it_says_when_warming_up_is_over_and_only_then(tmp_path):
    warm_after = []
    stopwatch = make(tmp_path, on_warm=lambda: warm_after.append(stopwatch._applied))
    for _ in range(5):
        stopwatch._count(0.1)

    assert warm_after == [MEASURE.warmup_steps]


def test_what_the_series_shows_to_be_warm_up_is_thrown_away_and_kept_on_record(tmp_path):
    measured_after = []
    stopwatch = make(
        tmp_path,
        measure=dataclasses.replace(MEASURE, max_steps=30, budget_s=30.0, target_half_width=1e-9),
        on_measured=lambda: measured_after.append(stopwatch._applied),
    )
    slow, steady = [0.5] * 4, [0.1, 0.101, 0.099, 0.1, 0.101] * 5
    count_all(stopwatch, [9.0, 8.0, *slow, *steady, 0.1])

    report = stopwatch._reporter.report
    assert measured_after == [32]
    assert report.warmup_step_times_s == [9.0, 8.0, *slow]
    assert report.step_times_s == [*steady, 0.1]
    assert (report.is_steady, report.stopped_early) == (True, False)


def test_tokens_are_those_of_the_steps_that_are_kept():
    counter = TokenCounter(torch.nn.Identity())
    for n_tokens in (9, 5, 6):
        counter.restart()
        labels = torch.tensor([[1] * n_tokens + [IGNORED] * (10 - n_tokens)])
        counter._see(torch.nn.Identity(), (), {"labels": labels})
        counter.add()
    assert counter.since(1) == (11, 20)


def test_a_trial_that_stops_early_says_so(tmp_path):
    losing = dataclasses.replace(
        MEASURE, losing_step_time_s=0.05, max_steps=100, budget_s=99.0, target_half_width=1e-9
    )
    stopwatch = make(tmp_path, measure=losing)
    count_all(stopwatch, [0.1, 0.101, 0.102] * 15)
    assert stopwatch._reporter.report.stopped_early
    assert len(stopwatch._reporter.report.step_times_s) >= MEASURE.min_steps


class Engine:
    """Counts nothing and reduces nothing."""

    def backward(self, loss, scale_wrt_gas=True):
        return loss

    def step(self):
        pass


@pytest.mark.parametrize(("asked", "loss"), [({}, 2.0), ({"scale_wrt_gas": False}, 4.0)])
def test_a_steps_loss_is_the_one_whose_gradient_it_follows(tmp_path, monkeypatch, asked, loss):
    """Trainer and accelerate divide by the accumulation: what they hand over adds up."""
    monkeypatch.setattr(stopwatch_module.dist, "all_reduce", lambda *_, **__: None)
    stopwatch, engine = make(tmp_path), Engine()
    stopwatch.attach(LiveDeepSpeed(engine))
    for of_micro_batch in (1.0, 3.0):
        engine.backward(torch.tensor(of_micro_batch), **asked)
    stopwatch._agree(0.1, was_applied=True, device="cpu")
    assert stopwatch._reporter.report.losses == [loss]
