"""A probe of real ranks: what it finds, what it refuses, and that nothing is left behind."""

import contextlib
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from autotune.app.probe import probe_place
from autotune.base.errors import FleetError, JobError
from autotune.contract import SCRATCH_ENV, TrialResult
from autotune.devices.hardware import Environment, detect_environment
from autotune.fleet.gang_fleet import GangTrial
from autotune.fleet.node.processes import processes_of
from autotune.fleet.transports.base import Node
from autotune.fleet.transports.local import Here, LocalTransport, local_node
from autotune.probe.measuring import ProbeRequest, measure
from autotune.probe.points import LINK_KINDS, of_kind
from autotune.probe.run import Probe, run_probe
from tests.jobs import CPU

HERE = detect_environment()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv(SCRATCH_ENV, str(tmp_path))
    return tmp_path


def probe_here(environment: Environment, **options: Any) -> Probe:
    here = LocalTransport(local_node(environment, 1))
    return run_probe(environment, here, **options)


def left_in(folder: Path) -> list[str]:
    own = folder / f"autotune-{os.getuid()}"
    found = [path for around in (folder, own) if around.is_dir() for path in around.iterdir()]
    return [path.name for path in found if path not in (own, own / "ports")]


@pytest.mark.real
@pytest.mark.skipif(HERE.accelerator != "cpu" or HERE.n_devices < 2, reason="needs two cores")
def test_two_ranks_measure_themselves_and_each_other(folder: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    found = probe_here(HERE, world=2, disk=str(disk), is_quick=True)
    assert len(found.devices) == 2
    assert set(found.figures.products) == set(HERE.precisions)
    assert all(1e8 < curve.flops_per_s < 1e14 for curve in found.figures.products.values())
    assert set(found.figures.links) == set(LINK_KINDS)
    assert all(1e5 < curve.bytes_per_s < 1e12 for curve in found.figures.links.values())
    measured = found.figures.measured
    assert measured.memory_bytes_per_s is not None
    assert 1e8 < measured.memory_bytes_per_s < 1e13
    assert measured.nvme_bytes_per_s is not None
    assert measured.layer_s is not None
    assert measured.host_bytes_per_s is None
    (pair,) = of_kind(found.points, "pair")
    assert pair.ranks == (0, 1)
    assert all(len(point.seconds) == 2 for point in found.points)
    assert list(disk.iterdir()) == []
    assert processes_of(folder) == []
    assert left_in(folder) == ["disk"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpus_measure_themselves_and_their_links() -> None:
    environment = detect_environment()
    found = probe_here(environment, world=environment.n_devices, is_quick=True)
    assert all(curve.flops_per_s > 1e12 for curve in found.figures.products.values())
    measured = found.figures.measured
    assert measured.memory_bytes_per_s is not None
    assert measured.memory_bytes_per_s > 1e11
    assert measured.host_bytes_per_s is not None
    assert (measured.link is not None) == (environment.n_devices > 1)
    assert measured.layer_s is None


@pytest.mark.real
@pytest.mark.skipif(HERE.accelerator != "cpu" or HERE.n_devices < 2, reason="needs two cores")
def test_a_rank_that_is_killed_is_named(folder: Path) -> None:
    def kill_rank_one() -> None:
        while not ended.is_set():
            for process in processes_of(folder):
                with contextlib.suppress(psutil.Error):
                    if process.environ().get("RANK") == "1":
                        process.kill()
                        return
            time.sleep(0.02)

    ended = threading.Event()
    killer = threading.Thread(target=kill_rank_one)
    killer.start()
    try:
        with pytest.raises(FleetError, match="rank 1: ended by SIGKILL"):
            probe_here(HERE, world=2, is_quick=True)
    finally:
        ended.set()
        killer.join()
    assert processes_of(folder) == []
    assert left_in(folder) == []


@pytest.mark.real
def test_ranks_that_hang_are_ended(folder: Path) -> None:
    with pytest.raises(FleetError, match="no answer after 0 s"):
        probe_here(CPU, world=1, timeout_s=0.2)
    assert processes_of(folder) == []
    assert left_in(folder) == []


@pytest.mark.real
def test_ctrl_c_ends_the_ranks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the signal's handler does it, wherever the coordinator is."""

    poll = GangTrial.poll

    def interrupt(trial: GangTrial) -> TrialResult | None:
        if trial.asked_to_end_s is None and processes_of(folder):
            raise KeyboardInterrupt
        return poll(trial)

    monkeypatch.setattr(GangTrial, "poll", interrupt)
    with pytest.raises(KeyboardInterrupt):
        probe_here(CPU, world=1)
    assert processes_of(folder) == []
    assert left_in(folder) == []


@pytest.mark.thorough
@pytest.mark.real
@pytest.mark.skipif(torch.cuda.is_available(), reason="fails only where there is no GPU")
def test_a_rank_that_fails_says_why() -> None:
    node = Node(name="here", devices=("0",))
    with pytest.raises(FleetError, match="rank 0: "):
        measure(LocalTransport(node), [node], ProbeRequest(precisions=()), "cuda")


def test_bad_input_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="--world 0"):
        probe_here(CPU, world=0)
    with pytest.raises(JobError, match="--world -1"):
        probe_here(CPU, world=-1)
    with pytest.raises(FleetError, match="has 2 device"):
        probe_here(CPU, world=3)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(JobError, match="is no folder"):
        probe_place(
            tmp_path / "hardware.yaml",
            Here(CPU, {}),
            world=1,
            disk=str(file),
            is_quick=True,
            note=print,
        )
