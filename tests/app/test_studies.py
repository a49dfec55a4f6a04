"""Studies found by name and by folder, and their table in one line."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import autotune
from autotune.app.studies import locate
from autotune.errors import StudyError
from autotune.record import Study
from autotune.table import SCHEMA
from tests.report.test_terminal import finished


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


def test_importing_autotune_stays_light() -> None:
    code = (
        "import sys, autotune; autotune.load;"
        "sys.exit(bool({'pandas', 'optuna', 'plotly', 'rich', 'pydantic'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
