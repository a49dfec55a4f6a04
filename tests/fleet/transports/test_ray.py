"""Nodes of a Ray cluster: what is asked of it, and trials and searches on two nodes."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import pytest

from autotune.base.errors import FleetError, JobError
from autotune.contract import Outcome
from autotune.fleet.gang_fleet import GangFleet
from autotune.fleet.options import NO_OPTIONS, FleetOptions
from autotune.fleet.transports import ray
from autotune.fleet.transports.ray import RayDriver, RayNodes, RayTransport
from autotune.record.study import Study
from tests.clusters.ray import RayCluster, needs_ray, ray_cluster
from tests.searches import Search
from tests.trials import ds_config, files, spec, wait_until

pytestmark = pytest.mark.xdist_group("fleets")
"""The cluster takes the machine's cores."""


@pytest.mark.parametrize("slots", ["8", "2x", "0x8", "2x8x1", "x"])
def test_slots_are_nodes_and_each(slots: str) -> None:
    with pytest.raises(JobError, match="NODESxEACH"):
        RayDriver("", FleetOptions(slots=slots), say=print)


def test_without_ray_its_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "find_spec", lambda name: None)
    with pytest.raises(FleetError, match=r"not installed(.|\n)*pip install ray"):
        RayDriver("", NO_OPTIONS, say=print)


@needs_ray
def test_no_cluster_is_said_at_once() -> None:
    started_s = time.monotonic()
    with pytest.raises(FleetError, match=r"no cluster of Ray at 127\.0\.0\.1:1"):
        RayDriver("127.0.0.1:1", NO_OPTIONS, say=print)
    assert time.monotonic() - started_s < ray.DEFAULT_WAIT_S / 5


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(2) as made:
        yield made


@contextlib.contextmanager
def far_fleet(address: str, world: int) -> Iterator[tuple[GangFleet, RayDriver]]:
    driver = RayDriver(address, NO_OPTIONS, say=print)
    try:
        fleet = GangFleet(RayTransport(driver, NO_OPTIONS), world=world)
        with contextlib.closing(fleet):
            yield fleet, driver
    finally:
        driver.close()


@pytest.mark.thorough
@needs_ray
def test_slots_are_held_all_or_none_and_given_back(cluster: RayCluster) -> None:
    notes: list[str] = []
    agree: list[str] = []
    with RayNodes().obtain(
        cluster.address, NO_OPTIONS, say=notes.append, agree=agree.append
    ) as held:
        place = RayNodes().find(held, None, {}, NO_OPTIONS)
        assert place.environment.accelerator == "cpu"
        with pytest.raises(FleetError, match="2 x 1 CPUs within 3 s: in the cluster, 0 of 2 CPUs"):
            RayDriver(cluster.address, FleetOptions(wait="3s"), say=notes.append)
        assert "waiting for 2 x 1 CPUs" in notes[0]
    with far_fleet(cluster.address, 2) as (fleet, driver):
        assert [(host.name, host.n_slots) for host in driver.hosts] == [("n0", 1), ("n1", 1)]
        assert fleet.capacity(2) == 1
    with pytest.raises(FleetError, match="1 x 5 CPUs"):
        RayDriver(cluster.address, FleetOptions(wait="1s", slots="1x5"), say=notes.append)


@pytest.mark.real
@needs_ray
def test_what_a_killed_coordinator_ran_ends_and_its_nodes_run_another_trial(
    cluster, tmp_path, monkeypatch
):
    """A search goes on with its record on this machine, and on Slurm."""
    search = Search(tmp_path)
    flags = ["--trials", "1", "--budget", "10s", "--no-diagnose", "--guard-steps", "0"]
    first = search.start(*cluster.flags, *flags)
    wait_until(search.is_under_way, "a rank runs")
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    wait_until(lambda: cluster.programs() == [], "what it ran ends with it")

    study, sound = Study(tmp_path, "another"), spec()
    study.lock()
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    with far_fleet("", 2) as (fleet, _):
        result = fleet.submit(sound, study.write_spec(sound, files(ds_config()))).wait()
    assert result.outcome is Outcome.OK, result.evidence
    assert result.devices == ["n0:0", "n1:0"]
    wait_until(lambda: cluster.actors() == [], "an actor is left")


@needs_ray
def test_a_lost_node_and_a_lost_head_end_their_lines(cluster, monkeypatch):
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "3")
    with far_fleet(cluster.address, 1) as (_, driver):
        lines = [driver.open(name, ["sh", "-c", "echo up; cat"]) for name in ("n0", "n1")]
        for line in lines:
            wait_until(lambda line=line: line.receive(), "it is up")
        cluster.kill_node("n1")
        wait_until(lambda: lines[1].poll() is not None, "the node's line is over")
        assert lines[0].poll() is None
        cluster.kill_head()
        wait_until(lambda: lines[0].poll() is not None, "the other's is, too")
        assert "the way to the Ray cluster ended with code" in driver.ended()
        with pytest.raises(OSError, match="the way to the Ray cluster ended"):
            driver.open("n0", ["true"])
