"""Trials on a GPU: the meter, the cap, and memory that is free again afterwards."""

import pytest

from autotune.contract import Outcome
from autotune.devices.hardware import detect_environment, visible_gpus
from autotune.fleet.transports.local import local_fleet
from autotune.record.study import Study
from tests.trials import ds_config, files, spec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.real,
    pytest.mark.skipif(not visible_gpus(), reason="needs a CUDA device"),
]

ONE_GPU = {"world": 1, "dp": 1, "global_batch": 2, "accelerator": "cuda"}


def run(tmp_path, **changes):
    study = Study(tmp_path / "results", "test")
    study.lock()
    fleet = local_fleet(detect_environment(), world=1)
    trial = spec(**ONE_GPU, **changes)
    return fleet.submit(trial, study.write_spec(trial, files(ds_config()))).wait()


def test_the_meter_counts_the_allocator_and_the_context(tmp_path):
    result = run(tmp_path, expected={"stage": 1, "dp": 1})
    assert result.outcome is Outcome.OK, result.evidence
    meters = result.memory_bytes
    assert meters["peak"] == meters["reserved"] + meters["context_and_comm"]
    assert 0 < meters["allocated"] <= meters["reserved"]
    assert meters["context_and_comm"] > 100 * 2**20


def test_a_cap_ends_a_hoarder_out_of_memory_and_frees_the_card(tmp_path):
    before = visible_gpus()[0].memory_used_bytes
    limit = 2 * 2**30
    result = run(tmp_path, factory="hoards_on_device", memory_limit_bytes=limit)
    assert result.outcome is Outcome.OOM, result.evidence
    assert result.peak_memory_bytes <= 1.02 * limit
    assert visible_gpus()[0].memory_used_bytes <= before + 64 * 2**20
