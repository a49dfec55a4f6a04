"""A search says which accelerator's figures predict it."""

from pathlib import Path
from typing import Any

import pytest

from autotune.app.run import search
from autotune.app.session import open_session
from autotune.base.errors import JobError
from autotune.record.study import Study
from tests.app.test_unmeasured import SMALL
from tests.jobs import CPU
from tests.probe.test_hardware_file import GPU, write
from tests.search.scripted import Notebook


def simulate(tmp_path: Path, **flags: Any) -> tuple[Study, Notebook]:
    """Searches without devices are predicted by the same table as others."""
    session = open_session(
        None, {**SMALL, **flags}, fleet="simulate:2xCPU", results=tmp_path / "results"
    )
    notebook = Notebook()
    assert search(session, notebook, fresh=False).problem is None
    return session.study, notebook


def test_a_search_by_the_shipped_table_says_nothing_of_it(tmp_path: Path) -> None:
    _, notebook = simulate(tmp_path)
    assert not any("predicted by" in note for note in notebook.notes)


def test_a_file_without_these_devices_is_said_to_be_of_no_use(tmp_path: Path) -> None:
    _, notebook = simulate(tmp_path, accelerators=write(tmp_path / "hardware.yaml", GPU))
    assert any("has no entry for these devices" in note for note in notebook.notes)


def test_a_search_names_the_users_figures_and_is_predicted_by_them(tmp_path: Path) -> None:
    steps_s = []
    for name, layer_s in (("fast", 1e-3), ("slow", 0.5)):
        path = write(tmp_path / f"{name}.yaml", CPU, layer_s=layer_s)
        study, notebook = simulate(tmp_path / name, accelerators=path)
        assert any(note.startswith(f"predicted by CPU of {path}") for note in notebook.notes)
        assert f"accelerators: {path}" in study.job_file.read_text(encoding="utf-8")
        predicted = study.trials()[0].spec.provenance.predicted
        steps_s.append(predicted.step_time_s)
    assert steps_s[1] > 2 * steps_s[0]


def test_a_table_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"nowhere\.yaml"):
        simulate(tmp_path, accelerators=tmp_path / "nowhere.yaml")
