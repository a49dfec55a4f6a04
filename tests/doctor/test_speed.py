"""The measurement runs for real, ends when it fails or hangs, and leaves nothing behind."""

import os
import tempfile
from pathlib import Path

import pytest
import torch

from autotune.doctor import findings
from autotune.doctor.findings import measure_speed
from autotune.fleet.node.processes import processes_of
from autotune.probe.points import Point


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.real
def test_two_ranks_multiply_and_reduce(folder: Path) -> None:
    cores = (sorted(os.sched_getaffinity(0)) * 2)[:2]
    measured = measure_speed("cpu", cores)
    assert measured.problem == ""
    assert measured.devices == tuple(cores)
    assert measured.matmul == "1024 x 1024 fp32"
    assert len(measured.matmul_flops) == 2
    assert all(flops > 1e8 for flops in measured.matmul_flops)
    assert measured.all_reduce_bytes == 32 * 2**20
    assert measured.all_reduce_busbw is not None
    assert measured.all_reduce_busbw > 1e6
    assert processes_of(folder) == []
    assert list(folder.glob("autotune-doctor-*")) == []


@pytest.mark.real
@pytest.mark.skipif(torch.cuda.is_available(), reason="fails only where there is no GPU")
def test_a_rank_that_fails_says_why(folder: Path) -> None:
    measured = measure_speed("cuda", [0])
    assert measured.problem.startswith("rank 0: ")
    assert "CUDA" in measured.problem or "NVIDIA" in measured.problem
    assert measured.matmul_flops == ()
    assert processes_of(folder) == []


@pytest.mark.real
def test_a_measurement_that_hangs_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "TIMEOUT_S", 0.2)
    measured = measure_speed("cpu", [0])
    assert measured.problem.startswith("no answer after 0 s")
    assert processes_of(folder) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpus_multiply_and_reduce() -> None:
    measured = measure_speed("cuda", range(torch.cuda.device_count()))
    assert measured.problem == ""
    assert all(flops > 1e12 for flops in measured.matmul_flops)


def test_bandwidth_is_that_of_the_slowest_rank() -> None:
    reduced = Point(
        kind="all_reduce",
        seconds=(1.0, 2.0, 1.0, 1.0),
        scatter=0.0,
        ranks=(0, 1, 2, 3),
        size_bytes=1000,
    )
    assert findings._busbw(reduced) == 2 * 3 / 4 * 1000 / 2.0


def test_many_cores_are_sampled_evenly() -> None:
    assert findings._spread(range(64), 4) == (0, 16, 32, 48)
    assert findings._spread([5, 9], 4) == (5, 9)
