"""The job where nobody names one, and the job that a study keeps."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.app.searching import run_searches
from autotune.app.session import check_devices, read_job
from autotune.base.errors import AutotuneError, ExitCode, FleetError, StudyError
from autotune.base.units import format_count
from autotune.base.yaml_file import dump_yaml, read_yaml
from autotune.devices.accelerators import SHIPPED
from autotune.devices.hardware import detect_environment
from autotune.devices.in_use import Device
from autotune.job.job import JobText, make_job
from autotune.record.study import Study
from autotune.search.plan import Plan
from autotune.search.session import Session
from tests.jobs import A100, CPU, TINY
from tests.replay.tables import sweep, write


def test_the_job_of_a_study_holds_from_any_folder(tmp_path, monkeypatch):
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


@pytest.mark.parametrize(("price", "expected"), [("1.5", 1.5), ("CPU=2.5,H100=9", 2.5)])
def test_a_price_by_kind_is_read_from_a_flag_and_from_a_file(tmp_path, price, expected):
    keys = {"model": "tiny-llama", "seq_len": 64, "global_batch": 8}
    environment = replace(CPU, device_name="AMD EPYC CPU")
    assert read_job(None, {**keys, "price": price}, environment)[0].price_per_hour == expected
    file = tmp_path / "job.yaml"
    file.write_text(dump_yaml({**keys, "price": price if "=" in price else expected}))
    assert read_job(JobText.read(file), {}, environment)[0].price_per_hour == expected


@pytest.mark.cases("device", "memory_gib", "names", "others", "unknown")
def test_devices_are_those_of_the_job_by_their_entry_of_the_table(
    device: str, memory_gib: int, names: list[str], others: list[str], unknown: list[str]
) -> None:
    here = replace(A100, device_name=device, device_memory_bytes=memory_gib * 2**30)
    for name in names:
        check_devices({"gpu": name}, here)
    for refused, code in ((others, ExitCode.FLEET_UNAVAILABLE), (unknown, ExitCode.INVALID_INPUT)):
        for name in refused:
            with pytest.raises(AutotuneError, match="--gpu") as caught:
                check_devices({"gpu": name}, here)
            assert caught.value.exit_code is code, name


def test_devices_may_be_named_by_a_user_s_table_or_by_the_shipped_one(tmp_path: Path) -> None:
    shipped = read_yaml(SHIPPED)["accelerators"]["A100-80GB"]
    table = tmp_path / "ours.yaml"
    table.write_text(dump_yaml({"accelerators": {"our-rack": shipped}}), encoding="utf-8")
    for name in ("our-rack", "A100"):
        check_devices({"gpu": name, "accelerators": str(table)}, A100)
    with pytest.raises(FleetError, match="trials would run on NVIDIA A100") as caught:
        check_devices({"gpu": "H100", "accelerators": str(table)}, A100)
    assert caught.value.hint.endswith("name these: --gpu A100-80GB")


def planned_alone(
    flags: Mapping[str, Any], results: Path, fleet: str, *, dry_run: bool = True, **about: Any
) -> None:
    """Plan a search, and run nothing."""
    run_searches(flags, results=results, fleet=fleet, dry_run=dry_run, watch=nobody, **about)


def nobody(_: Session) -> Any:
    raise AssertionError("it ran")


def test_studies_of_both_engines_are_named_after_them_and_older_ones_go_on(tmp_path: Path) -> None:
    def planned(**flags: str) -> list[str]:
        shown: list[Plan] = []
        job = {"model": "tiny-llama", "seq_len": 64, "global_batch": 8, "world": 2, **flags}
        planned_alone(job, tmp_path, "simulate:2xH100", show_plan=shown.append)
        return [plan.session.study.name for plan in shown]

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


def said_of(folder: Path, fleet: str = "local", **flags: object) -> list[str]:
    """What is said before the plans of a search that does not run."""
    said: list[str] = []
    planned_alone(flags, folder, fleet, say=said.append)
    return said


NAMED = {"model": "tiny-llama", "seq_len": 64, "global_batch": 64}


def test_whose_model_is_tuned_is_said_once_where_nobody_names_one(tmp_path: Path) -> None:
    said = said_of(tmp_path, "simulate:2xH100", engine="both")
    assert [line for line in said if "no --model" in line] == [
        "no --model is given: the built-in gpt2 is tuned. For your own training: "
        "autotune search -- torchrun train.py --deepspeed ds.json"
    ]
    assert said_of(tmp_path, "simulate:2xH100", **NAMED) == []


def test_the_model_of_a_table_is_nobody_s_to_name(tmp_path: Path) -> None:
    table = write(tmp_path / "runs.csv", sweep())
    assert said_of(tmp_path, f"replay:{table}") == []


def test_what_spoils_figures_is_said_once_before_the_plan(tmp_path, monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setattr("autotune.fleet.transports.local.other_agents", lambda: [7, 8])
    busy = (Device(index=0, name="core", busy=0.57), Device(index=1, name="core", busy=0.05))
    monkeypatch.setattr("autotune.fleet.transports.local.watch_devices", lambda _: busy)
    monkeypatch.setattr(os, "getloadavg", lambda: (3.2, 3.0, 3.0))
    n_cores = detect_environment().n_devices
    said = said_of(tmp_path, **{**NAMED, "world": 4 * n_cores, "global_batch": 16 * n_cores})
    assert said == [
        "in use by others: device 0 (57%); load average 3.20: end what runs there, or wait: "
        "measurements of a shared device are not trustworthy",
        f"{4 * n_cores} ranks share {format_count(n_cores, 'core')} and take turns: on more cores "
        "other settings may be the fastest",
        "autotune also runs on this machine (processes 7, 8): trials at the same time may slow "
        "each other; run one search after the other",
    ]
    assert said_of(tmp_path, "simulate:2xH100", **NAMED) == [], "nothing runs there"


def test_nobody_is_asked_about_a_search_that_runs_nothing(tmp_path: Path) -> None:
    def begins(_: Session) -> Any:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        run_searches(
            NAMED,
            results=tmp_path,
            fleet="simulate:2xH100",
            watch=begins,
            confirm=lambda _: pytest.fail("asked"),
        )


def test_a_study_that_another_search_holds_is_told_before_the_plan(tmp_path: Path) -> None:
    held = Study(tmp_path, "held")
    held.lock()
    shown: list[Plan] = []
    flags = {**NAMED, "study": "held"}
    with pytest.raises(StudyError, match="another search holds this study"):
        planned_alone(flags, tmp_path, "simulate:2xH100", show_plan=shown.append, dry_run=False)
    assert not shown
    held.unlock()
