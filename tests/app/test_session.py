"""The job where nobody names one, and the job that a study keeps."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.app.searching import Caller, SearchCall, run_searches
from autotune.app.session import DEMO, _defaults, read_job
from autotune.devices.hardware import Environment, detect_environment
from autotune.job.job import make_job
from autotune.record.study import Study
from autotune.search.plan import Plan
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


def test_studies_of_both_engines_are_named_after_them_and_older_ones_go_on(tmp_path: Path) -> None:
    def planned(**flags: str) -> list[str]:
        shown: list[Plan] = []
        job = {"model": "tiny-llama", "seq_len": 64, "global_batch": 8, "world": 2, **flags}
        call = SearchCall(flags=job, results=tmp_path, fleet="simulate:2xH100", dry_run=True)
        run_searches(call, Caller(show_plan=shown.append))
        return [plan.study for plan in shown]

    alone = [planned(engine=engine)[0] for engine in ("deepspeed", "megatron")]
    named = [f"{alone[0]}-deepspeed", f"{alone[1]}-megatron"]
    assert planned(engine="both") == named
    assert planned(engine="both", study="mine") == ["mine-deepspeed", "mine-megatron"]

    def begin(name: str) -> None:
        study = Study(tmp_path, name)
        study.folder.mkdir(exist_ok=True)
        study.job_file.touch()

    begin(alone[1])
    assert planned(engine="both") == [named[0], alone[1]]
    begin(named[1])
    assert planned(engine="both") == named


def test_a_search_without_a_model_says_whose_it_tunes_once(tmp_path: Path) -> None:
    said: list[str] = []
    call = SearchCall(
        flags={"engine": "both"}, results=tmp_path, fleet="simulate:2xH100", dry_run=True
    )
    run_searches(call, Caller(say=said.append))
    assert sum("no --model is given" in line for line in said) == 1
    said.clear()
    named = {"model": "tiny-llama", "seq_len": 64, "global_batch": 8}
    run_searches(replace(call, flags=named), Caller(say=said.append))
    assert not any("no --model is given" in line for line in said)


@pytest.mark.parametrize(("fleet", "n_said"), [("local", 1), ("simulate:2xH100", 0)])
def test_a_plan_says_that_ranks_share_cores(tmp_path: Path, fleet: str, n_said: int) -> None:
    world = 2 * detect_environment().n_devices
    shown: list[Plan] = []
    job = {"model": "tiny-llama", "seq_len": 64, "global_batch": 8 * world, "world": world}
    call = SearchCall(flags=job, results=tmp_path, fleet=fleet, dry_run=True)
    run_searches(call, Caller(show_plan=shown.append))
    assert sum("take turns" in text for text in shown[0].ranks) == n_said
