"""Slow devices, slow links and disturbed repeats are named; a healthy fleet is silent."""

import dataclasses
from typing import Any

import pytest

from autotune.cost.constants import load_constants
from autotune.devices.accelerators import find_accelerator
from autotune.probe.figures import figures_of
from autotune.probe.findings import conclude
from tests.probe.made_up import FLOPS, NETWORK_SHARE, RATES, STREAM, points

NAMES = [f"GPU {rank}" for rank in range(6)]
CLASS = dataclasses.replace(
    find_accelerator("A100-80GB"),
    achieved_flops={"bf16": FLOPS},
    memory_bytes_per_s=STREAM / 0.9,
    # What training gets of it is a share; here exactly what was reached.
    network_bytes_per_s=NETWORK_SHARE * RATES["all_gather"] / load_constants().network_share,
)


def warnings(
    *, n_ranks: int = 4, n_nodes: int = 1, device_class: Any = CLASS, **changes: Any
) -> tuple[str, ...]:
    found = points(n_ranks, n_nodes=n_nodes, **changes)
    return conclude(
        found, figures_of(found, n_ranks, n_nodes), names=NAMES, device_class=device_class
    )


@pytest.mark.parametrize(("n_ranks", "n_nodes"), [(1, 1), (2, 1), (4, 1), (1, 2), (1, 3), (2, 3)])
def test_a_healthy_fleet_is_silent(n_ranks: int, n_nodes: int) -> None:
    assert warnings(n_ranks=n_ranks, n_nodes=n_nodes) == ()


@pytest.mark.parametrize("n_ranks", [2, 4])
def test_a_slow_device_is_named(n_ranks: int) -> None:
    first, *others = warnings(n_ranks=n_ranks, slow_rank=1)
    assert first.startswith("rank 1 (GPU 1): bf16 products 50% slower")
    # The slowest rank's is the fleet's rate, which is below the class then.
    assert ["A100-80GB" in warning for warning in others] == [True]


def test_a_slow_link_is_named_by_both_ends() -> None:
    (warning,) = warnings(slow_pair=(1, 3))
    assert "ranks 1 (GPU 1) and 3 (GPU 3)" in warning
    assert "20 GB/s" in warning
    assert "67% less" in warning


def test_a_slow_cable_between_nodes_is_named_by_both_ends() -> None:
    """Compared with other cables alone: every one of them is slower than a link in a node."""
    (warning,) = warnings(n_ranks=2, n_nodes=3, slow_pair=(1, 5))
    assert "ranks 1 (GPU 1) and 5 (GPU 5): 1 GB/s between them, 67% less" in warning
    assert "switch between these nodes" in warning


def test_a_network_below_its_class_is_told_of() -> None:
    better = dataclasses.replace(CLASS, network_bytes_per_s=3 * CLASS.network_bytes_per_s)
    (warning,) = warnings(n_ranks=1, n_nodes=2, device_class=better)
    assert warning.startswith("network between nodes: 4.00 GB/s per device, 67% below")
    assert "A100-80GB" in warning


def test_all_ranks_together_are_held_against_their_links() -> None:
    (warning,) = warnings(n_ranks=2, n_nodes=3, slow_together=2.0)
    assert "all_reduce 2.0 times" in warning
    assert "all_to_all 2.0 times" in warning


def test_devices_below_their_class_are_told_of() -> None:
    better = dataclasses.replace(
        CLASS, achieved_flops={"bf16": 2 * FLOPS}, memory_bytes_per_s=2 * STREAM
    )
    products, memory = warnings(device_class=better)
    assert products.startswith("bf16 products")
    assert memory.startswith("memory")
    assert warnings(device_class=None) == ()


def test_other_work_shows_in_repeats_that_scatter() -> None:
    (warning,) = warnings(scatter=0.5)
    assert "something else ran" in warning
