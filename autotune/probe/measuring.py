"""Runs a measurement in ranks that train nothing: a fleet starts and ends them as a trial's."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.base.errors import FleetError, JobError
from autotune.base.guarded_process import scratch_folder
from autotune.contract import (
    RANKS_DIR,
    SPEC_FILE,
    EngineSettings,
    Identity,
    Layout,
    Measure,
    Outcome,
    Role,
    TrialResult,
    TrialSpec,
    Workload,
    read_json,
    to_dict,
    write_json,
)
from autotune.fleet.gang_fleet import GangFleet
from autotune.fleet.transports.base import Node, Transport
from autotune.probe.points import Point, check_reports, points_of
from autotune.probe.rank import FOUND_FILE, REQUEST_FILE

TIMEOUT_S = 360.0
"""A probe takes about a minute; longer than this, a rank hangs."""
_HINT = "the line names the cause: a busy device, a driver, or the network interface"


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

    points: tuple[Point, ...]
    names: tuple[str, ...]
    """Name of each rank's device: `core 3`, and on several nodes `core 3 of NODE`."""
    kinds: tuple[str, ...]
    """Name of each rank's kind of device."""
    wall_s: float


def with_devices(nodes: Sequence[Node], n_devices: int | None) -> tuple[Node, ...]:
    """The nodes with as many devices each: `n_devices`, or as many as all have.

    Slots of a node that share a device count once.

    Raises:
        JobError: The number is below one.
        FleetError: A node has fewer.
    """
    if n_devices is not None and n_devices < 1:
        raise JobError(f"--world {n_devices}: not above zero", "how many devices to measure")
    devices = [tuple(dict.fromkeys(node.devices)) for node in nodes]
    fewest = min(map(len, devices))
    n = fewest if n_devices is None else n_devices
    for node, of_node in zip(nodes, devices, strict=True):
        if n > len(of_node):
            raise FleetError.of(
                "probe.too_few_devices", n=n, node=node, n_there=len(of_node), fewest=fewest
            )
    return tuple(
        dataclasses.replace(node, devices=of_node[:n], places=())
        for node, of_node in zip(nodes, devices, strict=True)
    )


def measure(
    transport: Transport,
    nodes: Sequence[Node],
    wanted: ProbeRequest,
    accelerator: str,
    *,
    timeout_s: float = TIMEOUT_S,
) -> Measured:
    """Start a rank on each device of some nodes, wait for all, and leave none behind.

    Raises:
        FleetError: A node cannot start its ranks, or a rank failed, died, hung or reported what
            cannot be; the message names it.
    """
    world = sum(len(node.devices) for node in nodes)
    started_s = time.monotonic()
    with scratch_folder() as folder:
        spec = _spec(accelerator, world, timeout_s)
        write_json(folder / SPEC_FILE, to_dict(spec))
        write_json(folder / REQUEST_FILE, dataclasses.asdict(wanted))
        fleet = GangFleet(transport, world=world, nodes=nodes)
        try:
            result = fleet.submit(spec, folder, module="autotune.probe.rank").wait()
        finally:  # Ctrl-C comes this way too
            fleet.close()
        assert result is not None
        if result.outcome is not Outcome.OK:
            raise FleetError(_reason(result, timeout_s), _HINT)
        found = folder / RANKS_DIR
        reports = [read_json(found / FOUND_FILE.format(rank=rank)) for rank in range(world)]
    names = device_names(reports, accelerator, nodes)
    check_reports(reports, names)
    return Measured(
        points=points_of(reports),
        names=names,
        kinds=tuple(report["device"] for report in reports),
        wall_s=time.monotonic() - started_s,
    )


def device_names(
    reports: Sequence[Mapping[str, Any]], accelerator: str, nodes: Sequence[Node]
) -> tuple[str, ...]:
    """Name of each rank's device, on several nodes with its node."""
    kind, per_node = "core" if accelerator == "cpu" else "GPU", len(reports) // len(nodes)
    return tuple(
        f"{kind} {report['place']}"
        + (f" of {nodes[rank // per_node].name}" if len(nodes) > 1 else "")
        for rank, report in enumerate(reports)
    )


def _spec(accelerator: str, world: int, timeout_s: float) -> TrialSpec:
    sizes: dict[str, Any] = {"tp": 1, "pp": 1, "dp": world, "micro_batch": 1, "grad_accum": 1}
    steps: dict[str, Any] = {"warmup_steps": 0, "min_steps": 1, "max_steps": 1}
    return TrialSpec(
        identity=Identity(
            study="measurement", number=0, role=Role.SEARCH, candidate_hash="", knobs={}
        ),
        layout=Layout(accelerator=accelerator, world=world, global_batch=world, **sizes),
        workload=Workload(model={}, seq_len=1, precision="fp32"),
        engine=EngineSettings(expected={}),
        measure=Measure(**steps, target_half_width=0.0, budget_s=timeout_s, timeout_s=timeout_s),
    )


def _reason(result: TrialResult, timeout_s: float) -> str:
    """Why a measurement failed, with the rank and, of several, its node."""
    evidence, source = result.evidence, result.evidence_source.split()
    if source[:1] == ["rank"]:
        nodes = [device.rpartition(":")[0] for device in result.devices]
        where = f"{nodes[int(source[1])]}, " if len(set(nodes)) > 1 else ""
        evidence = f"{where}rank {source[1]}: {evidence}"
    is_late = result.wall_s >= timeout_s
    return f"no answer after {timeout_s:.0f} s: {evidence}" if is_late else evidence
