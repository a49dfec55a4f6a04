"""What the points come to: the figures that the cost model takes, and how well each is known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.measured import Measured
from autotune.probe.curves import LinkCurve, ProductCurve, fit_link, fit_products
from autotune.probe.points import LINK_KINDS, Point, of_kind

_STREAMED = 3
"""Tensors of a stream."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What the devices and links reached; each figure is that of the slowest rank."""

    products: Mapping[str, ProductCurve]
    """By precision."""
    links: Mapping[str, LinkCurve]
    """By kind of communication; empty with one rank."""
    measured: Measured


def figures_of(points: Sequence[Point], n_ranks: int) -> Figures:
    """Fit the curves, and take what has none from the largest size.

    Args:
        points: Of all ranks.
        n_ranks: Ranks that took part.

    Raises:
        FleetError: There are too few points.
    """
    of_products = of_kind(points, "matmul")
    products = {
        dtype: fit_products([p for p in of_products if p.dtype == dtype])
        for dtype in dict.fromkeys(p.dtype for p in of_products)
    }
    links = {
        kind: fit_link(of_kind(points, kind), kind, n_ranks)
        for kind in LINK_KINDS
        if of_kind(points, kind)
    }
    memory_bytes_per_s = _rate(points, "stream")
    layers = of_kind(points, "layer")
    cached = _cached(points) if layers else None
    rate = _gather_rate(links)
    measured = Measured(
        memory_bytes_per_s=memory_bytes_per_s,
        cached_bytes_per_s=None if cached is None else cached.size_bytes / cached.slowest_s,
        cache_bytes=0.0 if cached is None else cached.size_bytes / _STREAMED,
        fresh_bytes_per_s=_rate(points, "fresh"),
        operand_elements_per_s={
            dtype: curve.elements_per_s
            for dtype, curve in products.items()
            if curve.elements_per_s < float("inf")
        },
        link_bytes_per_s=rate,
        link_latency_s=_latency(links),
        all_reduce_speed=_beside(rate, links, "all_reduce"),
        all_to_all_speed=_beside(rate, links, "all_to_all"),
        send_speed=_beside(rate, links, "send"),
        host_bytes_per_s=_slower(_rate(points, "upload"), _rate(points, "download")),
        # A CPU rank's memory is its share of the node's.
        host_memory_bytes_per_s=n_ranks * memory_bytes_per_s
        if layers and memory_bytes_per_s
        else None,
        nvme_bytes_per_s=_slower(*(_together(points, kind) for kind in ("write", "read"))),
        layer_s=layers[0].slowest_s if layers else None,
    )
    return Figures(products=products, links=links, measured=measured)


def _gather_rate(links: Mapping[str, LinkCurve]) -> float | None:
    """Of all-gathers and reduce-scatters in equal shares, as ZeRO uses them."""
    gathers = [links[kind] for kind in ("all_gather", "reduce_scatter") if kind in links]
    if not gathers:
        return None
    return len(gathers) / sum(1.0 / curve.bytes_per_s for curve in gathers)


def _latency(links: Mapping[str, LinkCurve]) -> float | None:
    """Of a hop, in the middle of all kinds: the model has one for all."""
    latencies = sorted(curve.latency_s for curve in links.values())
    return (latencies[len(latencies) // 2] or None) if latencies else None


def _beside(rate: float | None, links: Mapping[str, LinkCurve], kind: str) -> float:
    """How fast a kind is beside gathers."""
    return 1.0 if rate is None or kind not in links else links[kind].bytes_per_s / rate


def largest(points: Sequence[Point], kind: str) -> Point | None:
    """The point of a kind that moved most; None: there is none."""
    return max(of_kind(points, kind), key=lambda point: point.size_bytes, default=None)


def _cached(points: Sequence[Point]) -> Point | None:
    """The stream of a processor that its caches hold: of the middle size, as activations are."""
    streams = sorted(of_kind(points, "stream"), key=lambda point: point.size_bytes)
    return streams[len(streams) // 2] if len(streams) > 2 else None


def _rate(points: Sequence[Point], kind: str) -> float | None:
    """Bytes per second of the slowest rank, of the largest size."""
    point = largest(points, kind)
    return None if point is None else point.size_bytes / point.slowest_s


def _together(points: Sequence[Point], kind: str) -> float | None:
    """Bytes per second of all ranks at once."""
    point = largest(points, kind)
    return None if point is None else len(point.seconds) * point.size_bytes / point.slowest_s


def _slower(*rates: float | None) -> float | None:
    return min((rate for rate in rates if rate is not None), default=None)
