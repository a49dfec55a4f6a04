"""Findings of slow devices and links: slower than others, or than their class."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from autotune.base.templates import tell
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
    device_class: Accelerator | None,
    kinds: Sequence[str] = (),
    few: tuple[int, int] | None = None,
    rack: Accelerator | None = None,
) -> tuple[str, ...]:
    """Warnings, the gravest first; `names` has the name of each rank's device, `kinds` its kind.

    Without `device_class`, the entry of the devices in the shipped table, there is none, or its
    figures are an estimate. `few` is the measured devices of a node of several, and all that it
    has; the links between the nodes of a `rack` were left out.
    """
    scattered = [point for point in points if point.scatter > SCATTER]
    between = {f"{kind} between nodes": curve for kind, curve in figures.network.items()}
    curves: dict[str, LinkCurve | ProductCurve] = {**figures.products, **figures.links, **between}
    values = {
        "unlike": [(n, names[n], kind) for n, kind in enumerate(kinds) if kind != kinds[0]],
        "kind": kinds[0] if kinds else "",
        "few": few,
        "rack": rack,
        "slow_devices": [*_slow_devices(points, names)],
        "slow_pairs": slow_pairs(points, names, "nodes") + slow_pairs(points, names, "node"),
        "below": [] if device_class is None else [*_below_class(figures, device_class)],
        "class_name": "" if device_class is None else device_class.name,
        "scattered": {
            "n": len(scattered),
            "of": len(points),
            "limit": SCATTER,
            "worst": max(scattered, key=lambda point: point.scatter).kind,
        }
        if len(scattered) > SCATTERED_SHARE * len(points)
        else None,
        "least_fit": MIN_FIT,
        "badly_fitted": {kind: c.error for kind, c in curves.items() if c.error > MIN_FIT},
        # Collectives of all ranks that the links within and between nodes do not explain.
        "beyond": {kind: times for kind, times in figures.beyond.items() if times > 1.0 + MIN_FIT},
    }
    return tuple(text for _, text in tell("probe", values))


def _slow_devices(points: Sequence[Point], names: Sequence[str]) -> Iterator[dict[str, Any]]:
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
                yield {"rank": rank, "name": names[rank], "what": what, "behind": behind}


def slow_pairs(points: Sequence[Point], names: Sequence[str], span: Span) -> list[str]:
    """Warnings of pairs of ranks that stay behind the others within the nodes, or between them."""
    pairs = of_kind(points, "pair", span)
    if len(pairs) < 2:
        return []
    usual_s = statistics.median_low(pair.slowest_s for pair in pairs)
    slow = [
        {
            "ranks": pair.ranks,
            "names": [names[rank] for rank in pair.ranks],
            "gb_per_s": pair.size_bytes / pair.slowest_s / 1e9,
            "behind": behind,
        }
        for pair in sorted(pairs, key=lambda pair: -pair.slowest_s)
        if (behind := 1.0 - usual_s / pair.slowest_s) > SLOW_LINK
    ]
    # Layers are measured of CPU ranks alone.
    values = {"pairs": slow, "span": span, "is_cpu": bool(of_kind(points, "layer"))}
    return [text for _, text in tell("slow_pairs", values)]


def _below_class(figures: Figures, device_class: Accelerator) -> Iterator[dict[str, Any]]:
    """Against what the shipped table says that the devices reach.

    Networks are compared with what training gets of the vendor's own, by the model's constants.
    """
    reached, entry, share = figures.measured, device_class, load_constants().network_share
    network = None if reached.network is None else reached.network.bytes_per_s
    rows: list[tuple[str, float | None, float | None, str]] = [
        (f"{dtype} products", curve.best_flops_per_s, entry.achieved_flops.get(dtype), "TFLOP/s")
        for dtype, curve in figures.products.items()
    ]
    rows += [
        ("memory", reached.memory_bytes_per_s, entry.memory_bytes_per_s * STREAM_SHARE, "GB/s"),
        ("host link", reached.host_bytes_per_s, entry.host_bytes_per_s, "GB/s"),
        ("network between nodes", network, entry.network_bytes_per_s * share, "GB/s per device"),
    ]
    for what, found, promised, unit in rows:
        if found is None or promised is None:
            continue
        behind = 1.0 - found / promised
        if behind > SLOW_CLASS:
            about = {"what": what, "unit": unit, "is_network": unit == "GB/s per device"}
            size = 1e12 if unit == "TFLOP/s" else 1e9
            sizes = {"found": found / size, "promised": promised / size}
            yield {**about, **sizes, "behind": behind}
