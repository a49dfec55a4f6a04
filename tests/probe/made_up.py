"""Points of a fleet that nobody has: links and products that follow their curve to the letter."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from autotune.probe.points import Point, points_of

LATENCY_S = 20e-6
RATES = {
    "all_reduce": 100e9,
    "all_gather": 80e9,
    "reduce_scatter": 80e9,
    "all_to_all": 40e9,
    "send": 60e9,
}
NETWORK_LATENCY_S = 70e-6
NETWORK_SHARE = 0.05
"""Share of the rates within a node that a rank has between nodes."""
FLOPS, ELEMENTS_PER_S, CALL_S = 200e12, 400e9, 5e-6
STREAM = 1.8e12
ATTENTION, ATTENTION_S = (2, 4, 100, 50), (1e-3, 10e-3)
"""Samples, heads, tokens and a head's width; forward and backward."""
LOGIT_S = 5e-9
SIZES = (2**16, 2**19, 2**22, 2**25)


def link_seconds(
    kind: str, size_bytes: float, n: int, *, share: float = 1.0, latency_s: float = LATENCY_S
) -> float:
    """As the cost model has it."""
    rate = share * RATES[kind]
    if kind == "all_reduce":
        return 2 * math.log2(n) * latency_s + 2 * (n - 1) / n * size_bytes / rate
    if kind == "send":
        return latency_s + size_bytes / rate
    return (n - 1) * (latency_s + size_bytes / n / rate)


def network_seconds(kind: str, size_bytes: float, n_nodes: int) -> float:
    """The same between nodes, one rank of each."""
    return link_seconds(
        kind, size_bytes, n_nodes, share=NETWORK_SHARE, latency_s=NETWORK_LATENCY_S
    )


def all_seconds(kind: str, size_bytes: float, per_node: int, n_nodes: int) -> float:
    """Time of all ranks: a ring leaves each node by the shares of all its ranks together."""
    latency_s = LATENCY_S + (NETWORK_LATENCY_S - LATENCY_S) / per_node
    n = per_node * n_nodes
    if kind == "all_to_all":
        near_s = (per_node - 1) / RATES[kind]
        far_s = (n - per_node) / (NETWORK_SHARE * RATES[kind])
        return (n - 1) * latency_s + size_bytes / n * (near_s + far_s)
    # A send leaves a node by the one rank that has its neighbour in the next one.
    share = min(1.0, (1 if kind == "send" else per_node) * NETWORK_SHARE)
    return link_seconds(kind, size_bytes, n, share=share, latency_s=latency_s)


def product_seconds(m: int, k: int, n: int) -> float:
    return 2 * m * k * n / FLOPS + (m * k + k * n + m * n) / ELEMENTS_PER_S + CALL_S


def reports(
    per_node: int = 4,
    *,
    n_nodes: int = 1,
    slow_rank: int | None = None,
    slow_pair: tuple[int, int] | None = None,
    scatter: float = 0.01,
    layer_s: float | None = None,
    slow_together: float = 1.0,
) -> list[dict[str, Any]]:
    """What the ranks would write."""
    return [
        {
            "points": [
                *_own(2.0 if rank == slow_rank else 1.0, scatter, layer_s),
                *_links(per_node, n_nodes, scatter, slow_together),
                *_pairs(rank, per_node, n_nodes, slow_pair, scatter),
            ]
        }
        for rank in range(per_node * n_nodes)
    ]


def points(per_node: int = 4, **changes: Any) -> Sequence[Point]:
    return points_of(reports(per_node, **changes))


def _own(slower: float, scatter: float, layer_s: float | None) -> list[dict[str, Any]]:
    shapes = [(side,) * 3 for side in (256, 1024, 4096, 16384)] + [(64, 4096, 4096)]
    found = [
        {
            "kind": "matmul",
            "dtype": "bf16",
            "shape": list(shape),
            "seconds": slower * product_seconds(*shape),
            "scatter": scatter,
        }
        for shape in shapes
    ]
    found += [
        {"kind": "stream", "bytes": size, "seconds": size / STREAM, "scatter": scatter}
        for size in (2**24, 2**30)
    ]
    if layer_s is not None:  # of a CPU rank
        found.append({"kind": "layer", "seconds": layer_s, "scatter": scatter})
        found += [
            {
                "kind": kind,
                "dtype": "bf16",
                "shape": list(shape),
                "seconds": slower * seconds,
                "scatter": scatter,
            }
            for kind, shape, seconds in (
                ("attention", ATTENTION, ATTENTION_S[0]),
                ("attention_both", ATTENTION, sum(ATTENTION_S)),
                ("loss", (64, 1000), 64 * 1000 * LOGIT_S),
            )
        ]
    return found


def _links(
    per_node: int, n_nodes: int, scatter: float, slow_together: float
) -> list[dict[str, Any]]:
    spans: dict[str, Callable[[str, float], float]] = {}
    if per_node > 1:
        spans["node"] = lambda kind, size: link_seconds(kind, size, per_node)
    if n_nodes > 1:
        spans["nodes"] = lambda kind, size: network_seconds(kind, size, n_nodes)
    if per_node > 1 and n_nodes > 1:
        spans["all"] = lambda kind, size: (
            slow_together * all_seconds(kind, size, per_node, n_nodes)
        )
    return [
        {
            "kind": kind,
            "span": span,
            "bytes": size,
            "seconds": seconds(kind, size),
            "scatter": scatter,
        }
        for span, seconds in spans.items()
        for kind in RATES
        for size in SIZES
    ]


def _pairs(
    rank: int, per_node: int, n_nodes: int, slow_pair: tuple[int, int] | None, scatter: float
) -> list[dict[str, Any]]:
    found = []
    for a, b in itertools.combinations(range(per_node * n_nodes), 2):
        is_near = a // per_node == b // per_node
        if rank in (a, b) and (is_near or a % per_node == b % per_node):
            slower = (3.0 if (a, b) == slow_pair else 1.0) / (1.0 if is_near else NETWORK_SHARE)
            found.append(
                {
                    "kind": "pair",
                    "span": "node" if is_near else "nodes",
                    "ranks": [a, b],
                    "bytes": 2**22,
                    "seconds": slower * 2**22 / 60e9,
                    "scatter": scatter,
                }
            )
    return found
