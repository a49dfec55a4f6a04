"""A probe of two nodes: network namespaces of this machine, and a cable of a known rate."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from autotune.accelerators import read_accelerators
from autotune.errors import ExitCode
from autotune.fleet.processes import kill_all, processes_of
from autotune.hardware import usable_cores
from autotune.probe.nodes import TOKEN_ENV
from tests.test_cli import autotune
from tests.trials import wait_until

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc"))) or len(usable_cores()) < 2,
        reason="needs root, iproute2 and two cores, for network namespaces",
    ),
]
RATE_MBIT = 1600
PORT = 29400


@dataclass
class Cable:
    """Two namespaces with a cable between them; a rank each, on a core of its own."""

    names: tuple[str, str]
    folder: Path

    def start(
        self, rank: int, *flags: str, token: str = "a token of both"
    ) -> subprocess.Popen[str]:
        folder = self.folder / f"node{rank}"
        folder.mkdir(exist_ok=True)
        core = str(usable_cores()[rank])
        return subprocess.Popen(
            [
                *("ip", "netns", "exec", self.names[rank], "taskset", "--cpu-list", core),
                *(sys.executable, "-m", "autotune", "probe", "--quick", "--world", "1"),
                *("--nodes", "2", "--node-rank", str(rank), "--master", f"10.77.0.1:{PORT}"),
                *flags,
            ],
            cwd=folder,
            env={**os.environ, TOKEN_ENV: token, "TMPDIR": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def cable(tmp_path: Path) -> Iterator[Cable]:
    names = (f"at{os.getpid()}a", f"at{os.getpid()}b")
    made = subprocess.run(["ip", "netns", "add", names[0]], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no network namespaces here: {made.stderr.strip()}")
    try:
        _run("ip", "netns", "add", names[1])
        ends = ("netns", names[0], "type", "veth", "peer", "name", names[1], "netns", names[1])
        _run("ip", "link", "add", names[0], *ends)
        for number, name in enumerate(names, 1):
            _run("ip", "-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", name)
            for device in (name, "lo"):
                _run("ip", "-n", name, "link", "set", device, "up")
            shaped = ("tbf", "rate", f"{RATE_MBIT}mbit", "burst", "512kb", "latency", "50ms")
            _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", name, "root", *shaped)
        yield Cable(names, tmp_path)
    finally:
        kill_all(tmp_path)
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def ranks_below(folder: Path) -> list[psutil.Process]:
    """Ranks of probes whose files are below a folder."""
    found = []
    for process in processes_of(folder):
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


def ended(*nodes: subprocess.Popen[str]) -> list[tuple[int, str, str]]:
    """Exit code, output and messages of each."""
    found = []
    for node in nodes:
        stdout, stderr = node.communicate(timeout=200)
        found.append((node.returncode, stdout, stderr))
    return found


def test_the_network_between_two_nodes_is_measured(cable: Cable, tmp_path: Path) -> None:
    first, second = ended(cable.start(0, "--json"), cable.start(1))
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
    assert 0.5 * cable_bytes_per_s < all_reduce_bytes_per_s < 1.1 * cable_bytes_per_s
    about: dict[str, Any] = json.loads(first[1])["probe"]
    assert about["nodes"] == 2
    assert [name.split(" of ")[1].split(",")[0] for name in about["devices"]] == [
        "node 0",
        "node 1",
    ]
    assert "a token of both" not in file.read_text(encoding="utf-8")

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


def test_a_node_that_dies_ends_the_others_with_a_reason(cable: Cable, tmp_path: Path) -> None:
    nodes = [cable.start(0), cable.start(1)]
    wait_until(
        lambda: any(map(measures_with_others, ranks_below(tmp_path / "node1"))),
        "the nodes did not meet",
    )
    (rank,) = ranks_below(tmp_path / "node1")
    rank.kill()
    first, second = ended(*nodes)
    assert [first[0], second[0]] == [ExitCode.FLEET_UNAVAILABLE] * 2
    assert "was ended by SIGKILL" in second[2]
    assert "Connection closed by peer" in first[2]
    assert "Traceback" not in first[2] + second[2]
    assert not (tmp_path / "node0" / "hardware.yaml").exists()
    assert processes_of(tmp_path) == []
