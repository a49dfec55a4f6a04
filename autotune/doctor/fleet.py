"""The diagnosis of a fleet: each node, what differs between them, and their links."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.base.errors import FleetError
from autotune.devices.hardware import VERSIONED
from autotune.doctor.diagnosis import Level, Machine, Remark, remarks, worst
from autotune.doctor.findings import conclude
from autotune.fleet.node.inventory import Inventory
from autotune.fleet.transports.base import Node
from autotune.fleet.transports.remote import RemoteTransport, common_environment, names_by
from autotune.probe.findings import slow_pairs
from autotune.probe.measuring import ProbeRequest, measure, with_devices
from autotune.probe.points import Span, of_kind

CLOCK_AHEAD_S = 2.0
"""Difference of two wall clocks from which on it is said; asking takes a part of a second."""
LOW_DISK_BYTES = 2**30
_MACHINE = "autotune.doctor.findings"
_SPANS: tuple[Span, ...] = ("node", "nodes")


@dataclass(frozen=True, kw_only=True)
class NodeExamination:
    """A node of a fleet, and what was found on it."""

    name: str
    n_slots: int
    """Accelerators that trials may take; 0: it is left out."""
    inventory: Inventory | None
    """None: it does not answer."""
    clock_ahead_s: float | None
    """How far its wall clock is ahead of this machine's; None: it does not answer."""
    findings: tuple[Remark, ...]


@dataclass(frozen=True, kw_only=True)
class DeviceLink:
    """Two devices that sent to each other while the other pairs of their kind did."""

    first: str
    second: str
    span: Span
    """Whether they are of one node, or of two."""
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class FleetExamination:
    """Everything that the doctor has to say about a fleet."""

    nodes: tuple[NodeExamination, ...]
    findings: tuple[Remark, ...]
    """Findings about all of them together."""
    links: tuple[DeviceLink, ...] | None = None
    """Links between devices; None: they were not measured."""

    @property
    def level(self) -> Level:
        """The worst of what keeps the whole fleet from running; a node alone can be left out."""
        together = worst(self.findings)
        is_odd = any(worst(node.findings) is not Level.OK for node in self.nodes)
        return Level.WARN if together is Level.OK and is_odd else together

    def to_dict(self) -> dict[str, Any]:
        return {"level": self.level, **dataclasses.asdict(self)}


def diagnose_fleet(
    transport: RemoteTransport,
    *,
    measures_links: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> FleetExamination:
    """Ask every node what it has, and what would not work there; all at the same time.

    With `measures_links` also how fast their devices send to each other, on nodes that are free.
    `note` is told each part before it begins.
    """
    note(f"asking {', '.join(host.name for host in transport.hosts())}")
    problems = transport.reasons
    inventories: Mapping[str, Inventory] = {}
    slots: Mapping[str, Node] = {}
    if len(problems) < len(transport.hosts()):
        inventories = transport.inventory
        slots = {node.name: node for node in transport.nodes()}

    machines = dict(transport.ask(inventories, Machine, _MACHINE))
    nodes = []
    for host in transport.hosts():
        inventory, machine = inventories.get(host.name), machines.get(host.name)
        ahead_s = transport.clocks_ahead_s.get(host.name)
        values = {
            "inventory": inventory,
            "problem": problems.get(host.name, ""),
            "ahead_s": ahead_s or 0.0,
            "allowed_s": CLOCK_AHEAD_S,
            "low_disk_bytes": LOW_DISK_BYTES,
            "unseen": machine.message if isinstance(machine, FleetError) else "",
        }
        found = remarks("node", values)
        if isinstance(machine, Machine):
            found += conclude(machine, None, is_node=True)
        nodes.append(
            NodeExamination(
                name=host.name,
                n_slots=len(slots[host.name].devices) if host.name in slots else 0,
                inventory=inventory,
                clock_ahead_s=ahead_s,
                findings=tuple(found),
            )
        )
    findings, links = _together(nodes), None
    if measures_links and inventories:
        note("measuring the links between their devices")
        try:
            links, about_links = measure_links(transport)
        except FleetError as error:
            findings += remarks("links", {"error": error})
        else:
            findings += about_links
    return FleetExamination(nodes=tuple(nodes), findings=tuple(findings), links=links)


def _together(nodes: Sequence[NodeExamination]) -> list[Remark]:
    """Findings about some nodes together: how many there are, and what differs."""
    answered = {node.name: node.inventory for node in nodes if node.inventory is not None}
    names = {name: one.environment.device_name for name, one in answered.items()}
    packages = sorted({package for one in answered.values() for package in one.releases})
    subjects = {"devices": names} | {
        package: {name: one.releases.get(package, "missing") for name, one in answered.items()}
        for package in packages
    }
    values = {
        "n_there": len(answered),
        "n_nodes": len(nodes),
        "n_slots": sum(node.n_slots for node in nodes),
        "missing": [node.name for node in nodes if node.inventory is None],
        "compared": [
            {
                "subject": subject,
                "level": "fail" if subject in ("devices", *VERSIONED) else "warn",
                "names_by_value": names_by(value_of),
            }
            for subject, value_of in subjects.items()
            if answered
        ],
        "alone": [name for name, one in answered.items() if one.interface == "lo"]
        if len(answered) > 1
        else [],
    }
    return remarks("fleet", values)


def measure_links(transport: RemoteTransport) -> tuple[tuple[DeviceLink, ...], tuple[Remark, ...]]:
    """Let pairs of devices send to each other, as `probe` does, and nothing else.

    Raises:
        FleetError: The nodes are not alike, or one could not measure: it is named.
    """
    environment, nodes = common_environment(transport), with_devices(transport.nodes(), None)
    wanted = ProbeRequest(precisions=environment.precisions, is_quick=True, only="pairs")
    measured = measure(transport, nodes, wanted, environment.accelerator)
    names, points = measured.names, measured.points
    links = tuple(
        DeviceLink(
            first=names[pair.ranks[0]],
            second=names[pair.ranks[1]],
            span=span,
            bytes_per_s=pair.size_bytes / pair.slowest_s,
        )
        for span in _SPANS
        for pair in of_kind(points, "pair", span)
    )
    places = [
        {
            "span": span,
            "rates": [link.bytes_per_s / 1e9 for link in links if link.span == span],
            "slow": [text.rpartition("; ")[::2] for text in slow_pairs(points, names, span)],
        }
        for span in _SPANS
    ]
    return links, tuple(remarks("links", {"error": None, "places": places}))
