"""Run a probe: start the ranks, fit what they measured, and put the file together."""

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune import __version__
from autotune.base.clock import date_of
from autotune.base.errors import FleetError, JobError
from autotune.cost.problem import accelerator_of
from autotune.devices.accelerators import Accelerator, shipped_accelerators
from autotune.devices.hardware import VERSIONED, Environment, usable_cores, visible_gpus
from autotune.fleet.base import THIS_MACHINE
from autotune.fleet.transports.base import Node
from autotune.fleet.transports.local import LocalTransport
from autotune.probe.figures import Figures, figures_of
from autotune.probe.findings import conclude
from autotune.probe.hardware_file import Line, entry_of, fits_of
from autotune.probe.measuring import TIMEOUT_S, Measured, ProbeRequest, measure, with_devices
from autotune.probe.points import Point, check_reports, points_of


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
    *,
    world: int,
    disk: str | None = None,
    is_quick: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> Probe:
    """Measure this machine's devices, all at once.

    Args:
        environment: What there is.
        world: Ranks to start, each on a device of its own.
        disk: See `ProbeRequest`.
        is_quick: See there.
        timeout_s: Ranks that are not done then are killed.

    Raises:
        JobError: The world is below one, or the folder is none.
        FleetError: There are fewer devices, or a rank failed, died, hung or reported what cannot
            be.
    """
    is_cpu = environment.accelerator == "cpu"
    found = map(str, usable_cores()) if is_cpu else (gpu.uuid for gpu in visible_gpus())
    here = Node(name=THIS_MACHINE, devices=tuple(found)[: environment.n_devices])
    nodes = with_devices([here], world)
    if disk is not None:
        if not Path(disk).is_dir():
            raise JobError(f"--nvme {disk}: is no folder", "name one on the disk to measure")
        disk = str(Path(disk).resolve())
    wanted = ProbeRequest(precisions=environment.precisions, disk=disk, is_quick=is_quick)
    measured = measure(
        LocalTransport(here), nodes, wanted, environment.accelerator, timeout_s=timeout_s
    )
    return probe_of(environment, measured, world=world)


def probe_of(
    environment: Environment, measured: Measured, *, world: int, n_nodes: int = 1
) -> Probe:
    """The figures that follow from what `world` ranks of each of `n_nodes` nodes reported.

    Raises:
        FleetError: A rank reported what cannot be.
    """
    reports = measured.reports
    check_reports(reports, per_node=world)
    names = _names(reports, environment.accelerator, world)
    points = points_of(reports)
    device_class = _class_of(environment)
    figures, beyond_nodes = _without_rack(figures_of(points, world, n_nodes), device_class)
    is_cpu = environment.accelerator == "cpu"
    return Probe(
        environment=environment,
        devices=names,
        n_nodes=n_nodes,
        points=points,
        figures=figures,
        device_class=device_class,
        warnings=(
            *_unlike(reports, names),
            *_shares_of_few(environment, world, n_nodes),
            *beyond_nodes,
            *conclude(
                points,
                figures,
                names=names,
                # Processors differ too much for a class: its figures are a guess.
                device_class=None if is_cpu else device_class,
            ),
        ),
        when=date_of(time.time(), "%Y-%m-%dT%H:%MZ"),
        wall_s=measured.wall_s,
    )


def _without_rack(
    figures: Figures, device_class: Accelerator | None
) -> tuple[Figures, tuple[str, ...]]:
    """Without what was measured between nodes of one rack, and a warning that says so."""
    if device_class is None or figures.measured.network is None:
        return figures, ()
    if device_class.nvlink_domain <= device_class.devices_per_node:
        return figures, ()
    measured = dataclasses.replace(figures.measured, network=None)
    return dataclasses.replace(figures, measured=measured, beyond={}), (
        f"NVLink joins {device_class.nvlink_domain} {device_class.name} beyond their nodes: what "
        "was measured between nodes is not taken for the network",
    )


def _names(
    reports: Sequence[Mapping[str, Any]], accelerator: str, per_node: int
) -> tuple[str, ...]:
    """Name of each rank's device."""
    kind = "core" if accelerator == "cpu" else "GPU"
    is_alone = len(reports) == per_node
    return tuple(
        f"{kind} {report['place']}"
        + ("" if is_alone else f" of node {rank // per_node}, {report['host']}")
        for rank, report in enumerate(reports)
    )


def _unlike(reports: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Iterator[str]:
    """Warnings of ranks that have another device than the first."""
    first = reports[0]["device"]
    for rank, report in enumerate(reports):
        if report["device"] != first:
            yield (
                f"rank {rank} ({names[rank]}) is another device than rank 0: {report['device']}, "
                f"not {first}; the figures are those of the slowest rank"
            )


def _shares_of_few(environment: Environment, world: int, n_nodes: int) -> Iterator[str]:
    """A warning where a node has more devices than were asked what they get of its network."""
    if n_nodes > 1 and world < environment.n_devices:
        yield (
            f"{world} of a node's {environment.n_devices} devices were measured: if they share "
            "network cards with the others, each has less while all of them send"
        )


def _class_of(environment: Environment) -> Accelerator | None:
    try:
        return accelerator_of(environment, shipped_accelerators())
    except FleetError:
        return None
