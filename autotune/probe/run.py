"""Run a probe: start the ranks, fit what they measured, and put the file together."""

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

from autotune import __version__
from autotune.base.clock import date_of
from autotune.base.errors import FleetError
from autotune.cost.problem import accelerator_of
from autotune.devices.accelerators import Accelerator, shipped_accelerators
from autotune.devices.hardware import VERSIONED, Environment
from autotune.fleet.transports.base import Transport
from autotune.probe.figures import Figures, figures_of
from autotune.probe.findings import conclude
from autotune.probe.hardware_file import Line, entry_of, fits_of
from autotune.probe.measuring import TIMEOUT_S, ProbeRequest, measure, with_devices
from autotune.probe.points import Point


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Measurements of a probe, and the figures that follow."""

    environment: Environment
    devices: tuple[str, ...]
    """Name of each rank's device."""
    n_nodes: int
    points: tuple[Point, ...]
    figures: Figures
    device_class: Accelerator | None
    """Entry of the devices in the shipped table; None: it has none."""
    warnings: tuple[str, ...]
    when: str
    wall_s: float

    @property
    def entry(self) -> dict[str, Any]:
        """As the table of accelerators spells it, by name."""
        return entry_of(
            self.environment,
            self.figures,
            self.device_class,
            per_node=len(self.devices) // self.n_nodes,
            n_nodes=self.n_nodes,
            when=self.when,
        )

    @property
    def about(self) -> dict[str, Any]:
        """How the entry came about, down to the points."""
        return {
            "date": self.when,
            "took_s": round(self.wall_s, 1),
            "ranks": len(self.devices),
            "nodes": self.n_nodes,
            "devices": list(self.devices),
            "device_name": self.environment.device_name,
            "versions": {
                "autotune": __version__,
                **{p: getattr(self.environment, f"{p}_version") for p in reversed(VERSIONED)},
            },
            "warnings": list(self.warnings),
            "fits": fits_of(self.figures),
            "points": [Line(point.as_dict()) for point in self.points],
        }


def run_probe(
    environment: Environment,
    transport: Transport,
    *,
    world: int | None = None,
    disk: str | None = None,
    is_quick: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> Probe:
    """Measure the devices of a transport's nodes, all at once.

    Args:
        environment: What each node has.
        transport: The way to them.
        world: Devices to measure on each; None: all that every node has.
        disk: See `ProbeRequest`.
        is_quick: See there.
        timeout_s: Ranks that are not done then are killed.

    Raises:
        JobError: The world is below one.
        FleetError: There are fewer devices, or a rank failed, died, hung or reported what cannot
            be.
    """
    nodes = with_devices(transport.nodes(), world)
    wanted = ProbeRequest(precisions=environment.precisions, disk=disk, is_quick=is_quick)
    measured = measure(transport, nodes, wanted, environment.accelerator, timeout_s=timeout_s)
    per_node, n_nodes, points = len(nodes[0].devices), len(nodes), measured.points
    device_class = _class_of(environment)
    found = figures_of(points, per_node, n_nodes)
    figures = _without_rack(found, device_class)
    is_cpu = environment.accelerator == "cpu"
    return Probe(
        environment=environment,
        devices=measured.names,
        n_nodes=n_nodes,
        points=points,
        figures=figures,
        device_class=device_class,
        warnings=conclude(
            points,
            figures,
            names=measured.names,
            # Processors differ too much for a class: its figures are a guess.
            device_class=None if is_cpu else device_class,
            kinds=measured.kinds,
            # If they share network cards with the others, each has less while all of them send.
            few=(per_node, environment.n_devices) if n_nodes > 1 else None,
            rack=None if figures is found else device_class,
        ),
        when=date_of(time.time(), "%Y-%m-%dT%H:%MZ"),
        wall_s=measured.wall_s,
    )


def _without_rack(figures: Figures, device_class: Accelerator | None) -> Figures:
    """Without what was measured between nodes of one rack, which is not the network."""
    if device_class is None or figures.measured.network is None:
        return figures
    if device_class.nvlink_domain <= device_class.devices_per_node:
        return figures
    measured = dataclasses.replace(figures.measured, network=None)
    return dataclasses.replace(figures, measured=measured, beyond={})


def _class_of(environment: Environment) -> Accelerator | None:
    try:
        return accelerator_of(environment, shipped_accelerators())
    except FleetError:
        return None
