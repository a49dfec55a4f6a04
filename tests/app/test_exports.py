"""What is said when a study's best is handed out."""

from pathlib import Path

import pytest
import yaml

from autotune.app.exports import export_study, find_chosen
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.record.study import Study
from tests.report.test_terminal import finished
from tests.search.scripted import ENVIRONMENT, JOB


@pytest.fixture
def study(tmp_path: Path) -> Study:
    study = finished(tmp_path / "results", engine=lambda job: DeepSpeedEngine(job, ENVIRONMENT))
    study.job_file.write_text(yaml.safe_dump(JOB))
    return study


def test_a_best_that_nothing_was_compared_with_is_handed_out_with_a_word(
    study: Study, tmp_path: Path
) -> None:
    said: list[str] = []
    export_study(study, tmp_path / "compared", note=said.append)
    assert said == []
    state = study.read_state()
    state["answer"] |= {"speedup": None, "speedup_low": None, "speedup_high": None}
    study.write_state(state)
    export_study(study, tmp_path / "not", note=said.append)
    best = state["answer"]["best"]["trial"]
    assert [word.split(":")[0] for word in said] == [
        f"trial {best} was not compared with the baseline"
    ]
    said.clear()
    find_chosen(study, trial=best, note=said.append)
    assert said == [], "whoever names a trial knows it"
