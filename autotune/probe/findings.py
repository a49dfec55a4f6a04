"""Findings of slow devices and links: slower than others, or than their class."""

import statistics
from collections.abc import Iterator, Sequence

from autotune.cost.constants import load_constants
from autotune.cost.device import STREAM_SHARE
from autotune.devices.accelerators import Accelerator
from autotune.probe.curves import LinkCurve, ProductCurve
from autotune.probe.figures import Figures, largest
from autotune.probe.points import Point, Span, of_kind

SLOW_DEVICE = 0.1
"""How far a device may stay behind its siblings."""
SLOW_LINK = 0.25
"""How far a pair of ranks may stay behind the others."""
SLOW_CLASS = 0.2
"""How far a kind of device may stay behind what its class reaches."""
SCATTER = 0.25
"""Width of the middle half of the repeats over their median, from which on they scatter."""
SCATTERED_SHARE = 0.2
"""Share of the points that may scatter."""
MIN_FIT = 0.3
"""Mean error from which on a curve says little."""


def conclude(
    points: Sequence[Point],
    figures: Figures,
    *,
    names: Sequence[str],
    its_class: Accelerator | None,
) -> tuple[str, ...]:
    """Warnings, the gravest first; `names` has the name of each rank's device.

    Without `its_class`, the entry of the devices in the shipped table, there is no such entry, or
    its figures are an estimate.
    """
    return (
        *_slow_devices(points, names),
        *slow_pairs(points, names, "nodes"),
        *slow_pairs(points, names, "node"),
        *(() if its_class is None else _below_class(figures, its_class)),
        *_scattered(points),
        *_badly_fitted(figures),
        *_beyond(figures),
    )


def _slow_devices(points: Sequence[Point], names: Sequence[str]) -> Iterator[str]:
    """Against the better half: of two, against the other one."""
    compared: dict[str, Point | None] = {}
    for product in sorted(of_kind(points, "matmul"), key=lambda point: point.flops):
        compared[f"{product.dtype} products"] = product
    compared["memory"] = largest(points, "stream")
    compared["copies from the host"] = largest(points, "upload")
    compared["copies to the host"] = largest(points, "download")
    for what, point in compared.items():
        if point is None:
            continue
        usual_s = statistics.median_low(point.seconds)
        for rank, seconds in zip(point.ranks, point.seconds, strict=True):
            behind = 1.0 - usual_s / seconds
            if behind > SLOW_DEVICE:
                yield (
                    f"rank {rank} ({names[rank]}): {what} {behind:.0%} slower than on the other "
                    "ranks; look for other work, heat or a power limit there"
                )


def slow_pairs(points: Sequence[Point], names: Sequence[str], span: Span) -> Iterator[str]:
    """Warnings of pairs of ranks that stay behind the others within the nodes, or between them."""
    pairs = of_kind(points, "pair", span)
    if len(pairs) < 2:
        return
    usual_s = statistics.median_low(pair.slowest_s for pair in pairs)
    if span == "nodes":
        where = "look at the cards, the cables and the switch between these nodes"
    elif of_kind(points, "layer"):  # of CPU ranks alone
        where = "look for other work there"
    else:
        where = "nvidia-smi topo -m shows how they are joined"
    for pair in sorted(pairs, key=lambda pair: -pair.slowest_s):
        behind = 1.0 - usual_s / pair.slowest_s
        if behind > SLOW_LINK:
            first, second = pair.ranks
            rate = pair.size_bytes / pair.slowest_s / 1e9
            yield (
                f"ranks {first} ({names[first]}) and {second} ({names[second]}): {rate:.3g} GB/s "
                f"between them, {behind:.0%} less than between others; {where}"
            )


def _below_class(figures: Figures, its_class: Accelerator) -> Iterator[str]:
    """Against what the shipped table says that the devices reach.

    Networks are compared with what training gets of the vendor's own, by the model's constants.
    """
    reached, promises = figures.measured, its_class.achieved_flops
    datasheet = its_class.memory_bytes_per_s * STREAM_SHARE
    compared = [
        (f"{dtype} products", curve.best_flops_per_s, promises.get(dtype), "FLOP/s")
        for dtype, curve in figures.products.items()
    ]
    below = f"{its_class.name} reaches"
    advice = "look for a power limit, heat, other work or a wrong entry"
    rows: list[tuple[str, float | None, float | None, str, str, str]] = [
        *((*row, below, advice) for row in compared),
        ("memory", reached.memory_bytes_per_s, datasheet, "B/s", below, advice),
        ("host link", reached.host_bytes_per_s, its_class.host_bytes_per_s, "B/s", below, advice),
        (
            "network between nodes",
            None if reached.network is None else reached.network.bytes_per_s,
            its_class.network_bytes_per_s * load_constants().network_share,
            "B/s per device",
            f"training gets in the vendor's system of {its_class.name}",
            "look at the cards and the switch, unless yours is another network",
        ),
    ]
    for what, found, promised, unit, standard, remedy in rows:
        if found is None or promised is None:
            continue
        behind = 1.0 - found / promised
        if behind > SLOW_CLASS:
            yield (
                f"{what}: {found:.3g} {unit}, {behind:.0%} below what {standard} "
                f"({promised:.3g}); {remedy}"
            )


def _scattered(points: Sequence[Point]) -> Iterator[str]:
    scattered = [point for point in points if point.scatter > SCATTER]
    if len(scattered) > SCATTERED_SHARE * len(points):
        worst = max(scattered, key=lambda point: point.scatter)
        yield (
            f"{len(scattered)} of {len(points)} measurements scatter by more than {SCATTER:.0%} "
            f"(most of all {worst.kind}): something else ran on the machine; measure again when "
            "it is idle"
        )


def _badly_fitted(figures: Figures) -> Iterator[str]:
    between = {f"{kind} between nodes": curve for kind, curve in figures.network.items()}
    curves: dict[str, LinkCurve | ProductCurve] = {**figures.products, **figures.links, **between}
    bad = [f"{kind} {curve.error:.0%}" for kind, curve in curves.items() if curve.error > MIN_FIT]
    if bad:
        said = ", ".join(bad)
        yield f"curves that miss their points by more than {MIN_FIT:.0%} on average: {said}"


def _beyond(figures: Figures) -> Iterator[str]:
    """Collectives of all ranks that the links within and between nodes do not explain."""
    slow = {kind: times for kind, times in figures.beyond.items() if times > 1.0 + MIN_FIT}
    if slow:
        said = ", ".join(f"{kind} {times:.1f} times" for kind, times in slow.items())
        yield (
            "collectives of all ranks take longer than the links within and between nodes "
            f"promise: {said}; predictions for such groups will be short by as much"
        )
