"""How a rank ends: by what it has measured, or by the error that is told of it."""

import faulthandler
import signal
from types import SimpleNamespace

import pytest

from autotune.contract import SPEC_FILE, Outcome, Phase, RankReport, read_json, to_dict, write_json
from autotune.trial.rank import Rank
from autotune.trial.variables import SUBMITTED_ENV
from tests.trials import spec


@pytest.fixture
def rank(tmp_path, monkeypatch):
    monkeypatch.setenv(SUBMITTED_ENV, "0")
    (tmp_path / "ranks").mkdir()
    write_json(tmp_path / SPEC_FILE, to_dict(spec()))
    yield Rank(tmp_path, 1)
    faulthandler.unregister(signal.SIGUSR1)


def report_of(rank):
    return RankReport.from_dict(read_json(rank.folder / "ranks" / "01.json"))


def meter(*, explains):
    return SimpleNamespace(
        lift=lambda: None, read=lambda: {"peak": 98}, explains=lambda error: explains
    )


def test_its_first_error_is_the_one_that_is_told(rank):
    rank.reporter.enter(Phase.MEASURED)
    assert not rank.record(ValueError("the first"))
    assert not rank.record(ValueError("the second"))
    report = report_of(rank)
    assert (report.outcome, report.evidence) == (Outcome.CRASH, "ValueError: the first")


@pytest.mark.parametrize(
    ("explains", "outcome", "evidence"),
    [
        (True, Outcome.OOM, "OutOfMemoryError: SystemError (memory stood at 98 of 100 bytes)"),
        (False, Outcome.CRASH, "SystemError"),
    ],
)
def test_an_error_at_the_limit_is_out_of_memory_though_it_does_not_say_so(
    rank, explains, outcome, evidence
):
    rank.meter, rank._limit_bytes = meter(explains=explains), 100
    rank.reporter.enter(Phase.MEASURED)
    rank.record(SystemError())
    report = report_of(rank)
    assert (report.outcome, report.evidence) == (outcome, evidence)
    assert report.memory_bytes == {"peak": 98}


def test_an_error_after_all_was_measured_costs_the_diagnosis_alone(rank):
    """A script that fails or ends while it is looked at closely has its figure."""
    failed = []
    rank.diagnostic_pass = SimpleNamespace(fail=failed.append)
    rank.reporter.enter(Phase.DIAGNOSE)
    error = ValueError("a script's last words")
    assert rank.record(error)
    assert failed == [error]
    report = report_of(rank)
    assert (report.outcome, report.phase) == (None, Phase.TEARDOWN)
