"""Faults of Slurm under a trial: its step ends, its controller is away.

Trials take two ranks on two nodes of an allocation, and nothing stays on any node after them. Jobs
that end and nodes that fail are for `tests/fleet/transports/test_slurm.py`.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.contract import Outcome
from autotune.fleet.options import NO_OPTIONS
from autotune.fleet.transports.slurm import SlurmTransport
from tests.chaos.arena import Ground
from tests.chaos.faults import Fault, must
from tests.chaos.gangs import Gangs, new_records
from tests.clusters.slurm import SlurmCluster, lacks_for_slurm, slurm_cluster
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
        """No job and no process is left, and all nodes are free."""
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


def faults() -> Iterator[Fault]:
    """All of them."""
    for place in _PLACES:
        yield _fault(f"step of Slurm cancelled: in {place}", functools.partial(_step_ends, place))
    yield _fault("slurmctld killed: started again under a trial", _controller_restarted)


def _fault(name: str, inject: Callable[[Ground], None]) -> Fault:
    return Fault(name=name, inject=inject, needs=lacks_for_slurm)


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
