"""A Ray cluster on this machine: a head without slots, and nodes that are started as its own."""

import contextlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.clusters.ssh import core_of


def lacks_for_ray() -> str:
    """Why no cluster can be made here; empty: one can."""
    is_there = importlib.util.find_spec("ray") is not None
    return "" if is_there else "needs Ray: pip install ray"


needs_ray = pytest.mark.skipif(
    bool(lacks_for_ray()), reason=lacks_for_ray() or "nothing is missing"
)
_STORE_BYTES = 80 * 2**20
_MARK = "AUTOTUNE_TEST_CLUSTER"


@dataclass
class RayCluster:
    """A cluster of some nodes."""

    cluster: Any
    nodes: dict[str, Any]
    slots: int
    folder: Path

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    @property
    def flags(self) -> list[str]:
        """Flags of a command of ours."""
        return ["--fleet", f"ray:{self.address}"]

    def add(self, name: str) -> None:
        """Start a node, on a core of its own where there are as many."""
        with _marked(self.folder), _on(core_of(len(self.nodes))):
            self.nodes[name] = self.cluster.add_node(
                num_cpus=self.slots, object_store_memory=_STORE_BYTES, node_name=name
            )

    def kill_node(self, name: str) -> None:
        """End a node as a power cut does."""
        self.cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def kill_head(self) -> None:
        """End what the cluster's processes meet at."""
        self.cluster.head_node.kill_gcs_server(check_alive=False)

    def actors(self) -> list[psutil.Process]:
        """Processes of actors of ours."""
        return [p for p in self.processes() if _title(p).startswith("ray::Programs")]

    def programs(self) -> list[psutil.Process]:
        """What actors of ours have started, and what that has started."""
        return [p for p in self.processes() if "autotune" in _title(p)]

    def processes(self) -> list[psutil.Process]:
        """Those of this cluster, however they descend: its folder is in their environment."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(_MARK) == str(self.folder):
                    found.append(process)
        return found


@contextmanager
def ray_cluster(n_nodes: int, *, slots: int = 1) -> Iterator[RayCluster]:
    """Start a cluster, and end it with all that runs on it."""
    from ray._common.utils import get_default_ray_temp_dir
    from ray.cluster_utils import Cluster

    # The head writes its address there, wherever its own folder is.
    Path(get_default_ray_temp_dir()).mkdir(exist_ok=True)
    # Sockets of Ray lie below it, and their paths are short.
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    made = RayCluster(cluster=None, nodes={}, slots=slots, folder=folder)
    try:
        with _marked(folder):
            made.cluster = Cluster(
                initialize_head=True,
                head_node_args={
                    "num_cpus": 0,
                    "object_store_memory": _STORE_BYTES,
                    "include_dashboard": False,
                    "node_name": "head",
                    "temp_dir": str(folder),
                },
            )
        for number in range(n_nodes):
            made.add(f"n{number}")
        yield made
    finally:
        if made.cluster is not None:
            with contextlib.suppress(Exception):  # parts of it were killed
                made.cluster.shutdown()
        for process in made.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _marked(folder: Path) -> Iterator[None]:
    """Mark what is started meanwhile as the cluster's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_MARK, str(folder))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        yield


@contextmanager
def _on(core: int) -> Iterator[None]:
    """Keep what is started meanwhile to a core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _title(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):  # it ended meanwhile
        return " ".join(process.cmdline())
    return ""
