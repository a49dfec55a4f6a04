"""Reports that cannot be: refused, with the node and the rank."""

from typing import Any

import pytest

from autotune.base.errors import FleetError
from autotune.probe.points import check_reports, points_of
from tests.probe.made_up import reports

NAMES = ("GPU 0 of a", "GPU 1 of a", "GPU 0 of b", "GPU 1 of b")


def sound() -> list[dict[str, Any]]:
    """Of two nodes with two ranks each."""
    return reports(2, n_nodes=2, layer_s=1e-4)


def test_what_ranks_measure_passes() -> None:
    check_reports(sound(), NAMES)
    assert points_of(sound())


@pytest.mark.parametrize("seconds", [-1.0, 0.0, float("nan"), float("inf")])
def test_a_time_that_cannot_be_is_refused_with_its_node(seconds: float) -> None:
    found = sound()
    found[2]["points"][0]["seconds"] = seconds
    with pytest.raises(FleetError, match=r"^rank 2 \(GPU 0 of b\): matmul: .* cannot") as refused:
        check_reports(found, NAMES)
    assert refused.value.hint


def test_a_rank_that_left_something_out_is_named() -> None:
    found = sound()
    found[1]["points"] = [p for p in found[1]["points"] if p["kind"] != "all_to_all"]
    with pytest.raises(FleetError, match=r"rank 1 \(GPU 1 of a\): measured other things"):
        check_reports(found, NAMES)
