"""A probe of two nodes: network namespaces of this machine, and a cable of a known rate."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from autotune.base.errors import ExitCode
from autotune.devices.accelerators import read_accelerators
from autotune.probe.token import TOKEN_ENV
from tests.command_line import autotune
from tests.namespaces import FIRST_ADDRESS, RATE_MBIT, Cable, ended, needs_namespaces, two_nodes
from tests.trials import wait_until

pytestmark = [pytest.mark.real, needs_namespaces]
PORT = 29400
TOKEN = "e3b7a91c5d20f846b1a7c2"


@pytest.fixture
def cable(tmp_path: Path) -> Iterator[Cable]:
    with two_nodes(tmp_path) as cable:
        yield cable


def start(cable: Cable, rank: int, *flags: str) -> subprocess.Popen[str]:
    probe = (sys.executable, "-m", "autotune", "probe", "--quick", "--world", "1")
    nodes = ("--nodes", "2", "--node-rank", str(rank), "--master", f"{FIRST_ADDRESS}:{PORT}")
    return cable.start(rank, [*probe, *nodes, *flags], **{TOKEN_ENV: TOKEN})


def ranks_of(node: subprocess.Popen[str]) -> list[psutil.Process]:
    """Ranks that a node has started."""
    found = []
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(node.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "RANK" in process.environ():
                    found.append(process)
    return found


def measures_with_others(rank: psutil.Process) -> bool:
    """Whether a rank is connected to node 0's store, and to its rank besides."""
    files = [Path(f"/proc/{rank.pid}/net/{name}") for name in ("tcp", "tcp6")]
    with contextlib.suppress(OSError):
        lines = [line.split() for file in files for line in file.read_text().splitlines()]
        # Remote end and state; the kernel writes 10.77.0.1 backwards, and 01 is established.
        remotes = [line[2].split(":")[0] for line in lines if line[3] == "01"]
        return sum(remote.endswith("01004D0A") for remote in remotes) > 1
    return False


@pytest.mark.thorough
def test_the_network_between_two_nodes_is_measured(cable: Cable, tmp_path: Path) -> None:
    first, second = ended(start(cable, 0, "--json"), start(cable, 1))
    assert [first[0], second[0]] == [0, 0], first[2] + second[2]
    assert "by at" in first[2]
    assert "node 0 has the figures" in second[2]
    assert second[1] == ""
    assert list((tmp_path / "node1").glob("*.yaml")) == []

    file = tmp_path / "node0" / "hardware.yaml"
    (entry,) = read_accelerators(file)
    assert entry.measured is not None
    assert entry.measured.link is None
    link = entry.measured.network
    assert link is not None
    cable_bytes_per_s = RATE_MBIT * 1e6 / 8
    all_reduce_bytes_per_s = link.bytes_per_s * link.all_reduce_speed
    # Loopback would be ten times as fast; ranks that wait for a core are slower.
    assert 0.3 * cable_bytes_per_s < all_reduce_bytes_per_s < 1.5 * cable_bytes_per_s
    about: dict[str, Any] = json.loads(first[1])["probe"]
    assert about["nodes"] == 2
    assert [name.split(" of ")[1].split(",")[0] for name in about["devices"]] == [
        "node 0",
        "node 1",
    ]
    assert TOKEN not in file.read_text(encoding="utf-8")

    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    data["accelerators"]["CPU"]["measured"]["network"]["gb_per_s"] /= 100
    slower = tmp_path / "slower.yaml"
    slower.write_text(yaml.safe_dump(data), encoding="utf-8")
    fast_s, slow_s = (step_of_two_nodes(path, tmp_path) for path in (file, slower))
    assert slow_s > 2 * fast_s


def step_of_two_nodes(accelerators: Path, folder: Path) -> float:
    """Predicted, of the best that a plan finds for a rank on each."""
    plan = [
        *("plan", "--model", "tiny-llama", "--seq-len", "64", "--global-batch", "64"),
        *("--precision", "fp32", "--gpu", "cpu", "--per-node", "1", "--world", "2"),
    ]
    done = autotune(*plan, "--json", "--accelerators", str(accelerators), folder=folder)
    assert done.returncode == 0, done.stderr
    return float(json.loads(done.stdout)["candidates"][0]["pred_step_time_s"])


@pytest.mark.thorough
def test_a_node_that_dies_ends_the_others_with_a_reason(cable: Cable, tmp_path: Path) -> None:
    nodes = [start(cable, 0), start(cable, 1)]
    wait_until(
        lambda: any(map(measures_with_others, ranks_of(nodes[1]))),
        "the nodes did not meet",
    )
    (rank,) = ranks_of(nodes[1])
    others = ranks_of(nodes[0])
    rank.kill()
    first, second = ended(*nodes)
    assert [first[0], second[0]] == [ExitCode.FLEET_UNAVAILABLE] * 2
    assert "was ended by SIGKILL" in second[2]
    assert "rank 0: " in first[2]
    assert "Traceback" not in first[2] + second[2]
    assert not (tmp_path / "node0" / "hardware.yaml").exists()
    assert not [process for process in (rank, *others) if process.is_running()]
