"""A fleet of two nodes with a core each, both of them this machine: a gang of two spans them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from autotune.devices.hardware import Environment, detect_environment
from autotune.engines.base import Engine
from autotune.fleet.base import Place
from autotune.fleet.gang_fleet import GangFleet
from autotune.fleet.options import FleetOptions
from autotune.fleet.transports.base import Node
from autotune.fleet.transports.local import LocalTransport, local_node
from autotune.job.job import Job
from autotune.planning.lattice import Lattice


class TwinTransport(LocalTransport):
    """The way to two nodes that are one machine."""

    def __init__(self, environment: Environment) -> None:
        here = local_node(environment, 2)
        super().__init__(here)
        self._twins = tuple(
            replace(here, name=f"twin-{place}", devices=(core,))
            for place, core in enumerate(here.devices[:2])
        )

    def nodes(self) -> tuple[Node, ...]:
        """Both."""
        return self._twins


class Twins:
    """Found wherever there are cores."""

    def find(
        self, of: str, job_file: Path | None, flags: Mapping[str, Any], options: FleetOptions
    ) -> Place:
        """The cores of this machine."""
        return TwoNodes(detect_environment(), flags)


class TwoNodes(Place):
    """Where the trials run."""

    def fleet_for(self, job: Job, engine: Engine, lattice: Lattice) -> Callable[[], GangFleet]:
        """A fleet of both."""
        return partial(GangFleet, TwinTransport(self.environment), world=job.world)
