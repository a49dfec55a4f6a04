"""Run a probe: start the ranks, fit what they measured, and put the file together."""

import dataclasses
import json
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
from autotune.devices.hardware import VERSIONED, Environment, usable_cores
from autotune.fleet.measuring import ALONE, Meeting, measure_on_ranks
from autotune.probe.figures import Figures, figures_of
from autotune.probe.findings import conclude
from autotune.probe.hardware_file import Line, entry_of, fits_of
from autotune.probe.points import Point, check_reports, points_of

TIMEOUT_S = 300.0
"""A probe takes about a minute; longer than this, a rank hangs."""


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


@dataclass(frozen=True, kw_only=True)
class ProbeRequest:
    """What all ranks of a probe measure."""

    precisions: tuple[str, ...]
    disk: str | None = None
    """A folder whose disk is measured too, the same on all nodes."""
    is_quick: bool = False
    """Whether figures may be rougher for being there sooner."""
    only: str = ""
    """All that is measured: `pairs` (links between two ranks each) or `speed` (a product and an
    all-reduce); empty: everything."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the ranks of a probe reported."""

    reports: list[dict[str, Any]]
    """By rank."""
    wall_s: float


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
    wanted = ProbeRequest(precisions=environment.precisions, disk=disk, is_quick=is_quick)
    measured = measure(environment, wanted, world=world, timeout_s=timeout_s)
    return probe_of(environment, measured, world=world)


def measure(
    environment: Environment,
    wanted: ProbeRequest,
    *,
    world: int,
    meeting: Meeting = ALONE,
    timeout_s: float,
) -> Measured:
    """Run `world` ranks of this machine, which meet those of other nodes if there are any.

    Raises:
        JobError: As `run_probe`.
        FleetError: As `run_probe`.
    """
    devices = _devices(environment, world)
    fields = dataclasses.asdict(wanted)
    if wanted.disk is not None:
        fields["disk"] = str(Path(wanted.disk).resolve())
        if not Path(wanted.disk).is_dir():
            raise JobError(
                f"--nvme {wanted.disk}: is no folder", "name one on the disk to measure"
            )
    started_s = time.monotonic()
    reports = measure_on_ranks(
        "autotune.probe.rank",
        [json.dumps(fields)],
        accelerator=environment.accelerator,
        devices=devices,
        timeout_s=timeout_s,
        meeting=meeting,
    )
    return Measured(reports=reports, wall_s=time.monotonic() - started_s)


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


def _devices(environment: Environment, world: int) -> Sequence[int]:
    if world < 1:
        raise JobError(f"--world {world}: not above zero", "how many devices to measure")
    if world > environment.n_devices:
        raise FleetError(
            f"--world {world}: this machine has {environment.n_devices} {environment.accelerator} "
            "device(s), and ranks that share one measure each other",
            f"at most {environment.n_devices}",
        )
    if environment.accelerator == "cuda":
        return range(world)
    return usable_cores()[:world]


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
