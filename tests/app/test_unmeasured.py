"""Searches in which nothing runs: they end like any other, and nobody takes them for measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.app.exports import find_chosen
from autotune.app.run import search
from autotune.app.session import open_session
from autotune.app.studies import state_of
from autotune.base.errors import AutotuneError, JobError, StudyError
from autotune.contract import Origin
from autotune.cost.knowledge import read_lessons
from autotune.job.job import JobText
from autotune.record.answer import answer_of
from autotune.record.table import load_table
from autotune.report.story import read_story
from autotune.report.verdict import verdict_of
from tests.cases import data_beside
from tests.jobs import own_accelerator
from tests.replay.tables import row, sweep, write
from tests.search.scripted import Notebook

DATA = data_beside(__file__)

SMALL = DATA["SMALL"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "runs.csv", sweep())


def replay(table: Path, tmp_path: Path, **flags: Any) -> tuple[dict[str, Any], Any, Notebook]:
    session = open_session(None, flags, fleet=f"replay:{table}", results=tmp_path / "results")
    notebook = Notebook()
    answer = search(session, notebook, fresh=False, knowledge=tmp_path / "knowledge.json")
    assert answer.problem is None
    return answer.to_dict(), session, notebook


def test_a_replay_finds_the_best_row(table: Path, tmp_path: Path) -> None:
    answer, session, notebook = replay(table, tmp_path, trials=12)
    best = min(float(r["step_time_s"]) for r in sweep() if r["step_time_s"])
    assert answer["best"]["samples_per_s"] == pytest.approx(32 / best)
    assert answer["origin"] == "replayed"
    assert answer["speedup"] is None
    assert not session.study.best_folder.exists()
    assert answer_of(session.study).nothing_to_explain
    assert "figures are replayed: nothing runs on this machine" in notebook.notes
    frame = load_table(session.study.folder)
    assert set(frame["origin"]) == {"replayed"}
    assert len(frame) == 12


def test_a_replay_is_marked_wherever_it_is_shown(table: Path, tmp_path: Path) -> None:
    _, session, _ = replay(table, tmp_path, trials=3)
    report = read_story(session.study)
    assert verdict_of(report).title.startswith("REPLAYED, not measured here: made-up on A100")
    assert "REPLAYED" in (session.study.folder / "report.html").read_text(encoding="utf-8")
    assert state_of(session.study).origin == "replayed"
    result = json.loads((session.study.trial_folder(0) / "result.json").read_text("utf-8"))
    assert result["origin"] == "replayed"


def test_nothing_of_a_replay_is_handed_out_or_learned_from(table: Path, tmp_path: Path) -> None:
    _, session, _ = replay(table, tmp_path, trials=3)
    with pytest.raises(StudyError, match="is replayed: nothing of it was measured here"):
        find_chosen(session.study, trial=None)
    assert read_lessons(tmp_path / "knowledge.json") == ()
    assert not session.study.best_folder.exists()


def test_a_replay_resumes_and_an_edited_table_is_asked_again(table: Path, tmp_path: Path) -> None:
    _, session, _ = replay(table, tmp_path, trials=3)
    replay(table, tmp_path, trials=5)
    assert len(load_table(session.study.folder)) == 5
    rows = [{**r, "step_time_s": r["step_time_s"] and 9.0} for r in sweep()]
    write(table, rows)
    answer, _, _ = replay(table, tmp_path, trials=2)
    assert answer["best"]["samples_per_s"] == pytest.approx(32 / 9)


def test_what_the_table_says_is_not_the_command_lines_to_say(table: Path, tmp_path: Path) -> None:
    for flags in ({"model": "gpt2"}, {"world": 4}, {"space": "zero"}):
        with pytest.raises(
            JobError, match=f"--{next(iter(flags)).replace('_', '-')}: cannot be chosen"
        ):
            open_session(None, flags, fleet=f"replay:{table}", results=tmp_path)
    with pytest.raises(JobError, match="leave the job file out"):
        open_session(
            JobText(tmp_path / "job.yaml", {}), {}, fleet=f"replay:{table}", results=tmp_path
        )


@pytest.mark.parametrize("fleet", ["nowhere", "replay", "replay:", "local:2", "simulate:0xH100"])
def test_a_fleet_that_is_none_is_named(fleet: str, tmp_path: Path) -> None:
    with pytest.raises(AutotuneError, match="--fleet"):
        open_session(None, SMALL, fleet=fleet, results=tmp_path)


def test_a_device_that_the_model_does_not_know_is_named(tmp_path: Path) -> None:
    with pytest.raises(AutotuneError, match="Abacus"):
        open_session(None, SMALL, fleet="simulate:8xAbacus", results=tmp_path)


def test_an_accelerator_of_ones_own_is_simulated(tmp_path: Path) -> None:
    with pytest.raises(AutotuneError) as raised:
        open_session(None, SMALL, fleet="simulate:2xB9000", results=tmp_path)
    assert "--accelerators of search" in raised.value.hint
    own = own_accelerator(tmp_path / "own.yaml", "B9000")
    flags = {**SMALL, "accelerators": own}
    session = open_session(None, flags, fleet="simulate:2xB9000", results=tmp_path)
    assert session.environment.device_name == "B9000"
    (tmp_path / "job.yaml").write_text("accelerators: own.yaml\n", encoding="utf-8")
    session = open_session(
        JobText.read(tmp_path / "job.yaml"), SMALL, fleet="simulate:2xB9000", results=tmp_path
    )
    assert session.environment.device_name == "B9000"


@pytest.mark.parametrize("fleet", ["simulate", "simulate:2xH100"])
def test_a_simulation_goes_through_all_stages(tmp_path: Path, fleet: str) -> None:
    session = open_session(None, SMALL, fleet=fleet, results=tmp_path)
    assert session.place.origin is Origin.SIMULATED
    assert session.study.name.startswith("simulated-")
    answer = search(session, Notebook(), fresh=False).to_dict()
    assert answer["origin"] == "simulated"
    assert answer["best"] is not None
    assert answer["speedup"] is not None
    frame = load_table(session.study.folder)
    assert set(frame["origin"]) == {"simulated"}
    assert "confirm" in set(frame["role"])


def test_a_table_has_no_reduced_runs(table: Path, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="no reduced runs"):
        open_session(None, {"fidelity": "layers=1"}, fleet=f"replay:{table}", results=tmp_path)


def test_measured_and_simulated_figures_are_not_in_one_study(tmp_path: Path, table: Path) -> None:
    first = open_session(None, {**SMALL, "study": "mine"}, fleet="simulate", results=tmp_path)
    search(first, Notebook(), fresh=False)
    other = open_session(None, {"study": "mine"}, fleet=f"replay:{table}", results=tmp_path)
    with pytest.raises(StudyError, match="holds simulated figures, and these would be replayed"):
        search(other, Notebook(), fresh=False)
    search(other, Notebook(), fresh=True)


def test_two_groups_have_to_be_told_apart(tmp_path: Path) -> None:
    rows = [row(tp=tp, global_batch=batch) for batch in (32, 64) for tp in (1, 2)]
    table = write(tmp_path / "runs.csv", rows)
    with pytest.raises(JobError, match="2 groups"):
        open_session(None, {}, fleet=f"replay:{table}", results=tmp_path)
    assert (
        open_session(None, {}, fleet=f"replay:{table}#batch 64", results=tmp_path).job.global_batch
        == 64
    )


def test_a_damaged_study_json_does_not_change_where_the_figures_come_from(table, tmp_path):
    first = open_session(None, {**SMALL, "study": "mine"}, fleet="simulate", results=tmp_path)
    assert search(first, Notebook(), fresh=False).problem is None
    state = first.study.state_file
    state.write_text(state.read_text(encoding="utf-8")[:100], encoding="utf-8")
    lost = first.study.trial_folder(0) / "result.json"
    lost.write_text("{", encoding="utf-8")
    other = open_session(None, {"study": "mine"}, fleet=f"replay:{table}", results=tmp_path)
    with pytest.raises(StudyError, match="holds simulated figures, and these would be replayed"):
        search(other, Notebook(), fresh=False)
    answer = search(first, Notebook(), fresh=False)
    assert answer.problem is None
    assert answer.origin == "simulated"
    assert first.study.read_state()["environments"][0]["since_trial"] == 0
