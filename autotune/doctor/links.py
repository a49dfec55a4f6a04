"""Links of a fleet: how fast devices send to each other within nodes and between them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.doctor.diagnosis import Level, Remark
from autotune.fleet.transports.remote import RemoteTransport, common_environment
from autotune.probe.findings import slow_pairs
from autotune.probe.fleet import measure_fleet, ranks_of_each
from autotune.probe.points import Point, Span, check_reports, of_kind, points_of
from autotune.probe.run import ProbeRequest

_PLACES: tuple[tuple[Span, str], ...] = (("node", "within nodes"), ("nodes", "between nodes"))


@dataclass(frozen=True, kw_only=True)
class DeviceLink:
    """Two devices that sent to each other while the other pairs of their kind did."""

    first: str
    second: str
    span: Span
    """True for two devices of one node."""
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class Links:
    """What was measured, and what is to be said of it."""

    links: tuple[DeviceLink, ...]
    findings: tuple[Remark, ...]


def measure_links(transport: RemoteTransport) -> Links:
    """Let pairs of devices send to each other, as `probe` does, and nothing else.

    Raises:
        FleetError: The nodes are not alike, or one could not measure: it is named.
    """
    environment, nodes = common_environment(transport), transport.nodes()
    world = ranks_of_each(nodes, environment.n_devices)
    wanted = ProbeRequest(precisions=environment.precisions, is_quick=True, only_pairs=True)
    measured = measure_fleet(transport, wanted, world=world)
    check_reports(measured.reports, per_node=world)
    kind = "core" if environment.accelerator == "cpu" else "GPU"
    names = [
        f"{kind} {report['place']} of {nodes[rank // world].name}"
        for rank, report in enumerate(measured.reports)
    ]
    points = points_of(measured.reports)
    links = [
        DeviceLink(
            first=names[pair.ranks[0]],
            second=names[pair.ranks[1]],
            span=span,
            bytes_per_s=pair.size_bytes / pair.slowest_s,
        )
        for span, _ in _PLACES
        for pair in of_kind(points, "pair", span)
    ]
    return Links(links=tuple(links), findings=tuple(_conclude(links, points, names)))


def _conclude(
    links: Sequence[DeviceLink], points: Sequence[Point], names: Sequence[str]
) -> Iterator[Remark]:
    if not links:
        text = "there is one device in all, and nothing to measure between"
        yield Remark(level=Level.OK, subject="links", message=text)
    for span, where in _PLACES:
        rates = [link.bytes_per_s / 1e9 for link in links if link.span == span]
        if rates:
            low, high = min(rates), max(rates)
            text = f"{low:.3g} to {high:.3g} GB/s {where}, of {len(rates)} pairs of devices"
            if len(rates) == 1:
                text = f"{low:.3g} GB/s {where}"
            yield Remark(level=Level.OK, subject="links", message=text)
        for slow in slow_pairs(points, names, span):
            message, _, fix = slow.rpartition("; ")
            yield Remark(level=Level.WARN, subject="links", message=message, fix=fix)
