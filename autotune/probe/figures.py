"""Figures of the cost model from the measured points, and how well each is known."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.cost.collectives import Link, all_reduce_s, exchange_s, gather_s, ring, send_s
from autotune.devices.probed import AttentionRates, MeasuredLink, MeasuredRates
from autotune.probe.curves import LinkCurve, ProductCurve, fit_link, fit_products
from autotune.probe.points import LINK_KINDS, Point, Span, of_kind

_STREAMED = 3
"""Tensors of a stream."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Rates of the devices and links; each figure is that of the slowest rank."""

    products: Mapping[str, ProductCurve]
    """By precision."""
    links: Mapping[str, LinkCurve]
    """By kind of communication, of the ranks of one node; empty with one of them."""
    network: Mapping[str, LinkCurve]
    """The same between nodes, one rank of each; empty with one node."""
    beyond: Mapping[str, float]
    """By kind: what collectives of all ranks of several nodes took over what the cost model makes
    of the links within and between nodes, on average over the sizes; else empty."""
    measured: MeasuredRates


def figures_of(points: Sequence[Point], per_node: int, n_nodes: int = 1) -> Figures:
    """Fit the curves, and take what has none from the largest size.

    `per_node` ranks of each of `n_nodes` nodes took part.

    Raises:
        FleetError: There are too few points.
    """
    of_products = of_kind(points, "matmul")
    products = {
        dtype: fit_products([p for p in of_products if p.dtype == dtype])
        for dtype in dict.fromkeys(p.dtype for p in of_products)
    }
    links = _curves(points, "node", per_node)
    network = _curves(points, "nodes", n_nodes)
    memory_bytes_per_s = _rate(points, "stream")
    layers = of_kind(points, "layer")
    cached = _cached(points) if layers else None
    # CPU ranks reduce whole what is to be scattered: there the model asks for no reduce-scatter.
    gathers = ("all_gather",) if layers else ("all_gather", "reduce_scatter")
    measured = MeasuredRates(
        memory_bytes_per_s=memory_bytes_per_s,
        cached_bytes_per_s=None if cached is None else cached.size_bytes / cached.slowest_s,
        cache_bytes=None if cached is None else cached.size_bytes / _STREAMED,
        fresh_bytes_per_s=_rate(points, "fresh"),
        operand_elements_per_s={
            dtype: curve.elements_per_s
            for dtype, curve in products.items()
            if curve.elements_per_s < math.inf
        },
        link=_link(links, gathers),
        network=_link(network, gathers),
        host_bytes_per_s=_slower(_rate(points, "upload"), _rate(points, "download")),
        # A CPU rank's memory is its share of the node's.
        host_memory_bytes_per_s=_times(memory_bytes_per_s if layers else None, per_node),
        nvme_bytes_per_s=_times(_slower(_rate(points, "write"), _rate(points, "read")), per_node),
        layer_s=layers[0].slowest_s if layers else None,
        attention=_attention(points),
        logit_s={p.dtype: p.slowest_s / math.prod(p.shape) for p in of_kind(points, "loss")},
    )
    of_all = {kind: of_kind(points, kind, "all") for kind in (*gathers, *_OTHERS)}
    return Figures(
        products=products,
        links=links,
        network=network,
        beyond=_beyond(of_all, measured, per_node, n_nodes),
        measured=measured,
    )


def _attention(points: Sequence[Point]) -> dict[str, AttentionRates]:
    """By precision, counted as the cost model does: a causal kernel skips half of the scores."""
    forward = {point.dtype: point for point in of_kind(points, "attention")}
    found = {}
    for both in of_kind(points, "attention_both"):
        samples, heads, tokens, width = both.shape
        score_flops = 4.0 * samples * heads * tokens**2 * width
        forward_s = forward[both.dtype].slowest_s
        # Short kernels scatter: the backward pass takes at least as long as the forward one.
        backward_s = max(both.slowest_s - forward_s, forward_s)
        found[both.dtype] = AttentionRates(
            forward_flops_per_s=0.5 * score_flops / forward_s,
            backward_flops_per_s=1.25 * score_flops / backward_s,
        )
    return found


def _curves(points: Sequence[Point], span: Span, n_ranks: int) -> dict[str, LinkCurve]:
    return {
        kind: fit_link(measured_points, kind, n_ranks)
        for kind in LINK_KINDS
        if (measured_points := of_kind(points, kind, span))
    }


def _link(curves: Mapping[str, LinkCurve], gathers: Sequence[str]) -> MeasuredLink | None:
    """One link for all kinds; None: nothing was measured of it."""
    if not curves:
        return None
    # In equal shares, as ZeRO uses them.
    rate = len(gathers) / sum(1.0 / curves[kind].bytes_per_s for kind in gathers)
    latencies = sorted(curve.latency_s for curve in curves.values())
    return MeasuredLink(
        bytes_per_s=rate,
        # In the middle of all kinds: the model has one for all.
        latency_s=latencies[len(latencies) // 2] or None,
        all_reduce_speed=curves["all_reduce"].bytes_per_s / rate,
        all_to_all_speed=curves["all_to_all"].bytes_per_s / rate,
        send_speed=curves["send"].bytes_per_s / rate,
        all_reduce_latency_s=curves["all_reduce"].latency_s or None,
    )


_OTHERS = {"all_reduce": all_reduce_s, "all_to_all": exchange_s, "send": send_s}
"""The cost model's formulas of what is no gather."""


def _beyond(
    of_all: Mapping[str, Sequence[Point]], measured: MeasuredRates, per_node: int, n_nodes: int
) -> dict[str, float]:
    if measured.link is None or measured.network is None:
        return {}
    near, far = (
        Link(
            hop_s=fields.pop("latency_s") or 0.0,
            all_reduce_hop_s=fields.pop("all_reduce_latency_s") or 0.0,
            is_measured=1.0,
            **fields,
        )
        for fields in map(dataclasses.asdict, (measured.link, measured.network))
    )
    everyone = ring(near, far, ranks=float(per_node * n_nodes), local=float(per_node))
    return {
        kind: statistics.geometric_mean(
            point.slowest_s / float(_OTHERS.get(kind, gather_s)(everyone, float(point.size_bytes)))
            for point in measured_points
        )
        for kind, measured_points in of_all.items()
    }


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


def _times(rate: float | None, per_node: int) -> float | None:
    """The rate of all ranks of a node at once."""
    return None if rate is None else per_node * rate


def _slower(*rates: float | None) -> float | None:
    return min((rate for rate in rates if rate is not None), default=None)
