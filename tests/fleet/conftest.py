"""What every test of real trials checks in the end."""

import pytest

from autotune.fleet.node.processes import processes_of
from autotune.record.study import Study
from tests.trials import wait_until


@pytest.fixture
def study(tmp_path):
    study = Study(tmp_path / "results", "test")
    study.lock()
    yield study
    # The kernel takes a moment to end what was killed last.
    wait_until(lambda: processes_of(study.folder) == [], "a trial left processes behind")
