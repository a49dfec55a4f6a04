"""Whether a recorded trial ran what would run now; where it can be told, nothing is rendered."""

from pathlib import Path
from typing import Any

import pytest

from autotune.contract import Role
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.record.study import Study, Trial
from autotune.search.session import RecordedPlace, Session
from autotune.search.trial_spec import Run, make_spec
from tests.jobs import CPU, canonical_candidate, tiny_job

SGD = {"type": "SGD", "params": {"lr": 0.5}}


def task_of(study: Study, folder: Path, **changes: Any) -> Session:
    job = tiny_job(folder, **changes)
    return Session(
        job=job, place=RecordedPlace(CPU, {}), engine=DeepSpeedEngine(job, CPU), study=study
    )


@pytest.fixture
def trial(study: Study, tmp_path: Path) -> Trial:
    """A trial as a search records it, read back."""
    task = task_of(study, tmp_path)
    candidate = canonical_candidate(task.job, zero__stage=2)
    spec = make_spec(
        Run(candidate=candidate, role=Role.SEARCH),
        study=study.name,
        number=0,
        job=task.job,
        engine=task.engine,
        environment=CPU,
    )
    study.write_spec(spec, task.engine.files(candidate))
    (read,) = study.trials()
    return read


def test_what_the_same_engine_rendered_is_not_rendered_again(study, tmp_path, trial, monkeypatch):
    monkeypatch.delattr(DeepSpeedEngine, "files")
    assert not task_of(study, tmp_path, trials=99).why_left_out(trial)


def test_another_optimizer_is_seen(study: Study, tmp_path: Path, trial: Trial) -> None:
    changes = task_of(study, tmp_path, optimizer=SGD).changes_since(trial)
    assert any("SGD" in change for change in changes)


def test_templates_of_the_user_s_are_rendered(study, tmp_path, trial, monkeypatch):
    templates = tmp_path / "templates"
    templates.mkdir()
    task = task_of(study, tmp_path, templates=str(templates))
    assert not task.why_left_out(trial)
    monkeypatch.setattr(DeepSpeedEngine, "files", lambda *_: {"ds_config.json": "{}"})
    assert task.why_left_out(trial)
