"""States per parameter as the papers count them, and what memory must do when a knob is turned."""

import dataclasses

import numpy as np
import pytest

from autotune.cost import Plans, Tier, load_constants, predict
from autotune.cost.activations import activations_of
from autotune.cost.memory import Held, Memory, memory_of_traced
from autotune.cost.plans import Column
from autotune.cost.sizes import sizes_of
from tests.cost.plans import plans

STAGES = np.array([0.0, 1.0, 2.0, 3.0])


def states(p: Plans) -> np.ndarray:
    memory: Memory = predict(p).memory
    return memory.params_bytes + memory.grads_bytes + memory.optimizer_bytes


def parameters(p: Plans) -> float:
    """Parameters of the only stage of a model that is not split."""
    s = sizes_of(p)
    return float(s.stage_layers * s.layer_params + s.vocab_params)


def test_parameters_of_gpt3() -> None:
    assert parameters(plans()) == pytest.approx(175e9, rel=0.01)


def test_bytes_per_parameter_by_stage() -> None:
    # ZeRO (arXiv:1910.02054), figure 1: 16, 4 + 12/N, 2 + 14/N and 16/N bytes at N = 64.
    p = plans(zero_stage=STAGES, dp=64.0)
    expected = np.array([16, 4 + 12 / 64, 2 + 14 / 64, 16 / 64]) * parameters(plans())
    assert states(p) == pytest.approx(expected)
    in_32_bits = plans(weight_bytes=4.0, grad_bytes=4.0, optimizer_bytes=8.0)
    assert states(in_32_bits) == pytest.approx([16 * parameters(plans())])


def test_gloo_copies_what_it_scatters_and_gathers() -> None:
    def buckets(**changes: float) -> float:
        p = plans(zero_stage=1.0, **changes)
        return float(np.broadcast_to(predict(p).memory.buckets_bytes, 1)[0])

    assert buckets(dp=2.0, reduces_whole=1.0) == pytest.approx(4 * parameters(plans()))
    assert buckets(dp=1.0, reduces_whole=1.0) == 0
    assert buckets(dp=2.0) == 0


def test_a_process_that_is_known_takes_what_it_takes() -> None:
    found = predict(plans(process_bytes=np.array([0.0, 1e8]))).memory.context_bytes
    assert list(found) == [load_constants().context_bytes, 1e8]


MIXTURE = {"n_experts": 64.0, "experts_per_token": 2.0, "zero_stage": 1.0, "dp": 64.0}


@pytest.mark.parametrize(
    "changes",
    [
        *({degree: np.array([1.0, 2, 4, 8]), "grad_accum": 64.0} for degree in ("tp", "pp", "cp")),
        {"zero_stage": STAGES, "dp": 64.0, "tp": 8.0},
        *({n: np.array([2048.0, 1024.0, 512.0]), "tp": 8.0} for n in ("micro_batch", "seq_len")),
        {**MIXTURE, "ep": np.array([1.0, 8.0, 64.0])},
        {**MIXTURE, "ep": 8.0, "expert_imbalance": np.array([1.5, 1.0])},
    ],
)
def test_what_takes_less_memory(changes: dict[str, Column]) -> None:
    assert np.all(np.diff(predict(plans(**changes)).peak_memory_bytes) < 0)


def test_parts_add_up_to_the_peak() -> None:
    p = plans(zero_stage=STAGES, dp=64.0, tp=8.0, flat_buffers=1.0)
    predicted = predict(p)
    m = predicted.memory
    inside = (
        m.params_bytes
        + m.grads_bytes
        + m.optimizer_bytes
        + m.activations_bytes
        + m.logits_bytes
        + m.buckets_bytes
        + m.gathered_bytes
        + m.workspace_bytes
    )
    assert inside == pytest.approx(m.allocated_bytes)
    assert m.allocated_bytes + m.fragmentation_bytes == pytest.approx(m.reserved_bytes)
    assert m.reserved_bytes + m.context_bytes == pytest.approx(predicted.peak_memory_bytes)


def test_a_bucket_that_gradients_are_copied_into_is_there_whatever_the_model() -> None:
    # DeepSpeed: torch.empty(reduce_bucket_size) in stage_1_and_2.py (setup_buckets: twice where
    # reduction overlaps) and stage3.py (_setup_for_real_optimizer).
    large = {"reduce_bucket_elements": 1e12, "gather_bucket_elements": 1e12, "tp": 8.0}
    whole = parameters(plans(tp=8.0))
    for stage, overlap, n_buckets, n_gathered in (
        (1.0, 0.0, 1, 1),
        (2.0, 1.0, 2, 1),
        (3.0, 1.0, 1, 0),
    ):
        p = plans(
            zero_stage=stage,
            dp=64.0,
            flat_buffers=float(stage < 3),
            overlap_reduce=overlap,
            **large,
        )
        expected = 2 * (n_buckets * 1e12 + n_gathered * whole)
        assert predict(p).memory.buckets_bytes == pytest.approx(expected, rel=0.01)
        flattened = dataclasses.replace(p, copies_grads=0.0)
        held = 2 * (n_buckets + n_gathered) * whole
        assert predict(flattened).memory.buckets_bytes == pytest.approx(held, rel=0.01)


def test_a_second_copy_of_parameters_lies_where_they_do() -> None:
    # DeepSpeed: torch.empty(tensor_size // num_ranks_in_param_group, device=self.remote_device).
    whole_bytes = 2 * parameters(plans())
    for tier, part in ((Tier.DEVICE, "params_bytes"), (Tier.CPU, "host_bytes")):
        without, beside = (
            vars(predict(plans(zero_stage=3.0, dp=64.0, param_tier=tier, gather_group=n)).memory)
            for n in (0.0, 8.0)
        )
        assert beside[part] - without[part] == pytest.approx(whole_bytes / 8)


def test_the_peak_is_that_of_the_fullest_of_three_moments() -> None:
    # Of 1 and of 64 sequences, recomputed, with a loss in chunks; states in 32 bits on 16 ranks.
    sharded = {"zero_stage": 3.0, "dp": 16.0, "layer_wise_gather": 1.0}
    sharded |= {"recompute": 2.0, "loss_chunk_tokens": 1.0}
    fp32 = {"weight_bytes": 4.0, "grad_bytes": 4.0, "optimizer_bytes": 8.0}
    p = plans(**sharded, **fp32, optimizer_temporary_bytes=4.0, micro_batch=np.array([1.0, 64.0]))
    memory = vars(predict(p).memory)
    few, many = ({name: float(part[i]) for name, part in memory.items()} for i in (0, 1))
    # Weights, gradients, two moments and their roots; measured: fms-acceleration, Llama-3-8B on
    # four devices, 37.41 GiB of 8.03 billion parameters.
    step = few["allocated_bytes"] - load_constants().workspace_bytes
    assert step == pytest.approx(20 * parameters(plans()) / 16, rel=1e-3)
    assert few["activations_bytes"] == few["logits_bytes"] == few["gathered_bytes"] == 0
    # No gradients yet, and no logits any more.
    assert many["grads_bytes"] == 0
    assert many["logits_bytes"] == 0
    s = sizes_of(p)
    a = activations_of(p, s)
    kept = np.maximum(a.first_stage_bytes, a.last_stage_bytes)
    assert many["activations_bytes"] == pytest.approx((kept + a.working_bytes)[1])
    # With more micro-batches there are gradients of the one before.
    later = predict(dataclasses.replace(p, grad_accum=2.0)).memory.grads_bytes
    assert np.all(later > 0)


def test_a_published_peak_may_be_of_the_first_or_the_last_rank_alone() -> None:
    p = plans(pp=4.0, grad_accum=4.0, vocab=1e6, watched_stage=np.array([0.0, 1.0, 2.0]))
    predicted = predict(p)
    fullest, first, last = predicted.memory.peak_bytes
    assert fullest == max(first, last)
    assert first != last
    # What fits is decided by the fullest.
    assert np.ptp(predicted.peak_memory_bytes) == 0


def test_what_the_loss_leaves_is_cached_as_far_as_there_is_room() -> None:
    c = dataclasses.replace(load_constants(), fragmentation=1e-12)
    # A vocabulary whose logits are 25 GB, on devices with much room, with some, and with none.
    devices = np.array([1e13, 0.0, 0.0])
    p = plans(zero_stage=3.0, dp=64.0, recompute=2.0, vocab=1e6, memory_bytes=devices)
    needed = predict(p, c).memory
    taken = float(np.max(needed.allocated_bytes + needed.context_bytes))
    p = dataclasses.replace(p, memory_bytes=np.array([1e13, taken + 1e9, taken]))
    cached = predict(p, c).memory.fragmentation_bytes
    assert cached == pytest.approx(
        [c.logits_fragmentation * 2048 * 1e6 * 12, 0.5e9, 0.0], rel=1e-6, abs=1e3
    )


def test_tiles_of_an_mlp_hold_what_they_work_on() -> None:
    tiled = np.array([0.0, 256.0])
    a = activations_of(plans(mlp_tile_tokens=tiled), sizes_of(plans()))
    whole, tile = np.broadcast_to(a.first_stage_bytes, 2)
    inner = 2 * 2.0 * 49152.0 * 2048 * 96
    assert whole - tile == pytest.approx(inner)
    one = 2 * 2.0 * 49152.0 * 256
    assert np.diff(a.working_bytes) == pytest.approx(one - 2.0 * 49152.0 * (2048 - 256))


def test_frozen_weights_are_gathered_without_gradients_and_in_their_four_bits() -> None:
    chosen = {"zero_stage": 3.0, "dp": 8.0, "layer_wise_gather": 1.0, "trained_share": 0.0}

    def gathered(**changes: float) -> float:
        memory = predict(plans(**(chosen | changes))).memory
        return float(np.broadcast_to(memory.gathered_bytes, 1)[0])

    assert gathered(weight_bytes=0.5) == pytest.approx(gathered(weight_bytes=2.0) / 4)
    # A layer's experts are one module, and where they are trained its gradients are whole, too.
    mixture = {"n_experts": 8.0, "experts_per_token": 2.0, "layer_wise_gather": 0.0}
    experts = float(sizes_of(plans(**chosen | mixture)).layer_expert_params)
    assert gathered(**mixture) == pytest.approx(2 * experts)
    assert gathered(**mixture, trained_share=1.0) == pytest.approx(4 * experts - 2 * 5e8)
    assert gathered(**mixture, live_elements=2e10) < gathered(**mixture, live_elements=1e11)


def test_last_stage_can_be_the_worst() -> None:
    # A vocabulary of a million makes the logits more than what the first stage keeps.
    p = plans(pp=4.0, grad_accum=4.0, recompute=2.0, vocab=np.array([1e3, 1e6]))
    logits = predict(p).memory.logits_bytes
    assert logits == pytest.approx([0, 2048 * 1e6 * 12])


def test_host_holds_what_the_device_does_not() -> None:
    tiers = np.array([float(Tier.DEVICE), float(Tier.CPU)])
    predicted = predict(plans(zero_stage=2.0, dp=8.0, optimizer_tier=tiers))
    memory = predicted.memory
    assert memory.optimizer_bytes[1] == memory.grads_bytes[1] == 0
    assert predicted.host_memory_bytes[0] == 0
    # 12 bytes of states and 2 of gradients per parameter, over the ranks of the one node.
    assert predicted.host_memory_bytes[1] == pytest.approx(14 * parameters(plans()))


@pytest.mark.parametrize(
    ("stage", "grad_accum", "share"),
    [(1, 1, 1.0), (1, 4, 1.0), (2, 1, 0.0), (2, 4, 1 / 8), (3, 1, 0.0), (3, 4, 0.0)],
)
def test_gradients_that_stay_on_the_device_beside_an_optimizer_on_the_host(
    stage: int, grad_accum: int, share: float
) -> None:
    """Shares as live `param.grad` of two and four CPU ranks had them, DeepSpeed 0.19.8."""
    p = plans(zero_stage=float(stage), dp=8.0, grad_accum=float(grad_accum), seq_len=8.0)
    memory = predict(dataclasses.replace(p, optimizer_tier=float(Tier.CPU))).memory
    assert memory.grads_bytes == pytest.approx(2.0 * parameters(plans()) * share)


def test_the_host_that_needs_most_counts() -> None:
    # Without kept activations the last stage's device is the fullest; the first has the positions.
    p = plans(pp=4.0, grad_accum=4.0, vocab=4e5, learned_positions=1.0, seq_len=8192.0)
    states = {"zero_stage": 1.0, "optimizer_tier": float(Tier.CPU)}
    predicted = predict(dataclasses.replace(p, recompute=np.array([0.0, 2.0]), **states))
    assert list(predicted.memory.logits_bytes > 0) == [False, True]
    assert len(set(predicted.host_memory_bytes)) == 1


@pytest.mark.parametrize(
    "changes", [{}, {"optimizer_tier": float(Tier.CPU), "grad_accum": 4.0}], ids=["device", "host"]
)
def test_a_trace_of_what_is_counted_changes_nothing(changes: dict[str, float]) -> None:
    p = plans(zero_stage=np.array([2.0]), dp=64.0, flat_buffers=1.0, **changes)
    counted = predict(p)
    activations = activations_of(p, sizes_of(p))
    kept = max(float(activations.first_stage_bytes), float(activations.last_stage_bytes))
    held = Held(
        n_params=float(counted.memory.params_bytes[0]) / 2,
        # The loss; and the backward pass, where no logits are left.
        activations_bytes=kept + np.array([0.0, float(activations.working_bytes)]),
        logits_bytes=np.array([float(activations.logits_bytes), 0.0]),
        grads_share=1.0,
    )
    traced = memory_of_traced(p, load_constants(), held)
    assert traced.peak_bytes == pytest.approx(counted.peak_memory_bytes[0])
    assert traced.grads_bytes == pytest.approx(counted.memory.grads_bytes[0])


def test_the_fullest_moment_of_a_trace_counts() -> None:
    p = plans(zero_stage=np.array([0.0]))
    held = Held(
        n_params=1e9,
        activations_bytes=np.array([3e9, 2e9, 0.0]),
        logits_bytes=np.array([0.0, 0.5e9, 0.0]),
        grads_share=np.array([0.0, 0.5, 1.0]),
    )
    traced = memory_of_traced(p, load_constants(), held)
    assert traced.params_bytes == 2e9
    # 2 + 0.5 + 1 beat 3 and 2 GB.
    assert traced.activations_bytes == 2e9
    assert traced.logits_bytes == 0.5e9
    assert traced.grads_bytes == 1e9
