import dataclasses
from pathlib import Path

import pytest

from autotune import DEFAULT_ENGINE
from autotune.base.errors import FleetError, JobError
from autotune.devices.hardware import Environment
from autotune.engines import base
from autotune.engines.base import bind_engine, check_installed, find_engine
from autotune.engines.megatron.plugin import Megatron
from autotune.fleet.transports.local import Here
from autotune.job.job import make_job

ENVIRONMENT = Environment(
    accelerator="cpu",
    n_devices=2,
    device_name="cpu",
    device_memory_bytes=2**34,
    peak_flops=None,
    deepspeed_version="0.19.8",
    torch_version="2.13.0",
)
JOB = {"model": "tiny-gpt2", "seq_len": 64, "global_batch": 16, "world": 2}


def test_a_job_that_names_no_engine_has_the_default_one():
    job = make_job(JOB, where="test")
    assert job.engine == DEFAULT_ENGINE
    assert bind_engine(job, ENVIRONMENT).name == DEFAULT_ENGINE
    named = make_job({**JOB, "engine": DEFAULT_ENGINE}, where="test")
    assert named.study == job.study


def test_an_engine_that_is_not_installed_is_answered_with_those_that_are():
    job = dataclasses.replace(make_job(JOB, where="test"), engine="deepsped")
    with pytest.raises(JobError, match="no such engine") as caught:
        bind_engine(job, ENVIRONMENT)
    assert "did you mean deepspeed?" in caught.value.hint


def test_where_one_engine_is_asked_for_both_are_said_to_be_of_a_search():
    with pytest.raises(JobError, match="--engine: 'both': only a search takes both") as caught:
        find_engine("both", where="--engine")
    assert caught.value.hint == "name one of deepspeed, megatron"


def test_a_plugin_names_what_it_is_without_a_job():
    engine = find_engine("deepspeed")
    assert engine.name == "deepspeed"
    assert [package.name for package in engine.packages] == ["deepspeed"]
    assert next(iter(engine.knobs)) == "zero.stage"


def test_a_missing_package_is_an_error_of_the_engine_that_needs_it(monkeypatch):
    monkeypatch.setattr(base, "version_of", lambda name: None)
    job = make_job(JOB, where="test")
    with pytest.raises(FleetError, match="deepspeed is not installed"):
        check_installed(find_engine("deepspeed"), job)
    with pytest.raises(FleetError, match="megatron-core is not installed"):
        check_installed(find_engine("megatron"), job)
    checkout = dataclasses.replace(job, megatron_path=Path("/checkout"))
    check_installed(find_engine("megatron"), checkout)


def test_an_engine_without_a_driver_is_not_searched(monkeypatch):
    job = dataclasses.replace(make_job(JOB, where="test"), engine="megatron")
    monkeypatch.setattr(Megatron, "is_driven", False)
    with pytest.raises(JobError, match="cannot run trials of it, only predict") as caught:
        Here(ENVIRONMENT, {}).bind(job)
    assert "plan --engine megatron" in caught.value.hint
