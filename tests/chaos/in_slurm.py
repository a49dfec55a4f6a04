"""Faults of Slurm: jobs that end, nodes that fail, daemons that die under a trial.

Trials take two ranks on two nodes of an allocation. Whatever ends it, the trial blames the
platform, the fleet says which job and why, nothing stays on any node, and the next allocation
trains on.
"""

import contextlib
import functools
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.base.errors import ExitCode, FleetError
from autotune.contract import Outcome
from autotune.fleet.options import NO_OPTIONS
from autotune.fleet.transports.slurm import SlurmTransport
from tests.chaos.arena import Ground
from tests.chaos.faults import Fault, must
from tests.chaos.gangs import Gangs, new_records
from tests.clusters.slurm import SlurmCluster, lacks_for_slurm, slurm_cluster
from tests.searches import Search
from tests.trials import wait_until

_PLACES = ("build", "first", "forward", "optimizer")
"""Where a rank is meanwhile; see `tests.chaos.models.PLACES`."""


class Cluster:
    """Three nodes of one slot each; its variables are this process's while it is there."""

    def __init__(self, folder: Path) -> None:
        """Start it."""
        with contextlib.ExitStack() as made:
            self.slurm: SlurmCluster = made.enter_context(slurm_cluster(folder, 3))
            patch = made.enter_context(pytest.MonkeyPatch.context())
            for name, value in self.slurm.variables.items():
                patch.setenv(name, value)
            self._made = made.pop_all()
        self.folder = folder

    def close(self) -> None:
        """End it."""
        self._made.close()

    @contextlib.contextmanager
    def gangs(self, *arguments: str) -> Iterator[tuple[Gangs, str]]:
        """A fleet of an allocation and the allocation's number; nothing of it is left after."""
        job = self.slurm.allocate(*arguments)
        records = new_records(self.folder)
        try:
            gangs = Gangs(SlurmTransport(job, NO_OPTIONS), records, world=2, seen=records)
            with contextlib.closing(gangs):
                yield gangs, job
        finally:
            for each in self.slurm.jobs():
                self.slurm.run("scancel", each)
        self.check()

    def check(self) -> None:
        """No job and no process is left, and all nodes are free.

        Raises:
            NotSurvivedError: One of these does not hold.
        """
        for holds, what in (
            (lambda: self.slurm.jobs() == [], "a job is left"),
            (lambda: self.slurm.processes() == [], "a process is left"),
            (lambda: self.slurm.n_idle() == 3, "a node is not free"),
        ):
            wait_until(holds, what)


def cluster_of(ground: Ground) -> Cluster:
    """The cluster that the faults share; made when it is first asked for."""
    found: Cluster = ground.shared("slurm", Cluster)
    return found


_ENDS = {
    "job of Slurm cancelled": ("scancel {job}", "CANCELLED"),
    "job of Slurm requeued": ("scontrol requeue {job}", "requeued"),
    "job of Slurm preempted": (
        "sbatch --parsable -p high -N3 --output=/dev/null --wrap=true",
        "PREEMPTED",
    ),
    "first node of a job down": (
        "scontrol update nodename=n0 state=down reason=test",
        "NODE_FAIL",
    ),
}
"""What ends an allocation, and the word that the fleet has to say of it."""


def faults() -> Iterator[Fault]:
    """All of them."""
    for subject, (command, word) in _ENDS.items():
        for place in _PLACES:
            yield _fault(
                f"{subject}: in {place}",
                functools.partial(_ended, command, word, place),
            )
    for place in _PLACES:
        yield _fault(f"slurmd killed: in {place}", functools.partial(_daemon_killed, place))
        yield _fault(f"step of Slurm cancelled: in {place}", functools.partial(_step_ends, place))
    yield _fault("slurmctld killed: started again under a trial", _controller_restarted)
    yield _fault("search that asked Slurm for nodes killed: its job ends", _search_killed)
    yield _fault("job of a search cancelled: while a trial runs", _search_cancelled)


def _fault(name: str, inject: Callable[[Ground], None]) -> Fault:
    return Fault(name=name, inject=inject, needs=lacks_for_slurm)


def _ended(command: str, word: str, place: str, ground: Ground) -> None:
    cluster = cluster_of(ground)
    is_requeued = "requeue" in command
    with cluster.gangs("-N2", "--requeue" if is_requeued else "--no-requeue") as (gangs, job):
        trial = gangs.hang(place)
        cluster.slurm.run(*command.format(job=job).split())
        gangs.ends_by_the_platform(trial)
        said = ""
        try:
            gangs.fleet.capacity(2)
        except FleetError as error:
            said = error.message
        must(
            f"job {job} of Slurm" in said and word in said, f"the fleet says: {said or 'nothing'}"
        )
        if "state=down" in command:
            cluster.slurm.mend(0)
    with cluster.gangs("-N2") as (gangs, _):
        gangs.trains()


def _daemon_killed(place: str, ground: Ground) -> None:
    """Of a job that outlives its nodes: the search goes on with the others."""
    cluster = cluster_of(ground)
    with cluster.gangs("-N3", "--no-kill") as (gangs, _):
        trial = gangs.hang(place)
        cluster.slurm.kill_daemon(1)
        try:
            result = gangs.ends_by_the_platform(trial)
            must("n1" in result.evidence, f"it does not name the node: {result.evidence}")
            must([*gangs.fleet.absent()] == ["n1"], f"left out: {gangs.fleet.absent()}")
            sound = gangs.trains()
            must(sound.devices == ["n0:0", "n2:0"], f"it ran on {sound.devices}")
        finally:
            cluster.slurm.start_daemon(1)


def _step_ends(place: str, ground: Ground) -> None:
    """The steps that hold the agents of a trial; the job stays, and gets new ones."""
    cluster = cluster_of(ground)
    with cluster.gangs("-N2") as (gangs, job):
        trial = gangs.hang(place)
        shown = cluster.slurm.run("squeue", "-h", "-s", "-j", job, "-o", "%i").split()
        steps = [each for each in shown if each.partition(".")[2].isdigit()]
        must(steps, f"no steps: {shown}")
        cluster.slurm.run("scancel", *steps)
        gangs.ends_by_the_platform(trial)
        gangs.wait(lambda: not gangs.fleet.absent(), "a node is not taken back")
        gangs.trains()


def _controller_restarted(ground: Ground) -> None:
    """Slurm's controller is away for a while: what runs does not need it."""
    cluster = cluster_of(ground)
    with cluster.gangs("-N2") as (gangs, job):
        gangs.trains()  # by then its steps are there
        trial = gangs.submit("nothing_in_first")
        cluster.slurm.kill_controller()
        result = gangs.ends(trial)
        must(result.outcome is Outcome.OK, f"{result.outcome}: {result.evidence}")
        cluster.slurm.start_controller()
        cluster.slurm.wait_until(lambda: cluster.slurm.jobs() == [job], "the job is known again")
        gangs.trains()


def _search(folder: Path) -> tuple[Search, list[str]]:
    flags = ["--fleet", "slurm:-N2 -t 10", "--trials", "1", "--no-diagnose", "--budget", "40s"]
    return Search(folder), flags


def _search_killed(ground: Ground) -> None:
    cluster, folder = cluster_of(ground), ground.folder()
    search, flags = _search(folder)
    process = search.start(*flags)
    wait_until(search.is_under_way, "a rank runs")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    cluster.check()
    code, stdout, stderr = search.run(*flags)
    must(code == 0, f"exit code {code}: {stderr[-500:]}")
    must(json.loads(stdout.splitlines()[-1])["best"]["samples_per_s"] > 0, "no answer")
    first = search.study.trials()[0].result
    must(first is not None and first.outcome is Outcome.LOST, f"the first: {first}")
    cluster.check()


def _search_cancelled(ground: Ground) -> None:
    cluster, folder = cluster_of(ground), ground.folder()
    search, flags = _search(folder)
    process = search.start(*flags)
    wait_until(search.is_under_way, "a rank runs")
    (job,) = cluster.slurm.jobs()
    cluster.slurm.run("scancel", job)
    _, stderr = process.communicate(timeout=300)
    must(process.returncode == ExitCode.FLEET_UNAVAILABLE, f"exit code {process.returncode}")
    must(f"job {job} of Slurm has ended" in " ".join(stderr.split()), stderr[-500:])
    cluster.check()
    code, _, stderr = search.run(*flags)
    must(code == 0, f"exit code {code}: {stderr[-500:]}")
    cluster.check()
