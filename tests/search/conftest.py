from pathlib import Path

import pytest

from autotune.record.study import Study


@pytest.fixture
def study(tmp_path: Path) -> Study:
    study = Study(tmp_path, "scripted")
    study.trials_folder.mkdir(parents=True)
    return study
