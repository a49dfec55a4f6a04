"""A probe in a terminal: a row per figure, its class beside it, and the warnings."""

import dataclasses
from typing import Any

import pytest

from autotune.devices.accelerators import find_accelerator
from autotune.probe.figures import figures_of
from autotune.probe.run import Probe
from autotune.report.terminal.tables import print_told
from tests import snapshots
from tests.probe.made_up import points
from tests.probe.test_hardware_file import GPU
from tests.report.told import printed


def probe(n_ranks: int = 4, *, n_nodes: int = 1, **changes: Any) -> Probe:
    found = points(n_ranks, n_nodes=n_nodes)
    made = Probe(
        environment=GPU,
        devices=tuple(f"GPU {rank}" for rank in range(n_ranks * n_nodes)),
        n_nodes=n_nodes,
        points=tuple(found),
        figures=figures_of(found, n_ranks, n_nodes),
        device_class=find_accelerator("A100-80GB"),
        warnings=("rank 1 (GPU 1): memory 20% slower than on the other ranks",),
        when="2026-01-02T03:04Z",
        wall_s=12.0,
    )
    return dataclasses.replace(made, **changes)


def shown(found: Probe, width: int = 80) -> str:
    return printed(print_told, "probe_figures", {"probe": found}, width=width)


def views() -> dict[str, Probe]:
    found = points(4, layer_s=1e-3)
    return {
        "one_node": probe(),
        "processors": probe(points=tuple(found), figures=figures_of(found, 4)),
        "two_nodes": probe(n_nodes=2),
        "one_rank": probe(1, device_class=None, warnings=()),
    }


@pytest.mark.parametrize("name", views())
def test_a_probe_is_frozen(name: str) -> None:
    text = shown(views()[name])
    snapshots.check(f"terminal/probe_{name}.txt", text)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.cases("latency_s", "said")
def test_latencies_have_three_digits_and_no_exponent(latency_s: float, said: str) -> None:
    figures = probe().figures
    curve = dataclasses.replace(figures.links["all_reduce"], latency_s=latency_s)
    slow = dataclasses.replace(figures, links={**figures.links, "all_reduce": curve})
    assert said.split() == shown(probe(figures=slow)).partition("all-reduce")[2].split()[4:6]


def test_the_record_holds_every_point() -> None:
    found = probe()
    about = found.about
    assert about["ranks"] == 4
    assert about["devices"] == ["GPU 0", "GPU 1", "GPU 2", "GPU 3"]
    assert len(about["points"]) == len(found.points)
    pairs = [point for point in about["points"] if point["kind"] == "pair"]
    assert [pair["ranks"] for pair in pairs][:2] == [[0, 1], [0, 2]]
    assert len(pairs) == 6
