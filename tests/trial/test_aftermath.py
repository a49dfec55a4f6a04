"""What a rank does around its measured steps, without an engine; trials test it with one."""

import os
import types

import pytest

from autotune.contract import RankReport
from autotune.trial.aftermath import Aftermath
from autotune.trial.faults import ReadBackError
from autotune.trial.variables import CORES_ENV
from tests import trials


def measured(accelerator):
    """The report of a rank that is bound to a core and measured nothing for a moment."""
    spec = trials.spec(accelerator=accelerator, diagnoses=False)
    reporter = types.SimpleNamespace(report=RankReport(rank=0))
    meter = types.SimpleNamespace(settle=lambda: None, read=lambda: {"peak": 1})
    aftermath = Aftermath(spec, types.SimpleNamespace(), reporter, meter)
    aftermath.prepare(types.SimpleNamespace(own_log=lambda report: None))
    aftermath.on_warm()
    sum(range(10_000))
    aftermath.on_measured()
    return aftermath, reporter.report


@pytest.fixture
def bound(monkeypatch):
    monkeypatch.setenv(CORES_ENV, "0")


def test_only_cpu_ranks_are_watched_bound_or_not(bound):
    _, report = measured("cpu")
    assert report.surroundings.cores == sorted(os.sched_getaffinity(0))
    _, report = measured("cuda")
    assert report.surroundings is None


def test_the_measured_time_ends_with_the_last_measured_step(bound):
    aftermath, report = measured("cpu")
    at_the_end = (report.cpu_s, report.measured_s)
    assert report.measured_s > 0
    aftermath.finale()
    assert (report.cpu_s, report.measured_s) == at_the_end


def test_the_driver_of_the_engine_reads_it_back():
    spec = trials.spec(expected={"stage": 2})
    reporter = types.SimpleNamespace(report=RankReport(rank=0))
    meter = types.SimpleNamespace(check=lambda: None)
    driver = types.SimpleNamespace(read_back=lambda engine, expected: {"stage": engine})
    aftermath = Aftermath(spec, driver, reporter, meter)
    aftermath._live = types.SimpleNamespace(engine=2)
    aftermath.on_first_step()
    assert (reporter.report.read_back, reporter.report.differences) == ({"stage": 2}, [])
    aftermath._live = types.SimpleNamespace(engine=1)
    with pytest.raises(ReadBackError, match="stage: asked 2, the engine runs 1"):
        aftermath.on_first_step()
