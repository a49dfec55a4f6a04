"""Figures that ranks report, and whether they can be: a node that is known may be broken."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from autotune.base.errors import FleetError
from autotune.probe.points import KINDS, Span

_LEAST_S = 1e-10
"""Less than any clock tells apart."""
_MOST_BYTES_PER_S = 1e15
_MOST_FLOPS_PER_S = 1e19
"""A hundred times and more what any device reaches."""
_MOST_POINTS = 20_000
_MOST_TEXT = 255
_FIELDS = {"kind", "seconds", "scatter", "dtype", "shape", "bytes", "span", "ranks"}
_HINT = "see what is wrong with that node, or measure without it"


class _ImpossibleError(Exception):
    """A figure that cannot be; the message says which."""


def check_reports(reports: Sequence[Any], *, world: int, per_node: int, most_s: float) -> None:
    """See that all ranks reported, and figures that can be.

    Args:
        reports: By rank.
        world: Ranks of all nodes.
        per_node: Ranks of each node.
        most_s: Time that the whole probe had.

    Raises:
        FleetError: One is missing or cannot be; the message names the node and the rank.
    """
    if len(reports) != world:
        raise FleetError(f"{len(reports)} of {world} ranks reported", _HINT)
    n_nodes = world // per_node
    works = None
    for rank, report in enumerate(reports):
        try:
            _check_report(report, rank, world, most_s)
            theirs = {
                (point["kind"], point.get("span", "node"), point.get("dtype", ""))
                for point in report["points"]
                if point["kind"] != "pair"
            }
            works = theirs if works is None else works
            if theirs != works:
                raise _ImpossibleError("measured other things than rank 0")
        except _ImpossibleError as error:
            node = f"node {rank // per_node}, " if n_nodes > 1 else ""
            raise FleetError(f"{node}rank {rank}: {error}", _HINT) from error


def _check_report(report: Any, rank: int, world: int, most_s: float) -> None:
    if not isinstance(report, Mapping):
        raise _ImpossibleError("its report is no object")
    for name in ("host", "device"):
        text = report.get(name)
        if not isinstance(text, str) or len(text) > _MOST_TEXT or not text.isprintable():
            raise _ImpossibleError(f"{name}: is no name")
    _whole(report.get("place"), "place", least=0)
    points = report.get("points")
    if not isinstance(points, list) or not 0 < len(points) <= _MOST_POINTS:
        raise _ImpossibleError(f"points: not 1 to {_MOST_POINTS} of them")
    for point in points:
        if not isinstance(point, Mapping) or not point.keys() <= _FIELDS:
            raise _ImpossibleError("a point is no object of the known fields")
        kind = point.get("kind")
        if not isinstance(kind, str) or kind not in KINDS:
            raise _ImpossibleError("a point of an unknown kind")
        try:
            _check_point(point, rank, world, most_s)
        except _ImpossibleError as error:
            raise _ImpossibleError(f"{kind}: {error}") from error


def _check_point(point: Mapping[str, Any], rank: int, world: int, most_s: float) -> None:
    seconds = _number(point.get("seconds"), "seconds", least=_LEAST_S, most=most_s)
    _number(point.get("scatter"), "scatter", least=0.0, most=1e9)
    size_bytes = _whole(point.get("bytes", 1), "bytes", least=1)
    dtype = point.get("dtype", "")
    if not isinstance(dtype, str) or len(dtype) > 20 or not (dtype.isalnum() or not dtype):
        raise _ImpossibleError("dtype: is no precision")
    if point.get("span", "node") not in get_args(Span):
        raise _ImpossibleError("span: is unknown")
    shape, ranks = point.get("shape", []), point.get("ranks", [])
    if not isinstance(shape, list) or len(shape) not in _SIDES.get(point["kind"], (0,)):
        raise _ImpossibleError("shape: has another number of sides")
    for side in shape:
        _whole(side, "shape", least=1)
    if size_bytes / seconds > _MOST_BYTES_PER_S:
        raise _ImpossibleError(f"{size_bytes / seconds:.3g} B/s: no link or memory is so fast")
    if math.prod(shape) / seconds > _MOST_FLOPS_PER_S:
        raise _ImpossibleError(
            f"{math.prod(shape) / seconds:.3g} products/s: no device is so fast"
        )
    if not isinstance(ranks, list):
        raise _ImpossibleError("ranks: is no list")
    for one in ranks:
        _whole(one, "ranks", least=0, most=world - 1)
    if point["kind"] == "pair" and (len(set(ranks)) != 2 or len(ranks) != 2 or rank not in ranks):
        raise _ImpossibleError(f"ranks: not two different ones with {rank} among them")


_SIDES: Mapping[str, tuple[int, ...]] = {
    "matmul": (3,),
    "attention": (4,),
    "attention_both": (4,),
    "loss": (2,),
}
"""How many numbers the shape of a kind has; of all others none."""


def _number(value: Any, name: str, *, least: float, most: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:  # NaN is neither
        said = f"{value:.6g}" if is_number and abs(value) < 1e300 else "no number"
        raise _ImpossibleError(f"{name}: {said}; from {least:g} to {most:g} can be")
    return float(value)


def _whole(value: Any, name: str, *, least: int, most: int = 2**50) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        said = str(value) if isinstance(value, int) and abs(value) < 10**20 else "no whole number"
        raise _ImpossibleError(f"{name}: {said}; from {least} to {most} can be")
    return value
