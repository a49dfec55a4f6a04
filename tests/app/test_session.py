"""The job where nobody names one, and the job that a study keeps."""

import json
from pathlib import Path

import pytest

from autotune.app.session import DEMO, _defaults, read_job
from autotune.devices.hardware import Environment
from autotune.job.job import make_job
from tests.jobs import CPU, TINY


@pytest.mark.parametrize("accelerator", sorted(DEMO))
@pytest.mark.parametrize("world", [1, 2, 3, 6, 8])
def test_the_small_job_fits_every_world_and_ends_in_minutes(accelerator: str, world: int) -> None:
    environment = Environment(
        accelerator=accelerator,
        n_devices=world,
        device_name="any",
        device_memory_bytes=2**34,
        peak_flops=None,
        deepspeed_version="0",
        torch_version="0",
    )
    job = make_job(_defaults({"world": world}, environment), where="test")
    assert job.world == world
    assert job.global_batch % world == 0
    assert job.budget.time_s == {"cpu": 480, "cuda": 360}[accelerator]


def test_the_job_of_a_study_holds_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    (project / "mymodel").mkdir(parents=True)
    (project / "mymodel" / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    (project / "base").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(project)
    flags = {"model": "mymodel", "seq_len": 16, "global_batch": 8, "base_config": Path("base")}
    job, data = read_job(None, flags, CPU)
    monkeypatch.chdir(tmp_path)
    again = make_job(data, where="test")
    assert (again.model, again.base_config) == (job.model, project / "base")
