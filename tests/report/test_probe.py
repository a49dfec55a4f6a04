"""A probe in a terminal: a row per figure, its class beside it, and the warnings."""

import dataclasses
from typing import Any

import pytest

from autotune.devices.accelerators import find_accelerator
from autotune.probe.figures import figures_of
from autotune.probe.run import Probe
from autotune.report.terminal.tables import print_told
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


def row(text: str, name: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.startswith(name))
    return line.removeprefix(name).split()


def test_what_was_reached_stands_beside_the_class() -> None:
    text = shown(probe())
    assert row(text, "bf16 products")[:4] == ["191", "TFLOP/s", "271", "TFLOP/s"]
    assert row(text, "memory stream")[:2] == ["1.8", "TB/s"]
    assert row(text, "all-reduce") == ["100", "GB/s", "300", "GB/s", "20", "us", "0%"]
    assert "warning: rank 1 (GPU 1): memory 20% slower" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.cases("latency_s", "said")
def test_latencies_have_three_digits_and_no_exponent(latency_s: float, said: str) -> None:
    figures = probe().figures
    curve = dataclasses.replace(figures.links["all_reduce"], latency_s=latency_s)
    slow = dataclasses.replace(figures, links={**figures.links, "all_reduce": curve})
    assert row(shown(probe(figures=slow)), "all-reduce")[4:6] == said.split()


def test_attention_and_loss_of_cpu_ranks_have_rows() -> None:
    found = points(4, layer_s=1e-3)
    text = shown(probe(figures=figures_of(found, 4)))
    assert row(text, "bf16 attention, forward")[:2] == ["8", "GFLOP/s"]
    assert row(text, "bf16 attention, backward")[:2] == ["2", "GFLOP/s"]
    assert row(text, "bf16 loss, of a logit") == ["-", "-", "5", "ns", "-"]


def test_links_between_nodes_have_rows_of_their_own() -> None:
    text = shown(probe(n_nodes=2))
    assert "measured on 8 x NVIDIA A100-SXM4-80GB on 2 nodes" in text
    assert row(text, "all-reduce ")[:4] == ["100", "GB/s", "300", "GB/s"]
    assert row(text, "all-reduce, between nodes") == ["5", "GB/s", "25", "GB/s", "70", "us", "0%"]
    assert row(text, "all-reduce, all ranks")[:2] == ["+0%", "time"]
    assert max(map(len, text.splitlines())) <= 80


def test_one_rank_has_no_links_and_an_unknown_device_no_class() -> None:
    text = shown(probe(1, device_class=None, warnings=()))
    assert "all-reduce" not in text
    assert "no class in the table" in text
    assert row(text, "bf16 products")[2] == "-"
    assert "warning" not in text


def test_the_record_holds_every_point() -> None:
    found = probe()
    about = found.about
    assert about["ranks"] == 4
    assert about["devices"] == ["GPU 0", "GPU 1", "GPU 2", "GPU 3"]
    assert len(about["points"]) == len(found.points)
    pairs = [point for point in about["points"] if point["kind"] == "pair"]
    assert [pair["ranks"] for pair in pairs][:2] == [[0, 1], [0, 2]]
    assert len(pairs) == 6
