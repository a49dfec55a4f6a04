"""The diagnostic pass on an engine of one rank that is none of DeepSpeed's; on real ones it is
tested with their trials."""

import json
import os

import pytest
import torch
import torch.distributed as dist

from autotune.contract import Phase, RankReport
from autotune.trial import diagnose
from autotune.trial.diagnose import DiagnosticPass
from autotune.trial.engines.deepspeed_live import LiveDeepSpeed
from tests import trials
from tests.report.diagnosed import split_of
from tests.trial.fake_rank import Ended, fake_rank


class Engine:
    """Two micro-batches make a step."""

    def __init__(self):
        self.layer = torch.nn.Linear(64, 64)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=0.1)
        self.n_backwards = 0

    def forward(self, batch):
        return self.layer(batch).sum()

    def backward(self, loss):
        self.n_backwards += 1
        loss.backward()

    def step(self):
        if self.is_gradient_accumulation_boundary():
            self.optimizer.step()

    def is_gradient_accumulation_boundary(self):
        return self.n_backwards % 2 == 0


@pytest.fixture
def alone():
    """A process group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def make(folder, engine, *, step_time_s=0.06):
    rank = fake_rank(folder, trials.spec())
    reporter = rank.reporter
    reporter.report.step_times_s = [step_time_s] * 6
    return DiagnosticPass(LiveDeepSpeed(engine), reporter, rank.finish), reporter


def train(engine):
    while True:
        engine.backward(engine.forward(torch.randn(32, 64)))
        engine.step()


def test_it_ends_by_itself_and_says_where_the_time_went(tmp_path, alone):
    engine = Engine()
    watched, reporter = make(tmp_path, engine)
    watched.begin()
    with pytest.raises(Ended):
        train(engine)
    found = reporter.report.diagnosis
    assert (found.steps, engine.n_backwards) == (2, 2 * (2 + 1)), "0.15 s of steps, and one more"
    assert min(found.split.forward_s, found.split.backward_s, found.split.optimizer_s) > 0
    assert found.split.matmul_s > 0
    assert reporter.report.phase is Phase.DIAGNOSE
    watched.fail(ValueError("a script's last words"))
    assert reporter.report.diagnosis is found
    assert reporter.report.step_times_s == [0.06] * 6, "no step of the pass is one of the trial's"


def test_a_profiler_that_fails_costs_its_part_and_no_more(tmp_path, alone, monkeypatch):
    def broken(**_):
        raise RuntimeError("no profiler here")

    monkeypatch.setattr(diagnose, "profile", broken)
    engine = Engine()
    watched, reporter = make(tmp_path, engine)
    watched.begin()
    with pytest.raises(Ended):
        train(engine)
    found = reporter.report.diagnosis
    assert "profiler: RuntimeError: no profiler here" in found.problem
    assert (found.steps, found.split) == (0, None)


def test_steps_that_take_long_are_not_taken_again(tmp_path, alone):
    watched, reporter = make(tmp_path, Engine(), step_time_s=90.0)
    with pytest.raises(Ended):
        watched.begin()
    assert reporter.report.diagnosis.problem == "left out: a step takes 90 s"


def test_a_rank_that_does_not_come_back_ends_itself_with_what_it_had_measured(tmp_path, alone):
    watched, reporter = make(tmp_path, Engine())
    watched._steps, watched._split = 2, split_of(communication=0.2)
    watched._problems.append("comms logger: it fell silent")
    reporter.enter(Phase.DIAGNOSE)
    pid = os.fork()
    if pid == 0:
        watched._run_out(20.0)  # ends the process
        os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    data = json.loads((tmp_path / "ranks" / "00.json").read_text())
    report = RankReport.from_dict(data)
    assert (report.phase, report.outcome) == (Phase.TEARDOWN, None)
    assert report.diagnosis.problem == "comms logger: it fell silent; ended after 20 s"
    assert (report.diagnosis.steps, report.diagnosis.split) == (2, watched._split)
    assert report.step_times_s == [0.06] * 6
