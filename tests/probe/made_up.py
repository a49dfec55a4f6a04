"""Points of a fleet that nobody has: links and products that follow their curve to the letter."""

import math
from collections.abc import Sequence
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
FLOPS, ELEMENTS_PER_S, CALL_S = 200e12, 400e9, 5e-6
STREAM = 1.8e12
SIZES = (2**16, 2**19, 2**22, 2**25)


def link_seconds(kind: str, size_bytes: float, n: int) -> float:
    """As the cost model has it."""
    if kind == "all_reduce":
        return 2 * math.log2(n) * LATENCY_S + 2 * (n - 1) / n * size_bytes / RATES[kind]
    if kind == "send":
        return LATENCY_S + size_bytes / RATES[kind]
    return (n - 1) * (LATENCY_S + size_bytes / n / RATES[kind])


def product_seconds(m: int, k: int, n: int) -> float:
    return 2 * m * k * n / FLOPS + (m * k + k * n + m * n) / ELEMENTS_PER_S + CALL_S


def reports(
    n_ranks: int = 4,
    *,
    slow_rank: int | None = None,
    slow_pair: tuple[int, int] | None = None,
    scatter: float = 0.01,
    layer_s: float | None = None,
) -> list[dict[str, Any]]:
    """What the ranks would write."""
    return [
        {
            "points": [
                *_own(2.0 if rank == slow_rank else 1.0, scatter, layer_s),
                *_links(n_ranks, scatter),
                *_pairs(rank, n_ranks, slow_pair, scatter),
            ]
        }
        for rank in range(n_ranks)
    ]


def points(n_ranks: int = 4, **changes: Any) -> Sequence[Point]:
    return points_of(reports(n_ranks, **changes))


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
    if layer_s is not None:
        found.append({"kind": "layer", "seconds": layer_s, "scatter": scatter})
    return found


def _links(n_ranks: int, scatter: float) -> list[dict[str, Any]]:
    return [
        {
            "kind": kind,
            "bytes": size,
            "seconds": link_seconds(kind, size, n_ranks),
            "scatter": scatter,
        }
        for kind in (RATES if n_ranks > 1 else ())
        for size in SIZES
    ]


def _pairs(
    rank: int, n_ranks: int, slow_pair: tuple[int, int] | None, scatter: float
) -> list[dict[str, Any]]:
    return [
        {
            "kind": "pair",
            "ranks": [a, b],
            "bytes": 2**22,
            "seconds": (3.0 if (a, b) == slow_pair else 1.0) * 2**22 / 60e9,
            "scatter": scatter,
        }
        for a in range(n_ranks)
        for b in range(a + 1, n_ranks)
        if rank in (a, b)
    ]
