"""Measurements over all ranks: one point per work and size."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autotune.base.errors import FleetError
from autotune.devices.probed import short

LINK_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
"""Names of the work between ranks."""
KINDS = (
    *("matmul", "stream", "fresh", "layer", "attention", "attention_both", "loss", "upload"),
    *("download", "write", "read", "pair", *LINK_KINDS),
)
"""All that is measured."""
_TIMED = ("seconds", "scatter")
Span = Literal["node", "nodes", "all"]
"""Ranks that take part: those of one node, one of each node, or all; every such group does the
same at the same time."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One work of one size."""

    kind: str
    """One of `KINDS`."""
    seconds: tuple[float, ...]
    """Median of each rank that took part."""
    scatter: float
    """Width of the middle half of the repeats over their median, of the rank with the most."""
    ranks: tuple[int, ...]
    dtype: str = ""
    """Precision of what computes."""
    shape: tuple[int, ...] = ()
    """Rows, inner and columns of a product; samples, heads, tokens and a head's width of
    attention; tokens and vocabulary of a loss."""
    size_bytes: int = 0
    """Moved by each rank."""
    span: Span = "node"
    """How far what the ranks do with each other reaches."""

    @property
    def slowest_s(self) -> float:
        """Time of the rank that all the others would wait for."""
        return max(self.seconds)

    @property
    def flops(self) -> float:
        m, k, n = self.shape
        return 2.0 * m * k * n

    @property
    def elements(self) -> float:
        m, k, n = self.shape
        return float(m * k + k * n + m * n)

    def as_dict(self) -> dict[str, Any]:
        about = {
            "dtype": self.dtype,
            "shape": list(self.shape),
            "bytes": self.size_bytes,
            "span": "" if self.span == "node" else self.span,
            "ranks": list(self.ranks) if self.kind == "pair" else [],
        }
        return {
            "kind": self.kind,
            **{name: value for name, value in about.items() if value},
            "us": [short(seconds * 1e6) for seconds in self.seconds],
            "scatter": short(self.scatter),
        }


def check_reports(reports: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """See that all ranks measured the same, and times that can be.

    `names` has the name of each rank's device.

    Raises:
        FleetError: One did not: it is named.
    """
    works = [
        {
            (point["kind"], point.get("span", "node"), point.get("dtype", ""))
            for point in report["points"]
            if point["kind"] != "pair"
        }
        for report in reports
    ]
    for rank, report in enumerate(reports):
        why = "" if works[rank] == works[0] else "measured other things than rank 0"
        for point in report["points"]:
            if not 0.0 < point["seconds"] < math.inf:
                why = f"{point['kind']}: {point['seconds']:.6g} s cannot be"
        if why:
            raise FleetError.of("probe.odd_report", rank=rank, name=names[rank], why=why)


def points_of(reports: Sequence[Mapping[str, Any]]) -> tuple[Point, ...]:
    """The points of the ranks' reports, which are in their order, put together."""
    found: dict[str, dict[int, Mapping[str, Any]]] = {}
    for rank, report in enumerate(reports):
        for point in report["points"]:
            about = {name: value for name, value in point.items() if name not in _TIMED}
            found.setdefault(json.dumps(about, sort_keys=True), {})[rank] = point
    return tuple(
        Point(
            kind=first["kind"],
            seconds=tuple(float(point["seconds"]) for point in by_rank.values()),
            scatter=max(float(point["scatter"]) for point in by_rank.values()),
            ranks=tuple(by_rank),
            dtype=first.get("dtype", ""),
            shape=tuple(first.get("shape", ())),
            size_bytes=first.get("bytes", 0),
            span=first.get("span", "node"),
        )
        for by_rank in found.values()
        for first in [next(iter(by_rank.values()))]
    )


def of_kind(points: Sequence[Point], kind: str, span: Span = "node") -> list[Point]:
    """The points of one kind; of what ranks do with each other, those of one span."""
    return [point for point in points if point.kind == kind and point.span == span]
