"""Two nodes in one machine: network namespaces, and a cable of a known rate between them."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.devices.hardware import usable_cores
from autotune.fleet.node.processes import kill_all

RATE_MBIT = 1600
FIRST_ADDRESS = "10.77.0.1"
needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc"))) or len(usable_cores()) < 2,
    reason="needs root, iproute2 and two cores, for network namespaces",
)


@dataclass(frozen=True)
class Cable:
    """Two nodes, each with a core, a folder and an interface of its own."""

    names: tuple[str, str]
    """Names of the namespaces, and of the interface in each."""
    folders: tuple[Path, Path]

    def start(
        self, node: int, command: Sequence[str], **environment: str
    ) -> subprocess.Popen[str]:
        """Run something on a node, in its folder."""
        core = str(usable_cores()[node])
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[node], "taskset", "--cpu-list", core, *command],
            cwd=self.folders[node],
            env={**os.environ, "TMPDIR": str(self.folders[node]), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@contextmanager
def two_nodes(folder: Path) -> Iterator[Cable]:
    """Make them; whatever runs on them ends with them. Skips where none can be made."""
    names = (f"at{os.getpid()}a", f"at{os.getpid()}b")
    folders = (folder / "node0", folder / "node1")
    try:
        for each in folders:
            each.mkdir()
        for name in names:
            _run("ip", "netns", "add", name)
        ends = ("netns", names[0], "type", "veth", "peer", "name", names[1], "netns", names[1])
        _run("ip", "link", "add", names[0], *ends)
        for number, name in enumerate(names, 1):
            _run("ip", "-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", name)
            for device in (name, "lo"):
                _run("ip", "-n", name, "link", "set", device, "up")
            shaped = ("tbf", "rate", f"{RATE_MBIT}mbit", "burst", "512kb", "latency", "50ms")
            _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", name, "root", *shaped)
        yield Cable(names, folders)
    finally:
        kill_all(folder)
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def ended(*nodes: subprocess.Popen[str]) -> list[tuple[int, str, str]]:
    """Exit code, output and messages of each."""
    found = []
    for node in nodes:
        stdout, stderr = node.communicate(timeout=400)
        found.append((node.returncode, stdout, stderr))
    return found


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{' '.join(command)}: {done.stderr.strip()}")
