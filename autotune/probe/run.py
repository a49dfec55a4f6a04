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
from autotune.fleet.measuring import measure_on_ranks
from autotune.probe.figures import Figures, figures_of
from autotune.probe.findings import conclude
from autotune.probe.hardware_file import Line, entry_of, fits_of
from autotune.probe.nodes import Nodes
from autotune.probe.points import Point, points_of
from autotune.probe.reports import check_reports
from autotune.probe.token import TOKEN_ENV

TIMEOUT_S = 300.0
"""A probe takes about a minute; longer than this, a rank hangs."""

_NODES_HINT = (
    "where another node ended first, its output names the cause; then start the same command "
    "on all nodes again"
)


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Measurements of a probe, and the figures that follow."""

    environment: Environment
    devices: tuple[str, ...]
    """Name of each rank's device."""
    n_nodes: int
    points: tuple[Point, ...]
    figures: Figures
    its_class: Accelerator | None
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
            self.its_class,
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
class Told:
    """What the ranks of a probe reported."""

    reports: list[dict[str, Any]]
    """By rank."""
    strangers: list[str]
    """Who came where the nodes met and did not know the secret, in words."""
    wall_s: float


def run_probe(
    environment: Environment,
    *,
    world: int,
    nodes: Nodes | None = None,
    disk: Path | None = None,
    is_quick: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> Probe | None:
    """Measure this machine's devices, all at once, and with those of other nodes if there are any.

    Args:
        environment: What there is.
        world: Ranks to start here, each on a device of its own.
        nodes: The others, on which the same is called; None: there are none.
        disk: A folder whose disk is measured too, the same on all nodes; None: none is.
        is_quick: Whether figures may be rougher for being there sooner; the same on all nodes.
        timeout_s: Ranks that are not done then are killed; nodes are waited for besides.

    Returns:
        None on all nodes but the first, which has what all of them measured.

    Raises:
        JobError: The world is below one, or the folder is none.
        FleetError: There are fewer devices, or a rank failed, died, hung or reported what cannot
            be.
    """
    told = measure(
        environment,
        world=world,
        nodes=nodes,
        disk=disk,
        is_quick=is_quick,
        timeout_s=timeout_s,
    )
    n_nodes = 1 if nodes is None else nodes.count
    return None if told is None else probe_of(environment, told, world=world, n_nodes=n_nodes)


def measure(
    environment: Environment,
    *,
    world: int,
    nodes: Nodes | None = None,
    disk: Path | None = None,
    is_quick: bool = False,
    only_pairs: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> Told | None:
    """Run the ranks of this machine; arguments, None and errors are those of `run_probe`.

    With `only_pairs`, the same on all nodes, they measure the links between two of them each.
    """
    devices = _devices(environment, world)
    if disk is not None and not disk.is_dir():
        raise JobError(f"--nvme {disk}: is no folder", "name one on the disk to measure")
    wanted = {
        "quick": is_quick,
        "only_pairs": only_pairs,
        "precisions": list(environment.precisions),
        "disk": None if disk is None else str(disk.resolve()),
        "nodes": None if nodes is None else nodes.without_token(),
    }
    started_s = time.monotonic()
    try:
        reports = measure_on_ranks(
            "autotune.probe.rank",
            [json.dumps(wanted)],
            accelerator=environment.accelerator,
            devices=devices,
            # Nodes are waited for twice: until node 0 answers, and until all are there.
            timeout_s=timeout_s + (0.0 if nodes is None else 2.0 * nodes.wait_s),
            interface="lo" if nodes is None else nodes.interface,
            variables={} if nodes is None else {TOKEN_ENV: nodes.token},
        )
    except FleetError as error:
        if nodes is None:
            raise
        # A rank that failed counts from its own node's first.
        raise FleetError(f"on node {nodes.rank}, {error.message}", _NODES_HINT) from error
    wall_s = time.monotonic() - started_s
    strangers: list[str] = []
    if nodes is not None:
        strangers, reports = reports[0]["strangers"], reports[0]["reports"]
        if nodes.rank > 0:
            return None
    return Told(reports=reports, strangers=strangers, wall_s=wall_s)


def probe_of(environment: Environment, told: Told, *, world: int, n_nodes: int) -> Probe:
    """The figures that follow from what the ranks reported.

    Raises:
        FleetError: A rank reported what cannot be.
    """
    reports, strangers, wall_s = told.reports, told.strangers, told.wall_s
    check_reports(reports, world=n_nodes * world, per_node=world, most_s=wall_s)
    names = _names(reports, environment.accelerator, world)
    points = points_of(reports)
    its_class = _class_of(environment)
    figures, beyond_nodes = _without_rack(figures_of(points, world, n_nodes), its_class)
    is_cpu = environment.accelerator == "cpu"
    return Probe(
        environment=environment,
        devices=names,
        n_nodes=n_nodes,
        points=points,
        figures=figures,
        its_class=its_class,
        warnings=(
            *strangers,
            *_unlike(reports, names),
            *_shares_of_few(environment, world, n_nodes),
            *beyond_nodes,
            *conclude(
                points,
                figures,
                names=names,
                # Processors differ too much for a class: its figures are a guess.
                its_class=None if is_cpu else its_class,
            ),
        ),
        when=date_of(time.time(), "%Y-%m-%dT%H:%MZ"),
        wall_s=wall_s,
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
    figures: Figures, its_class: Accelerator | None
) -> tuple[Figures, tuple[str, ...]]:
    """Without what was measured between nodes of one rack, and a warning that says so."""
    if its_class is None or figures.measured.network is None:
        return figures, ()
    if its_class.nvlink_domain <= its_class.devices_per_node:
        return figures, ()
    measured = dataclasses.replace(figures.measured, network=None)
    return dataclasses.replace(figures, measured=measured, beyond={}), (
        f"NVLink joins {its_class.nvlink_domain} {its_class.name} beyond their nodes: what was "
        "measured between nodes is not taken for the network",
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
