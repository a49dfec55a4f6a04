"""What was measured of a device and its links reaches the model; nothing is taken off twice."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from autotune.app.planning import open_outlook
from autotune.cost import predict
from autotune.cost.collectives import all_reduce_s, exchange_s, gather_s, group, send_s
from autotune.cost.compute import layer_times, logits_s
from autotune.cost.constants import constants_of, load_constants
from autotune.cost.device import STREAM_SHARE, device_columns
from autotune.cost.plans import Plans
from autotune.cost.sizes import sizes_of
from autotune.devices.accelerators import Accelerator, accelerators_with, find_accelerator
from autotune.devices.probed import AttentionRates, MeasuredLink, MeasuredRates
from autotune.engines.deepspeed.plans import plans_of
from autotune.planning.outlook import FleetWishes
from tests.cost.plans import plans
from tests.jobs import CPU, canonical_candidate, tiny_job
from tests.probe.made_up import (
    LATENCY_S,
    NETWORK_LATENCY_S,
    NETWORK_SHARE,
    RATES,
    SIZES,
    all_seconds,
    link_seconds,
    network_seconds,
)
from tests.probe.test_hardware_file import GPU, write

LINK = MeasuredLink(
    bytes_per_s=RATES["all_gather"],
    latency_s=LATENCY_S,
    all_reduce_speed=RATES["all_reduce"] / RATES["all_gather"],
    all_to_all_speed=RATES["all_to_all"] / RATES["all_gather"],
    send_speed=RATES["send"] / RATES["all_gather"],
)


def entry(measured: MeasuredRates | None) -> Accelerator:
    return dataclasses.replace(find_accelerator("A100-80GB"), measured=measured)


SLOW_FORWARD = AttentionRates(forward_flops_per_s=1e12, backward_flops_per_s=1e14)
SLOW_BACKWARD = AttentionRates(forward_flops_per_s=1e14, backward_flops_per_s=1e12)
STREAM = {"memory_bytes_per_s": entry(None).memory_bytes_per_s * STREAM_SHARE}
"""As of the datasheet."""


def measured_plans(measured: MeasuredRates | None, **changes: float) -> Plans:
    return plans(**{**device_columns(entry(measured), "bf16", 8.0), **changes})


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        ("all_reduce", all_reduce_s),
        ("all_gather", gather_s),
        ("reduce_scatter", gather_s),
        ("all_to_all", exchange_s),
        ("send", send_s),
    ],
)
@pytest.mark.parametrize("n_ranks", [2, 8])
def test_a_measured_collective_takes_what_was_measured(kind, seconds, n_ranks) -> None:
    """The curves are the inverse of the model's formulas: no share of a rate is taken."""
    constants = load_constants()
    ring = group(
        measured_plans(MeasuredRates(link=LINK)), constants, ranks=float(n_ranks), stride=1.0
    )
    for size_bytes in SIZES:
        assert float(seconds(ring, size_bytes)) == pytest.approx(
            link_seconds(kind, size_bytes, n_ranks)
        )


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        ("all_reduce", all_reduce_s),
        ("all_gather", gather_s),
        ("all_to_all", exchange_s),
        ("send", send_s),
    ],
)
@pytest.mark.parametrize("per_node", [1, 2, 8])
def test_a_measured_network_takes_what_was_measured(kind, seconds, per_node) -> None:
    network = dataclasses.replace(
        LINK, bytes_per_s=NETWORK_SHARE * RATES["all_gather"], latency_s=NETWORK_LATENCY_S
    )
    columns = device_columns(
        entry(MeasuredRates(link=LINK, network=network)), "bf16", float(per_node)
    )
    world = 4 * per_node
    rails = group(plans(**columns), load_constants(), ranks=4.0, stride=float(per_node))
    everyone = group(plans(**columns), load_constants(), ranks=float(world), stride=1.0)
    for size_bytes in SIZES:
        assert float(seconds(rails, size_bytes)) == pytest.approx(
            network_seconds(kind, size_bytes, 4)
        )
        assert float(seconds(everyone, size_bytes)) == pytest.approx(
            all_seconds(kind, size_bytes, per_node, 4)
        )


def test_measured_attention_and_logits_take_what_was_measured() -> None:
    rates = AttentionRates(forward_flops_per_s=2e12, backward_flops_per_s=1e12)
    found = MeasuredRates(attention={"bf16": rates}, logit_s={"bf16": 1e-6})
    p = measured_plans(found, seq_len=1000.0, micro_batch=1.0)
    s, constants = sizes_of(p), load_constants()
    score_flops = 4 * 1000**2 * float(s.attention_width)
    layer = layer_times(p, s, constants)
    assert float(layer.attention_s) == pytest.approx(
        0.5 * score_flops / 2e12 + 1.25 * score_flops / 1e12
    )
    other = measured_plans(MeasuredRates(), seq_len=1000.0, micro_batch=1.0)
    products_s = logits_s(dataclasses.replace(p, logit_s=1e-30), s, constants)
    assert float(logits_s(p, s, constants) - products_s) == pytest.approx(1e-3 * s.loss_vocab)
    assert float(layer_times(other, s, constants).attention_s) < float(layer.attention_s)


def test_what_nobody_measured_is_as_the_table_has_it() -> None:
    columns = device_columns(entry(None), "bf16", 8.0)
    ring = group(plans(**columns), load_constants(), ranks=8.0, stride=1.0)
    shipped = load_constants()
    assert float(ring.bytes_per_s) == entry(None).nvlink_bytes_per_s * shipped.nvlink_share
    assert float(ring.hop_s) == shipped.nvlink_latency_s
    assert columns["memory_bytes_per_s"] == entry(None).memory_bytes_per_s
    assert device_columns(entry(MeasuredRates()), "bf16", 8.0) == columns
    streamed = device_columns(entry(MeasuredRates(**STREAM)), "bf16", 8.0)
    assert streamed["memory_bytes_per_s"] == pytest.approx(columns["memory_bytes_per_s"])


def test_links_beyond_the_node_keep_their_own_figures() -> None:
    found = measured_plans(MeasuredRates(link=LINK), dp=16.0)
    other = measured_plans(None, dp=16.0)
    ring, plain = (group(p, load_constants(), ranks=16.0, stride=1.0) for p in (found, other))
    assert float(ring.far.bytes_per_s) == float(plain.far.bytes_per_s)
    # Eight shares of the network are more than what was measured within the node.
    assert float(ring.all_reduce_bytes_per_s) == pytest.approx(RATES["all_reduce"])


@pytest.mark.parametrize(
    ("slower", "changes"),
    [
        ({"memory_bytes_per_s": 0.5e12}, {}),
        ({"operand_elements_per_s": {"bf16": 1e11}}, {}),
        *(
            ({name: MeasuredLink(**{"bytes_per_s": 240e9, **slower})}, {"dp": dp})
            for name, dp in (("link", 8.0), ("network", 16.0))
            for slower in ({"bytes_per_s": 5e9}, {"latency_s": 1e-2}, {"all_reduce_speed": 0.02})
        ),
        ({"host_bytes_per_s": 1e9}, {"optimizer_tier": 1.0, "zero_stage": 2.0}),
        ({"host_memory_bytes_per_s": 10e9}, {"optimizer_tier": 1.0, "zero_stage": 2.0}),
        ({"nvme_bytes_per_s": 1e8}, {"optimizer_tier": 2.0, "zero_stage": 3.0}),
        ({"layer_s": 1.0}, {}),
        ({"attention": {"bf16": SLOW_FORWARD}}, {}),
        ({"attention": {"bf16": SLOW_BACKWARD}}, {}),
        ({"logit_s": {"bf16": 1e-8}}, {}),
        ({"cached_bytes_per_s": 0.5e12, "cache_bytes": 2.0**40}, {}),
        ({**STREAM, "fresh_bytes_per_s": 1e9}, {"clears_pages": 1.0}),
    ],
)
def test_every_slower_figure_makes_a_step_slower(slower, changes) -> None:
    usual = float(np.ravel(predict(measured_plans(None, **changes)).step_time_s)[0])
    found = float(
        np.ravel(predict(measured_plans(MeasuredRates(**slower), **changes)).step_time_s)[0]
    )
    assert found > 1.01 * usual


def test_fresh_pages_cost_only_where_freed_ones_go_back(tmp_path: Path) -> None:
    """The allocator hands them back in the default environment, and only beyond what it keeps."""
    path = write(tmp_path / "hardware.yaml", CPU, layer_s=1e-3)
    text = path.read_text(encoding="utf-8")
    path.write_text(
        text.replace(
            "memory_gb_per_s: 1800.0", "memory_gb_per_s: 8.0\n      fresh_gb_per_s: 1.0", 1
        ),
        encoding="utf-8",
    )
    job = tiny_job(tmp_path, model="tiny-llama-32k", precision="bf16", seq_len=64, global_batch=64)
    table = accelerators_with(path)
    knobs = [
        {"micro_batch": micro_batch, "host_allocator": allocator}
        for micro_batch in (1, 32)
        for allocator in ("default", "keep")
    ]
    plans = plans_of(
        [canonical_candidate(job, **each) for each in knobs], job, CPU, accelerators=table
    )
    small, small_kept, large, large_kept = predict(plans, constants_of(CPU)).times.pages_s
    assert small == small_kept == large_kept == 0
    # A byte of a result each three moved takes 1/1 - 1/8 of a nanosecond longer thrice over.
    shipped = plans_of([canonical_candidate(job, **knobs[2])], job, CPU)
    per_page_s = 3 * 4096 * (1e-9 - 1e-9 / 8)
    assert large / float(predict(shipped, constants_of(CPU)).times.pages_s[0]) == pytest.approx(
        per_page_s / constants_of(CPU).page_s
    )


@pytest.mark.parametrize(
    ("link", "wish", "described_bytes_per_s", "nodes", "measured_share"),
    [
        ("nvlink", {"nvlink": "450GB/s"}, 450e9, {}, 1.0),
        ("network", {"network": "100Gbps"}, 12.5e9, {"per_node": 1, "n_nodes": 4}, NETWORK_SHARE),
    ],
)
def test_a_described_link_is_not_the_measured_one(
    tmp_path: Path, link, wish, described_bytes_per_s, nodes, measured_share
) -> None:
    path = write(tmp_path / "hardware.yaml", GPU, **nodes)
    flags = {"model": "gpt2", "seq_len": 128, "global_batch": 8, "world": 4, "accelerators": path}
    fleet = FleetWishes(gpu="A100-80GB", per_node=nodes.get("per_node"))
    measured, wished = (
        dataclasses.asdict(outlook.predict(outlook.lattice.candidates).plans)
        for outlook in (
            open_outlook(None, flags, dataclasses.replace(fleet, **more)) for more in ({}, wish)
        )
    )
    assert measured[f"{link}_measured"] == 1.0
    reached = pytest.approx(measured_share * RATES["all_gather"])
    assert measured[f"{link}_bytes_per_s"] == reached
    assert wished[f"{link}_measured"] == wished[f"{link}_latency_s"] == 0.0
    assert wished[f"{link}_bytes_per_s"] == described_bytes_per_s
    assert wished[f"{link}_all_reduce_speed"] == 1.0


def test_the_measured_memory_of_a_node_of_cpu_ranks_counts(tmp_path: Path) -> None:
    job = tiny_job(tmp_path, precision="fp32")
    core = find_accelerator("cpu")
    for measured, expected in (
        (None, 2 * core.memory_bytes_per_s),
        (MeasuredRates(memory_bytes_per_s=3e9, host_memory_bytes_per_s=5e9), 5e9),
    ):
        table = [dataclasses.replace(core, measured=measured)]
        found = plans_of([canonical_candidate(job)], job, CPU, accelerators=table)
        assert found.host_memory_bytes_per_s == expected


def test_the_table_of_a_job_predicts_it(tmp_path: Path) -> None:
    path = write(tmp_path / "hardware.yaml", CPU, layer_s=5e-3)
    flags = {"model": "tiny-llama", "seq_len": 32, "global_batch": 4, "world": 2}
    flags |= {"precision": "bf16"}
    with_file = open_outlook(None, {**flags, "accelerators": path}, FleetWishes(gpu="CPU"))
    assert with_file.predict(with_file.lattice.candidates).plans.layer_host_s == 5e-3
    without = open_outlook(None, flags, FleetWishes(gpu="CPU"))
    assert without.predict(without.lattice.candidates).plans.layer_host_s == 0.0
