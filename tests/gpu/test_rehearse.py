"""The rehearsal of a GPU's stages: from wheels alone, on one CPU rank, cut off twice."""

import json
from pathlib import Path

import pytest

from autotune.contract import RESULT_FILE
from tests.gpu import rehearse


@pytest.mark.thorough
@pytest.mark.real
@pytest.mark.package
def test_a_rehearsal_that_is_cut_off_twice_loses_nothing(tmp_path: Path) -> None:
    stages = ("--stage", "small-warm", "--stage", "listed")
    assert rehearse.main(["--folder", str(tmp_path), *stages, "--cut-after", "4", "12"]) == 0


def test_a_trial_that_a_cut_has_lost_was_not_measured(tmp_path: Path) -> None:
    for number, started_at_s in (("0000", 12.0), ("0001", 0.0)):
        folder = tmp_path / "small" / "trials" / number
        folder.mkdir(parents=True)
        (folder / RESULT_FILE).write_text(json.dumps({"started_at_s": started_at_s}))
    assert [result["started_at_s"] for result in rehearse._results(tmp_path)] == [12.0]
