"""Faults of a Ray cluster under a trial or a search: an actor stops, a node or the head is lost.

A coordinator that is killed is for `tests/fleet/transports/test_ray.py`. Trials take a
rank on each of two nodes. Whatever dies, the trial blames the platform, nothing of it stays, and
the next one trains where it can.
"""

import contextlib
import functools
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from autotune.base.errors import ExitCode, FleetError
from autotune.fleet.node.processes import processes_of
from autotune.fleet.options import NO_OPTIONS
from autotune.fleet.transports.ray import RayDriver, RayTransport
from tests.chaos.arena import Ground
from tests.chaos.faults import Fault, must
from tests.chaos.gangs import Gangs, new_records
from tests.clusters.ray import RayCluster, lacks_for_ray, ray_cluster
from tests.searches import Search
from tests.trials import wait_until

_PLACES = ("build", "first", "forward", "optimizer")
"""Where a rank is meanwhile; see `tests.chaos.models.PLACES`."""
_HEAD_S = "3"
"""Time after which Ray ends those who have lost its head; a minute by default."""


class Cluster:
    """A head and two nodes of one slot each."""

    def __init__(self, folder: Path) -> None:
        """Start it."""
        with contextlib.ExitStack() as made:
            patch = made.enter_context(pytest.MonkeyPatch.context())
            patch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", _HEAD_S)
            self.ray: RayCluster = made.enter_context(ray_cluster(2))
            self._made = made.pop_all()
        self.folder = folder

    def close(self) -> None:
        """End it."""
        self._made.close()

    @contextlib.contextmanager
    def gangs(self, world: int = 2) -> Iterator[Gangs]:
        """A fleet of its nodes; nothing of it is left after."""
        records = new_records(self.folder)
        driver = RayDriver(self.ray.address, NO_OPTIONS, say=print)
        with contextlib.closing(driver):
            transport = RayTransport(driver, NO_OPTIONS)
            gangs = Gangs(transport, records, world=world, seen=records)
            with contextlib.closing(gangs):
                yield gangs
        self.check()

    def check(self) -> None:
        """No actor of ours is left, and nothing that one started."""
        wait_until(lambda: self.ray.programs() == [], "a program of ours is left")
        wait_until(lambda: self.ray.actors() == [], "an actor of ours is left")

    def actor_of(self, folder: Path, name: str) -> psutil.Process:
        """The actor on a node below which ranks of a trial run."""
        above = {parent.pid for rank in processes_of(folder) for parent in rank.parents()}
        found = {self._node_of(each): each for each in self.ray.actors() if each.pid in above}
        return found[name]

    def _node_of(self, actor: psutil.Process) -> str:
        above = {parent.pid for parent in actor.parents()}
        for name, node in self.ray.nodes.items():
            started = itertools.chain.from_iterable(node.all_processes.values())
            if above & {each.process.pid for each in started}:
                return name
        return ""


def cluster_of(ground: Ground) -> Cluster:
    """The cluster that the faults share; made when it is first asked for."""
    found: Cluster = ground.shared("ray", Cluster)
    return found


def faults() -> Iterator[Fault]:
    """All of them."""
    for place in _PLACES:
        yield _fault(f"actor of Ray stopped: in {place}", functools.partial(_actor_stopped, place))
        yield _fault(f"node of Ray lost: in {place}", functools.partial(_node_lost, place))
        yield _fault(f"head of Ray lost: in {place}", functools.partial(_head_lost, place))
    yield _fault("node of Ray lost: under a search", _search_loses_node)
    yield _fault("head of Ray lost: under a search, which another one resumes", _search_loses_head)


def _fault(name: str, inject: Callable[[Ground], None]) -> Fault:
    return Fault(name=name, inject=inject, needs=lacks_for_ray)


def _actor_stopped(place: str, ground: Ground) -> None:
    cluster = cluster_of(ground)
    with cluster.gangs() as gangs:
        trial = gangs.hang(place)
        actor = cluster.actor_of(trial.folder, "n1")
        actor.suspend()
        try:
            result = gangs.ends_by_the_platform(trial)
        finally:
            with contextlib.suppress(psutil.Error):
                actor.kill()
        must("n1" in result.evidence, f"it does not name the node: {result.evidence}")
        wait_until(lambda: not processes_of(trial.folder), "ranks are left")
        gangs.wait(lambda: not gangs.fleet.absent(), "the node is not taken back")
        gangs.trains()


def _node_lost(place: str, ground: Ground) -> None:
    """Trials of one rank, so that the other node goes on."""
    cluster = cluster_of(ground)
    with cluster.gangs(world=1) as gangs:
        trials = [gangs.hang(place), gangs.hang(place)]
        (lost,) = (each for each in trials if "n1" in each.gang.nodes)
        (other,) = (each for each in trials if each is not lost)
        cluster.ray.kill_node("n1")
        try:
            result = gangs.ends_by_the_platform(lost)
            must("n1" in result.evidence, f"it does not name the node: {result.evidence}")
            must(other.poll() is None, "the other node's trial ended as well")
            other.cancel()
            gangs.ends(other)
            must([*gangs.fleet.absent()] == ["n1"], f"left out: {gangs.fleet.absent()}")
            must(gangs.trains().devices == ["n0:0"], "it ran elsewhere")
        finally:
            cluster.ray.add("n1")


def _head_lost(place: str, ground: Ground) -> None:
    """Ray cannot go on without it; another cluster does."""
    cluster = cluster_of(ground)
    with contextlib.closing(cluster), cluster.gangs() as gangs:
        trial = gangs.hang(place)
        cluster.ray.kill_head()
        gangs.ends_by_the_platform(trial)
        said = ""
        try:
            gangs.fleet.capacity(2)
        except FleetError as error:
            said = error.message
        must("the way to the Ray cluster ended" in said, f"the fleet says: {said or 'nothing'}")
        wait_until(lambda: not processes_of(trial.folder), "ranks are left")
    ground.forget("ray")
    with cluster_of(ground).gangs() as gangs:
        gangs.trains()


def _flags(cluster: Cluster) -> list[str]:
    """Those of a search whose budget outlasts the half minute in which Ray gives a node up."""
    return [*cluster.ray.flags, "--trials", "1", "--no-diagnose", "--budget", "90s"]


def _answers(search: Search, flags: list[str]) -> None:
    code, stdout, stderr = search.run(*flags)
    must(code == 0, f"exit code {code}: {stderr[-500:]}")
    must(json.loads(stdout.splitlines()[-1])["best"]["samples_per_s"] > 0, "no answer")


def _search_loses_node(ground: Ground) -> None:
    """It ends and says which node; the same command goes on once there is another."""
    cluster, search = cluster_of(ground), Search(ground.folder())
    process = search.start(*_flags(cluster))
    wait_until(search.is_under_way, "a rank runs")
    cluster.ray.kill_node("n1")
    try:
        _, stderr = process.communicate(timeout=300)
    finally:
        cluster.ray.add("n1")
    must(process.returncode == ExitCode.FLEET_UNAVAILABLE, f"exit code {process.returncode}")
    must("n1" in stderr, f"it does not name the node: {stderr[-500:]}")
    cluster.check()
    _answers(search, _flags(cluster))
    cluster.check()


def _search_loses_head(ground: Ground) -> None:
    cluster, search = cluster_of(ground), Search(ground.folder())
    with contextlib.closing(cluster):
        process = search.start(*_flags(cluster))
        wait_until(search.is_under_way, "a rank runs")
        cluster.ray.kill_head()
        _, stderr = process.communicate(timeout=300)
        must(process.returncode == ExitCode.FLEET_UNAVAILABLE, f"exit code {process.returncode}")
        must("the way to the Ray cluster ended" in " ".join(stderr.split()), stderr[-500:])
        wait_until(lambda: not processes_of(search.study.folder), "ranks are left")
    ground.forget("ray")
    _answers(search, _flags(cluster_of(ground)))
