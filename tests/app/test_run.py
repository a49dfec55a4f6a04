"""Searches on a scripted fleet: how they end without a best candidate, and what they learn by."""

import dataclasses
import json
import sys
from itertools import product
from pathlib import Path

import pytest

from autotune import cli
from autotune.app import run
from autotune.app.studies import state_of
from autotune.base.errors import ExitCode, FleetError, NothingFeasibleError, StudyError
from autotune.contract import Outcome, Role, TrialResult, TrialSpec
from autotune.cost.knowledge import keep_lessons, read_lessons
from autotune.record.answer import answer_of
from autotune.record.study import Study
from autotune.report.story import read_story
from autotune.search.history import History
from autotune.search.session import Session
from autotune.search.steering import lessons_of
from tests.report.test_terminal import shown
from tests.search.scripted import (
    Behaviour,
    Notebook,
    ScriptedFleet,
    fault,
    make,
    ok,
    rate_of,
    realistic,
)
from tests.search.scripted import session_of as scripted_session
from tests.search.test_sampler import spec_of, trial


def never(spec: TrialSpec) -> TrialResult:
    return fault(spec, Outcome.OOM, "out of memory")


def breaks(spec: TrialSpec) -> TrialResult:
    raise FleetError("the node is gone", "look for it")


def session_of(
    folder: Path, behave: Behaviour, monkeypatch: pytest.MonkeyPatch, *, trials: int = 3
) -> Session:
    job = make(trials=trials)
    monkeypatch.setattr(run, "export_study", lambda *_, **__: [])  # there is no real job to export
    return scripted_session(
        Study(folder, "scripted"),
        job,
        make_fleet=lambda: ScriptedFleet(behave, n_polls=1),
        job_data={"model": "tiny-gpt2"},
    )


@pytest.mark.parametrize(
    ("behave", "code", "words"),
    [
        (never, ExitCode.NOTHING_FEASIBLE, "ran within the limits"),
        (breaks, ExitCode.FLEET_UNAVAILABLE, "the node is gone"),
    ],
)
def test_a_search_without_a_best_still_answers(behave, code, words, tmp_path, monkeypatch, capfd):
    session = session_of(tmp_path, behave, monkeypatch)
    monkeypatch.setattr("autotune.app.searching.open_session", lambda *_, **__: session)
    monkeypatch.setattr(sys, "argv", ["autotune", "search", "--yes", "--json"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == code
    out, err = capfd.readouterr()
    answer = json.loads(out.splitlines()[-1])
    assert (answer["best"], answer["baseline"], answer["speedup"]) == (None, None, None)
    assert sum(answer["counts"].values()) == len(
        [trial for trial in session.study.trials() if trial.result is not None]
    )
    assert words in err
    assert answer.pop("reference") is None, "nothing to measure again"
    assert session.study.read_state()["answer"] == answer
    assert answer_of(session.study) is not None
    state = state_of(session.study)
    assert state.stop_reason == answer["stop_reason"]
    text = shown(read_story(session.study))
    assert words in text
    assert "Unfinished" not in text


def test_the_search_s_error_comes_before_the_table_s(tmp_path, monkeypatch):
    def full(_: Study) -> None:
        raise StudyError("the table cannot be written: disk full")

    monkeypatch.setattr(run, "write_table", full)
    answer = run.search(session_of(tmp_path, never, monkeypatch), Notebook(), fresh=False)
    assert answer.problem.error.exit_code == ExitCode.NOTHING_FEASIBLE
    assert answer.problem.error.__notes__ == ["the table cannot be written: disk full"]
    with pytest.raises(StudyError, match="disk full"):
        run.search(session_of(tmp_path / "b", realistic, monkeypatch), Notebook(), fresh=False)


def taught(file: Path, ratio: float) -> None:
    """A file of lessons: recomputation takes `ratio` of what the model says."""
    job = make()
    specs = [
        spec_of(job, number, zero__stage=1, micro_batch=size, recompute=recompute)
        for number, (size, recompute) in enumerate(product((1, 2, 4), ("none", "full")))
    ]
    history = History(trial(spec, ok(spec, rate_of(spec))) for spec in specs)
    session = scripted_session(Study(Path(), "scripted"), job)
    lessons = lessons_of(history, session, study="another")
    factors = [ratio if spec.identity.knobs["recompute"] == "full" else 1.0 for spec in specs]
    changed = [
        dataclasses.replace(lesson, seconds=(lesson.seconds or 0.0) * factor)
        for lesson, factor in zip(lessons, factors, strict=True)
    ]
    keep_lessons(file, "another", changed)


def test_a_resumed_search_proposes_what_an_uninterrupted_one_would(tmp_path, monkeypatch):
    def proposed(name: str, *ratios: float) -> list[str]:
        """Candidates of a study whose file of lessons is another one at each resumption."""
        file = tmp_path / name / "knowledge.json"
        for n_session, ratio in enumerate(ratios, start=1):
            taught(file, ratio)
            trials = 2 if n_session < len(ratios) else 6
            session = session_of(tmp_path / name, realistic, monkeypatch, trials=trials)
            run.search(session, Notebook(), fresh=False, knowledge=file)
        found = session.study.trials()
        return [
            t.spec.identity.candidate_hash for t in found if t.spec.identity.role is Role.SEARCH
        ]

    through = proposed("through", 1.0)
    assert through != proposed("otherwise", 0.01), "the lessons decide"
    assert through == proposed("resumed", 1.0, 0.01)


def test_what_was_recalled_and_is_damaged_is_recalled_anew(tmp_path, monkeypatch):
    file, notebook = tmp_path / "knowledge.json", Notebook()
    taught(file, 1.0)
    session = session_of(tmp_path, realistic, monkeypatch)
    session.study.folder.mkdir()
    session.study.recalled_file.write_text("{", encoding="utf-8")
    run.search(session, notebook, fresh=False, knowledge=file)
    assert any("are read again: " in note for note in notebook.notes)
    assert "6 trials of other studies correct the forecast" in notebook.notes
    assert len(read_lessons(session.study.recalled_file)) == 6


def test_a_search_in_which_nothing_fits_teaches_that(tmp_path, monkeypatch):
    file = tmp_path / "knowledge.json"
    session = session_of(tmp_path, never, monkeypatch)
    answer = run.search(session, Notebook(), fresh=False, knowledge=file)
    assert isinstance(answer.problem.error, NothingFeasibleError)
    lessons = read_lessons(file)
    assert lessons
    assert all(lesson.is_out_of_memory for lesson in lessons)
    notebook = Notebook()
    other = session_of(tmp_path / "b", realistic, monkeypatch)
    assert run.search(other, notebook, fresh=False, knowledge=file).problem is None
    assert f"{len(lessons)} trials of other studies correct the forecast" in notebook.notes
    assert str(tmp_path) not in file.read_text(encoding="utf-8")
