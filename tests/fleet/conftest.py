"""What every test of real trials checks in the end."""

import pytest

from autotune.fleet.node.processes import processes_of
from autotune.record.study import Study


@pytest.fixture
def study(tmp_path):
    study = Study(tmp_path / "results", "test")
    study.lock()
    yield study
    assert processes_of(study.folder) == [], "a trial left processes behind"
