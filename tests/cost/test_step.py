"""Times against hand-worked cases, and what must not get slower when a knob is turned."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.cost import Constants, Plans, Prediction, load_constants, predict, traffic
from autotune.cost import collectives as comm
from autotune.cost.plans import Column, ContextKind
from autotune.cost.sizes import sizes_of
from tests.cost.plans import plans

IDEAL = dataclasses.replace(
    load_constants(),
    matmul_share=1.0,
    matmul_traffic=0.0,
    memory_share=1.0,
    launch_s=0.0,
    device_fetch_s=0.0,
    micro_batch_s=0.0,
    step_s=0.0,
    nvlink_share=1.0,
    network_share=1.0,
    nvlink_latency_s=0.0,
    network_latency_s=0.0,
    overlap_share=0.0,
    scale_jitter=0.0,
)
"""Everything at its datasheet rate, nothing on top: what can be worked out by hand."""


def ideal(p: Plans) -> Prediction:
    return predict(p, IDEAL)


def test_products_take_six_operations_per_parameter_and_token() -> None:
    # GPT-3's layers have 12 L h^2 = 174e9 parameters; 2048 tokens, at 250e12 per second; the sums
    # of gradients move 4 bytes per parameter.
    times = ideal(plans()).times
    layer_params = 12 * 96 * 12288**2
    expected = 6 * layer_params * 2048 / 250e12 + layer_params * 4 / 2e12
    assert times.matmul_s == pytest.approx([expected])


def test_full_recomputation_is_a_third_more_products() -> None:
    times = ideal(
        plans(recompute=np.array([0.0, 2.0, 2.0]), recompute_every=np.array([1, 1, 2.0]))
    )
    again = times.times.recompute_s
    assert again[0] == 0
    assert again[2] == pytest.approx(again[1] / 2)
    forward = 2 * 12 * 96 * 12288**2 * 2048 / 250e12
    assert again[1] > forward


@pytest.mark.parametrize(("pp", "m", "vp"), [(4, 8, 1), (8, 64, 1), (4, 8, 2)])
def test_bubble_is_pp_minus_one_over_m_vp(pp: int, m: int, vp: int) -> None:
    # Narayanan et al. (arXiv:2104.04473), section 2.2; without logits all stages are alike.
    p = plans(pp=float(pp), grad_accum=float(m), vp=float(vp), vocab=1e-9)
    t = ideal(p).times
    work = t.matmul_s + t.attention_s + t.elementwise_s
    assert t.bubble_s / work == pytest.approx([(pp - 1) / (m * vp)], rel=1e-6)


def test_parts_add_up_to_the_step() -> None:
    p = plans(tp=np.array([1.0, 8.0, 8.0]), pp=np.array([1.0, 1.0, 8.0]), dp=8.0, grad_accum=64.0)
    predicted = predict(p)
    times = predicted.times
    names = [f.name for f in dataclasses.fields(times) if f.name != "step_s"]
    total = sum(getattr(times, name) for name in names)
    assert total == pytest.approx(times.step_s)
    assert times.step_s == pytest.approx(predicted.step_time_s)
    assert all(np.all(getattr(times, name) >= 0) for name in names)


def of_row(changes: dict[str, Any]) -> Plans:
    """Candidates whose columns a row of a table changes; a list has a value for each."""
    columns = {n: np.array(v, float) if isinstance(v, list) else v for n, v in changes.items()}
    return plans(**columns)


@pytest.mark.cases("part", "least", "changes")
def test_what_takes_longer(part: str, least: float, changes: dict[str, Any]) -> None:
    """Each value takes longer than the one before, by a factor."""
    seconds = np.asarray(getattr(predict(of_row(changes)).times, part))
    assert np.all(seconds[1:] > least * seconds[:-1])


def test_step_is_linear_in_micro_batches() -> None:
    p = plans(grad_accum=np.array([1.0, 2.0, 3.0]))
    steps = predict(p).step_time_s
    assert np.diff(steps, 2) == pytest.approx([0], abs=1e-9 * steps[0])


def group(ranks: float, stride: float = 1.0) -> comm.RankGroup:
    return comm.group(plans(), IDEAL, ranks=ranks, stride=stride)


def test_all_reduce_moves_its_bytes_nearly_twice() -> None:
    # 2 (n - 1)/n x 3 GB at 300 GB/s within a node of 8.
    assert comm.all_reduce_s(group(8), 3e9) == pytest.approx(2 * 7 / 8 * 3e9 / 300e9)


def test_a_ring_across_nodes_has_the_network_shares_of_its_ranks() -> None:
    # 8 ranks in each node: 8 x 25 GB/s. One rank in each: 25 GB/s.
    assert group(64).bytes_per_s == pytest.approx(200e9)
    assert group(8, stride=8).bytes_per_s == pytest.approx(25e9)


def test_one_rank_needs_no_communication() -> None:
    alone = group(1)
    for size in (1e3, 1e9):
        assert comm.all_reduce_s(alone, size) == 0
        assert comm.gather_s(alone, size) == 0
        assert comm.exchange_s(alone, size) == 0
        assert comm.send_s(alone, size) == 0


def test_small_layers_wait_for_the_host() -> None:
    slow: Constants = dataclasses.replace(load_constants(), launch_s=1e-3)
    p = plans(hidden=512.0, n_heads=8.0, head_dim=64.0, ffn_hidden=2048.0)
    assert predict(p, slow).times.host_s > 0.5 * predict(p, slow).step_time_s


@pytest.mark.cases("part", "shares", "changes")
def test_shares_of_the_first(part: str, shares: list[float], changes: dict[str, Any]) -> None:
    seconds = np.broadcast_to(getattr(ideal(of_row(changes)).times, part), len(shares))
    assert seconds / seconds[0] == pytest.approx(shares, rel=0.01, abs=1e-3)


@pytest.mark.parametrize(
    ("constant", "host_s", "changes"),
    [
        # A core dispatches its kernels itself.
        ("launch_s", [IDEAL.kernels_per_layer * 3 * 96, 0.0], {"runs_ahead": np.array([0, 1.0])}),
        # Stage 3 fetches with hooks that only a core waits for.
        (
            "fetch_s",
            [96, 0, 0],
            {
                **{"dp": 2.0, "zero_stage": np.array([3.0, 2.0, 3.0])},
                "runs_ahead": np.array([0.0, 0.0, 1.0]),
            },
        ),
        # Those of DeepSpeed cost time beside a device as well; FSDP gathers a layer in one call.
        (
            "device_fetch_s",
            [96 * 4, 0, 0],
            {
                **{"gather_calls_per_layer": 4.0, "zero_stage": np.array([3.0, 3.0, 2.0])},
                "cuts_by_rank": np.array([1.0, 0.0, 1.0]),
            },
        ),
    ],
)
def test_seconds_of_the_host(constant, host_s, changes) -> None:
    """For a second of one call."""
    slow = dataclasses.replace(IDEAL, **{constant: 1e-4})
    found = predict(plans(**changes), slow).times.host_s
    assert np.broadcast_to(found, len(host_s)) / 1e-4 == pytest.approx(host_s, abs=1e-3)


def test_gloo_scatters_what_it_reduced_whole() -> None:
    def reduced(**changes: float) -> float:
        p = plans(dp=2.0, zero_stage=2.0, overlap_reduce=0.0, overlap_gather=0.0, **changes)
        return float(ideal(p).times.data_comm_s[0])

    gathered = reduced(reduce_bytes=1e-12)
    whole, part = reduced(reduces_whole=1.0) - gathered, reduced() - gathered
    assert whole == pytest.approx(2 * part)


def test_an_mlp_in_chunks_computes_its_forward_pass_again() -> None:
    whole, tiled = (ideal(plans(mlp_tile_tokens=n)).times for n in (0.0, 256.0))
    assert np.ravel(whole.recompute_s)[0] == 0.0
    assert 0.0 < tiled.recompute_s[0] < whole.matmul_s[0] / 3.0
    assert tiled.matmul_s[0] == whole.matmul_s[0]


def test_experts_in_chunks_are_computed_again_too() -> None:
    experts = {"n_experts": 8.0, "experts_per_token": 2.0, "grouped_experts": 1.0}
    whole, tiled = (ideal(plans(mlp_tile_tokens=n, **experts)).times for n in (0.0, 256.0))
    dense = ideal(plans(mlp_tile_tokens=256.0)).times.recompute_s[0]
    assert np.ravel(whole.recompute_s)[0] == 0.0
    assert tiled.recompute_s[0] > 1.8 * dense


def test_what_is_recomputed_is_exchanged_again_by_context_parallel_ranks() -> None:
    """Forward once and backward twice; a layer that runs again needs all keys and values again."""
    of_core = {"recompute": np.array([0.0, 1.0, 2.0]), "recomputes_scores": 1.0}
    for kind in (ContextKind.GATHERED, ContextKind.RING, ContextKind.HEADS):
        p = plans(cp=8.0, context_kind=float(kind), flash_attention=1.0, **of_core)
        s, c = sizes_of(p), load_constants()
        of_kind = traffic.context_s if kind == ContextKind.RING else traffic.waiting_context_s
        none, core, full = np.broadcast_to(of_kind(p, s, c), 3)
        assert core == full
        assert full / none == pytest.approx(1.5 if kind == ContextKind.HEADS else 4 / 3)


def test_norms_are_a_sixth_of_what_a_layer_of_gpt_moves() -> None:
    c, p = load_constants(), plans(has_dropout=0.0, n_layers=1.0)
    norms = plans(has_dropout=0.0, n_layers=1.0, recompute=1.0, recomputes_scores=0.0)
    again = predict(dataclasses.replace(norms, recomputes_norms=1.0), c).times.recompute_s
    moved = predict(p, c).times.elementwise_s / 2.5
    assert again == pytest.approx(moved * 4 / 24)


def test_inputs_of_layers_take_the_host_s_link() -> None:
    """Down and up, as far as the layers' time does not hide them."""
    link = {"host_bytes_per_s": 1e6, "host_link_measured": 1.0, "recompute": 2.0}
    stays, goes = (plans(**link, offloaded_activations=n) for n in (0.0, 1.0))
    more_s = predict(goes).times.offload_s[0] - float(np.ravel(predict(stays).times.offload_s)[0])
    moved_bytes = 2.0 * goes.n_layers * goes.micro_batch * goes.seq_len * goes.hidden * 2.0
    assert more_s == pytest.approx(np.ravel(goes.grad_accum * moved_bytes / 1e6)[0], rel=0.05)


def test_pages_are_cleared_of_what_the_heap_does_not_keep() -> None:
    def pages(**changes: float) -> float:
        p = plans(n_layers=1.0, hidden=64.0, ffn_hidden=64.0, seq_len=64.0, **changes)
        return float(np.broadcast_to(predict(p).times.pages_s, 1)[0])

    rate = 4096 / load_constants().page_s
    assert pages(clears_pages=0.0, vocab=1e6) == 0
    assert pages(clears_pages=1.0, vocab=1e3) == 0, "small blocks are kept"
    mapped = 64 * 1e6 * 12
    assert pages(clears_pages=1.0, vocab=1e6) == pytest.approx(mapped / rate)
    # 16 tokens' logits are 64 MB.
    assert pages(clears_pages=1.0, vocab=1e6, loss_chunk_tokens=16.0) == pytest.approx(
        mapped / rate
    )
    # 4 tokens' are 16 MB, and what is held of them below what the heap keeps.
    assert pages(clears_pages=1.0, vocab=1e6, loss_chunk_tokens=4.0) == 0


def test_gathered_logits_are_whole_on_every_tensor_parallel_rank() -> None:
    whole, split = (predict(plans(tp=8.0, whole_logits=n)) for n in (1.0, 0.0))
    alone = predict(plans())
    assert whole.memory.logits_bytes[0] == alone.memory.logits_bytes[0]
    assert split.memory.logits_bytes[0] == alone.memory.logits_bytes[0] / 8
    assert whole.times.tensor_comm_s[0] > split.times.tensor_comm_s[0]
    assert split.times.logits_s[0] < whole.times.logits_s[0] < alone.times.logits_s[0]


def _gathers_s(**changes: Column) -> NDArray[np.float64]:
    """Seconds of communication between data parallel ranks, none of it hidden."""
    p = plans(zero_stage=3.0, overlap_gather=0.0, overlap_reduce=0.0, **changes)
    return np.asarray(ideal(p).times.data_comm_s)


def test_cutting_tensors_by_rank_takes_longer_with_more_ranks() -> None:
    ranks = np.array([64.0, 512.0])
    whole, cut = (_gathers_s(dp=ranks, cuts_by_rank=cuts) for cuts in (0.0, 1.0))
    assert (cut - whole)[1] == pytest.approx(8 * (cut - whole)[0])


def test_a_last_stage_may_have_the_loss_alone() -> None:
    # Four layers' time in the head, so that an even split waits for it.
    uneven = {"most_stage_layers": 26.0, "first_stage_layers": 26.0, "vocab": 1.2e6}
    bubbles = [
        predict(plans(pp=4.0, grad_accum=32.0, last_stage_layers=n, **uneven)).times.bubble_s[0]
        for n in (0.0, 18.0, 24.0)
    ]
    even = predict(plans(pp=4.0, grad_accum=32.0, vocab=1.2e6)).times.bubble_s[0]
    assert bubbles[0] == bubbles[1] < bubbles[2]
    assert bubbles[2] == pytest.approx(even)


def test_steps_of_a_ring_between_nodes_have_a_least_time() -> None:
    c = dataclasses.replace(IDEAL, nvlink_latency_s=1e-6, network_step_s=5e-6)
    hops = [
        comm.group(plans(), c, ranks=np.array(ranks), stride=1.0).hop_s for ranks in (8.0, 16.0)
    ]
    # Of eight steps one leaves the node, which takes no longer than the others here.
    assert hops == [pytest.approx(1e-6), pytest.approx(5e-6 * 7 / 8)]


def test_adapters_and_packed_weights_take_time() -> None:
    lora = {"trained_share": 0.01, "adapters": np.array([0.0, 1.0, 1.0])}
    less, attention, all_linear = predict(
        plans(**lora, adapts_mlp=np.array([0.0, 0.0, 1.0]))
    ).times.elementwise_s
    assert less < attention < all_linear
    packed = predict(plans(trained_share=0.01, dequantized_bytes=np.array([0.0, 2.5, 20.0])))
    by_kernel, in_torch = np.diff(packed.times.matmul_s)
    # Forward and backward, 12 L h^2 weights each time.
    moved_s = 2 * 2.5 * 12 * 96 * 12288**2 / (2e12 * load_constants().memory_share)
    assert by_kernel == pytest.approx(moved_s, rel=0.02)
    assert in_torch == pytest.approx(7 * by_kernel)
