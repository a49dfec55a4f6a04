"""The diagnosis of a fleet of other machines: each node, and what differs between them."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.base.errors import FleetError
from autotune.base.units import format_bytes, format_count
from autotune.devices.hardware import VERSIONED
from autotune.doctor.diagnosis import Level, Machine, Remark, failed, passed, warned, worst
from autotune.doctor.findings import conclude_of_node
from autotune.doctor.links import DeviceLink, measure_links
from autotune.fleet.node.inventory import Inventory
from autotune.fleet.transports.base import Node
from autotune.fleet.transports.remote import RemoteTransport

CLOCK_AHEAD_S = 2.0
"""Difference of two wall clocks from which on it is said; asking takes a part of a second."""
LOW_DISK_BYTES = 2**30
_MACHINE = "autotune.doctor.machine"


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
    found: Mapping[str, Inventory] = {}
    slots: Mapping[str, Node] = {}
    if len(problems) < len(transport.hosts()):
        found = transport.inventory
        slots = {node.name: node for node in transport.nodes()}

    def look(host: str) -> Machine | str:
        try:
            return transport.ask(host, Machine, _MACHINE)
        except FleetError as error:
            return error.message

    machines = transport.ask_all(list(found), look)
    nodes = []
    for host in transport.hosts():
        inventory = found.get(host.name)
        ahead_s = transport.clocks_ahead_s.get(host.name)
        if inventory is None:
            remarks = [failed("reached", problems[host.name], "see docs/fleet.md, Faults")]
        else:
            remarks = [*_of_node(inventory, ahead_s or 0.0), *_of_machine(machines[host.name])]
        nodes.append(
            NodeExamination(
                name=host.name,
                n_slots=len(slots[host.name].devices) if host.name in slots else 0,
                inventory=inventory,
                clock_ahead_s=ahead_s,
                findings=tuple(remarks),
            )
        )
    findings, links = [*conclude_fleet(nodes)], None
    if measures_links and found:
        note("measuring the links between their devices")
        try:
            links = measure_links(transport)
        except FleetError as error:
            findings.append(warned("links", f"not measured: {error.message}", error.hint))
        else:
            findings += links.findings
    return FleetExamination(
        nodes=tuple(nodes),
        findings=tuple(findings),
        links=None if links is None else links.links,
    )


def conclude_fleet(nodes: Sequence[NodeExamination]) -> Iterator[Remark]:
    """Findings about some nodes together: how many there are, and what differs."""
    there = {node.name: node.inventory for node in nodes if node.inventory is not None}
    missing = [node.name for node in nodes if node.inventory is None]
    n_slots = sum(node.n_slots for node in nodes)
    count = f"{len(there)} of {len(nodes)} answer, with {format_count(n_slots, 'slot')}"
    if not there:
        yield failed("nodes", count, "mend what is said of each")
        return
    if missing:
        yield warned(
            "nodes", f"{count}; without {', '.join(missing)}", "mend what is said of them"
        )
    else:
        yield passed("nodes", count)
    devices = {name: inventory.environment.device_name for name, inventory in there.items()}
    yield from _alike("devices", devices, Level.FAIL, "search on nodes that have the same")
    packages = {package for inventory in there.values() for package in inventory.releases}
    for package in sorted(packages):
        releases = {
            name: inventory.releases.get(package, "missing") for name, inventory in there.items()
        }
        level = Level.FAIL if package in VERSIONED else Level.WARN
        yield from _alike(package, releases, level, f"install one release of {package} on all")
    if len(there) > 1:
        alone = [name for name, inventory in there.items() if inventory.interface == "lo"]
        if alone:
            yield failed(
                "addresses",
                f"{', '.join(alone)}: only known by a loopback address, which no other reaches",
                "name the interface that joins them: --fleet-option interface=NAME",
            )


def _alike(subject: str, values: Mapping[str, str], level: Level, fix: str) -> Iterator[Remark]:
    by_value: dict[str, list[str]] = {}
    for name, value in values.items():
        by_value.setdefault(value, []).append(name)
    if len(by_value) > 1:
        parts = (f"{value} on {', '.join(names)}" for value, names in by_value.items())
        yield Remark(level=level, subject=subject, message=f"differ: {'; '.join(parts)}", fix=fix)
    else:
        yield passed(subject, f"{next(iter(by_value))} on all")


def _of_node(found: Inventory, ahead_s: float) -> Iterator[Remark]:
    environment = found.environment
    memory = format_bytes(environment.device_memory_bytes)
    yield passed("devices", f"{len(found.devices)} x {environment.device_name}, {memory} each")
    yield passed("address", f"{found.address} on {found.interface} (its own name: {found.host})")
    if abs(ahead_s) > CLOCK_AHEAD_S:
        way = "ahead of" if ahead_s > 0 else "behind"
        yield warned(
            "clock",
            f"{abs(ahead_s):.0f} s {way} this machine's: dates in logs do not agree",
            "set it: timedatectl set-ntp true",
        )
    else:
        yield passed("clock", f"within {CLOCK_AHEAD_S:.0f} s of this machine's")
    free = f"{format_bytes(found.free_disk_bytes)} free for temporary files"
    if found.free_disk_bytes < LOW_DISK_BYTES:
        yield warned("disk", free, "free some space, or name a folder with more in TMPDIR there")
    else:
        yield passed("disk", free)


def _of_machine(found: Machine | str) -> Iterator[Remark]:
    if isinstance(found, str):
        yield warned("machine", f"it cannot be looked into: {found}", "mend what the line says")
    else:
        yield from conclude_of_node(found)
