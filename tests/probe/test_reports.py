"""Figures that cannot be, from a node that knows the token: refused, with the node."""

from typing import Any

import pytest

from autotune.base.errors import FleetError
from autotune.probe.points import points_of
from autotune.probe.reports import check_reports
from tests.probe.made_up import reports

INF, NAN = float("inf"), float("nan")


def sound() -> list[dict[str, Any]]:
    """Of two nodes with two ranks each."""
    about = {"host": "n", "device": "", "place": 0}
    return [{**about, **report} for report in reports(2, n_nodes=2, layer_s=1e-4)]


def check(found: Any) -> None:
    check_reports(found, world=4, per_node=2, most_s=100.0)


def test_what_ranks_measure_passes() -> None:
    check(sound())
    assert points_of(sound())


def of(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    point: dict[str, Any] = next(p for p in found[2]["points"] if p["kind"] == kind)
    return point


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        *[("all_reduce", "seconds", v) for v in (-1.0, 0.0, NAN, INF, -INF, "1", None, True, 1e9)],
        *[("stream", "seconds", v) for v in (1e-30, 10**400, [1.0], {})],
        *[("matmul", "scatter", v) for v in (-0.1, NAN, INF, "x", None)],
        *[("all_gather", "bytes", v) for v in (-1, 0, 1.5, NAN, 2**60, True, "4")],
        *[
            ("pair", "ranks", v)
            for v in ([], [2], [2, 2], [2, 4], [2, -1], [0, 1], [2.0, 3], "23")
        ],
        *[("pair", "ranks", v) for v in (None, [0, 2, 3], [[0], 2], [True, 2])],
        *[("matmul", "shape", v) for v in ([], [1, 2], [0, 1, 1], [-1, 2, 3], "abc", [1.5, 2, 3])],
        *[("matmul", "shape", v) for v in (None, [2**60, 1, 1], [2**49, 2**49, 2**49])],
        *[("matmul", "dtype", v) for v in (7, None, "\x1b[31m", "a" * 100, "b f")],
        *[("send", "span", v) for v in ("everywhere", None, 3, ["node"])],
        *[("send", "kind", v) for v in ("sent", None, 3, ["send"], "matmul", "__class__")],
        ("send", "more", 1),
    ],
)
def test_a_figure_that_cannot_be_is_refused_with_its_node(
    kind: str, field: str, value: Any
) -> None:
    found = sound()
    of(found, kind)[field] = value
    with pytest.raises(FleetError, match=r"^node 1, rank 2: ") as refused:
        check(found)
    assert refused.value.message.isprintable()
    assert len(refused.value.message) < 300
    assert refused.value.hint


def test_a_rate_that_no_device_has_is_refused() -> None:
    found = sound()
    of(found, "all_reduce").update(bytes=2**45, seconds=1e-3)
    with pytest.raises(FleetError, match="no link or memory is so fast"):
        check(found)
    found = sound()
    of(found, "matmul").update(shape=[2**25, 2**25, 2**25], seconds=1e-3)
    with pytest.raises(FleetError, match="no device is so fast"):
        check(found)


@pytest.mark.parametrize(
    "report",
    [
        *(None, [], "report", 7, {}),
        {"host": "n", "device": "", "place": 0},
        {"host": "n", "device": "", "place": 0, "points": []},
        {"host": "n", "device": "", "place": 0, "points": {}},
        {"host": "n", "device": "", "place": 0, "points": [None]},
        {"host": "\x1b[2J", "device": "", "place": 0, "points": [{}]},
        {"host": "n\nerror: x", "device": "", "place": 0, "points": [{}]},
        {"host": "n" * 300, "device": "", "place": 0, "points": [{}]},
        {"host": "n", "device": None, "place": 0, "points": [{}]},
        {"host": "n", "device": "", "place": -1, "points": [{}]},
        {"host": "n", "device": "", "place": 1.5, "points": [{}]},
    ],
)
def test_what_is_no_report_is_refused(report: Any) -> None:
    found: list[Any] = sound()
    found[3] = report
    with pytest.raises(FleetError, match=r"^node 1, rank 3: "):
        check(found)


def test_a_rank_that_left_something_out_is_named() -> None:
    found = sound()
    found[1]["points"] = [p for p in found[1]["points"] if p["kind"] != "all_to_all"]
    with pytest.raises(FleetError, match="node 0, rank 1: measured other things than rank 0"):
        check(found)
    with pytest.raises(FleetError, match="3 of 4 ranks reported"):
        check(sound()[:3])
