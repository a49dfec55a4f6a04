"""Studies found by name and by folder, and their table in one line."""

import os
from pathlib import Path

import pandas as pd
import pytest
import yaml

import autotune
from autotune import DEFAULT_ENGINE
from autotune.app.exports import export_study, find_chosen
from autotune.app.studies import find_study, locate, state_of, studies
from autotune.base.errors import StudyError
from autotune.record.study import Study
from autotune.record.table import schema_of
from autotune.report.story import read_story
from autotune.report.verdict import verdict_of
from tests.report.test_terminal import exportable, finished
from tests.report.wide import varied
from tests.search.scripted import JOB

SCHEMA = schema_of(DEFAULT_ENGINE)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    study = finished(tmp_path_factory.mktemp("results"))
    study.job_file.write_text("model: tiny-gpt2\n", encoding="utf-8")
    return study


def test_a_study_by_name_and_by_folder(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locate("scripted", study.root).folder == study.folder
    assert locate(str(study.folder), Path("elsewhere")).folder == study.folder
    monkeypatch.chdir(study.folder)
    assert locate(".", Path("elsewhere")).folder == study.folder


def test_a_study_whose_job_is_lost_is_still_a_study(tmp_path: Path) -> None:
    lost, searched_last = (finished(tmp_path / name) for name in ("a", "b"))
    lost.folder.rename(tmp_path / "b" / "lost")
    searched_last.job_file.write_text("model: tiny-gpt2\n", encoding="utf-8")
    lost_trials = tmp_path / "b" / "lost" / "trials"
    (tmp_path / "b" / "only locked" / "trials").mkdir(parents=True)
    for lost_at_s, order in ((100, ["lost", "scripted"]), (300, ["scripted", "lost"])):
        os.utime(lost_trials, (lost_at_s, lost_at_s))
        os.utime(searched_last.job_file, (200, 200))
        assert [study.name for study in studies(tmp_path / "b")] == order
    assert find_study(tmp_path / "b", None).trials()


@pytest.mark.parametrize(("run", "said"), [("skripted", "scripted"), ("a/b", "trials")])
def test_what_is_no_study_is_named(run: str, said: str, study: Study) -> None:
    with pytest.raises(StudyError, match=run) as error:
        locate(run, study.root)
    assert said in str(error.value)


def test_the_table_is_a_frame_in_one_line(study: Study) -> None:
    frame = autotune.load("scripted", results=study.root)
    assert list(frame.columns) == [column.name for column in SCHEMA]
    pd.testing.assert_frame_equal(frame, autotune.load(study.folder))
    assert frame.attrs["study"] == "scripted"
    assert frame.attrs["units"]["step_time_s"] == "s"
    assert set(frame.attrs["meanings"]) == set(frame.columns)


@pytest.mark.cases("edit", "words")
def test_figures_of_another_configuration_are_not_handed_out(tmp_path, edit, words):
    study = exportable(tmp_path)
    (study.folder / "base.json").write_text('{"gradient_clipping": 0.5}', encoding="utf-8")
    assert find_chosen(study, trial=None).handout.job.seq_len == 64
    study.job_file.write_text(yaml.safe_dump(JOB | edit), encoding="utf-8")
    for trial in (None, 0):
        with pytest.raises(StudyError) as caught:
            export_study(study, tmp_path / "out", to="deepspeed", trial=trial)
        assert words in caught.value.message
        assert "search again" in caught.value.hint
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("set_by_s", [2 * 86400.0, -1.7e9])
def test_whether_a_search_runs_is_no_matter_of_dates(study: Study, set_by_s: float) -> None:
    """The clock was set since the study was taken: the lock's date says nothing."""
    held = Study(study.root, study.name)
    held.lock()
    lock = held.folder / "lock"
    at_s = lock.stat().st_mtime + set_by_s
    os.utime(lock, (at_s, at_s))
    try:
        assert state_of(held).is_running
    finally:
        held.unlock()
    assert not state_of(held).is_running


def test_status_and_report_say_the_same_of_a_search_that_runs(tmp_path: Path) -> None:
    """The fastest so far breaks the memory limit: neither names it."""
    study = finished(tmp_path, varied, trials=12)
    fastest = read_story(study).rows[0]
    limit = {"answer": None, "allowed_bytes": fastest.peak_bytes / 1.1}
    study.write_state({**study.read_state(), **limit})
    study.lock()
    try:
        state, report = state_of(study), read_story(study)
    finally:
        study.unlock()
    leading = report.leading_row
    assert leading.rate < fastest.rate
    assert (state.best_samples_per_s, state.speedup) == (leading.rate, None)
    verdict = verdict_of(report)
    assert verdict.headline.startswith("Running: ")
    assert verdict.words.startswith(f"Trial {leading.trial} is the fastest of ")
