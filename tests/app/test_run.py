"""Searches that end without a best candidate, on a scripted fleet."""

import json
import sys
from pathlib import Path

import pytest

from autotune import cli
from autotune.app import run
from autotune.app.session import Session
from autotune.app.studies import read_report, state_of
from autotune.contract import Outcome, TrialResult, TrialSpec
from autotune.errors import ExitCode, FleetError, StudyError
from autotune.record import Study
from tests.report.test_terminal import shown
from tests.search.scripted import (
    ENVIRONMENT,
    Behaviour,
    Notebook,
    ScriptedEngine,
    ScriptedFleet,
    fault,
    lattice_of,
    make,
    realistic,
)


def never(spec: TrialSpec) -> TrialResult:
    return fault(spec, Outcome.OOM, "out of memory")


def breaks(spec: TrialSpec) -> TrialResult:
    raise FleetError("the node is gone", "look for it")


def session_of(folder: Path, behave: Behaviour, monkeypatch: pytest.MonkeyPatch) -> Session:
    job = make(trials=3)
    monkeypatch.setattr(run, "LocalFleet", lambda *_, **__: ScriptedFleet(behave))
    monkeypatch.setattr("autotune.extensions.build", lambda *_, **__: None)
    return Session(
        job=job,
        job_data={"model": "tiny-gpt2"},
        environment=ENVIRONMENT,
        engine=ScriptedEngine(job),
        lattice=lattice_of(job),
        study=Study(folder, "scripted"),
    )


@pytest.mark.parametrize(
    ("behave", "code", "words"),
    [
        (never, ExitCode.NOTHING_FEASIBLE, "ran within the limits"),
        (breaks, ExitCode.FLEET_UNAVAILABLE, "the node is gone"),
    ],
)
def test_a_search_without_a_best_still_answers(
    behave: Behaviour,
    code: ExitCode,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    session = session_of(tmp_path, behave, monkeypatch)
    monkeypatch.setattr("autotune.app.unmeasured.open_session", lambda *_, **__: session)
    monkeypatch.setattr(sys, "argv", ["autotune", "search", "--yes", "--json"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == code
    out, err = capfd.readouterr()
    answer = json.loads(out.splitlines()[-1])
    assert (answer["best"], answer["baseline"], answer["speedup"]) == (None, None, None)
    assert answer["paths"] == {"table": str(session.study.table_file), "export": None}
    assert sum(answer["counts"].values()) == len(
        [trial for trial in session.study.trials() if trial.result is not None]
    )
    assert words in err
    metrics = session.study.metrics_file.read_text()
    assert 'autotune_stage{study="scripted",stage="done"} 1.0' in metrics
    assert session.study.read_state()["answer"] == answer
    state = state_of(session.study)
    assert state.stop_reason == answer["stop_reason"]
    text = shown(read_report(session.study))
    assert words in text
    assert "unfinished" not in text


def test_the_search_s_error_comes_before_the_table_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Study) -> None:
        raise StudyError("the table cannot be written: disk full")

    monkeypatch.setattr(run, "write_table", full)
    ending = run.search(session_of(tmp_path, never, monkeypatch), Notebook(), fresh=False)
    assert ending.error is not None
    assert ending.error.exit_code == ExitCode.NOTHING_FEASIBLE
    assert ending.error.__notes__ == ["the table cannot be written: disk full"]
    with pytest.raises(StudyError, match="disk full"):
        run.search(session_of(tmp_path / "b", realistic, monkeypatch), Notebook(), fresh=False)
