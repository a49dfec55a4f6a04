"""Activations against the formulas of Korthikanti et al. (arXiv:2205.05198)."""

import numpy as np
import pytest

from autotune.cost.activations import activations_of
from autotune.cost.plans import Plans, Recompute
from autotune.cost.sizes import sizes_of
from tests.cost.plans import plans

S, H, A, L = 2048, 12288, 96, 96


def kept(p: Plans) -> float:
    """What the first stage keeps, without the embedding's dropout mask."""
    found = activations_of(p, sizes_of(p)).first_stage_bytes
    in_flight = float(np.minimum(p.grad_accum, p.pp + (p.pp - 1) / p.vp * (p.vp > 1)))
    mask = S * H / (float(p.tp) if p.sequence_parallel else 1.0)
    return float(found) - in_flight * mask


@pytest.mark.parametrize(
    ("changes", "per_layer"),
    [
        # Equation 1: s b h (34 + 5 a s / h).
        ({"flash_attention": 0.0}, S * H * (34 + 5 * A * S / H)),
        # Equation 2: s b h (10 + 24 / t + 5 a s / (h t)).
        ({"flash_attention": 0.0, "tp": 8.0}, S * H * (10 + 24 / 8 + 5 * A * S / (H * 8))),
        # Equation 4: s b h / t (34 + 5 a s / h).
        (
            {"flash_attention": 0.0, "tp": 8.0, "sequence_parallel": 1.0},
            S * H / 8 * (34 + 5 * A * S / H),
        ),
        # Table 2: with selective recomputation and sequence parallelism, 34 s b h / t.
        (
            {
                "flash_attention": 0.0,
                "tp": 8.0,
                "sequence_parallel": 1.0,
                "recompute": float(Recompute.SELECTIVE),
            },
            34 * S * H / 8,
        ),
        # Table 2: full recomputation, 2 s b h.
        ({"recompute": float(Recompute.FULL)}, 2 * S * H),
        # A fused kernel writes no scores: what selective recomputation leaves.
        ({}, 34 * S * H),
        # Every second layer recomputed: half of either.
        ({"recompute": float(Recompute.FULL), "recompute_every": 2.0}, S * H * (34 + 2) / 2),
    ],
)
def test_one_layer_as_the_paper_counts_it(changes: dict[str, float], per_layer: float) -> None:
    assert kept(plans(**changes)) == pytest.approx(L * per_layer, rel=1e-9)


def test_scores_are_as_wide_as_the_layers_compute() -> None:
    for activation_bytes, each_bytes in ((2.0, 5), (4.0, 9)):
        written, fused = (
            kept(plans(flash_attention=is_fused, activation_bytes=activation_bytes))
            for is_fused in (0.0, 1.0)
        )
        assert written - fused == pytest.approx(L * each_bytes * A * S * S)


@pytest.mark.parametrize(
    ("changes", "each_bytes", "running_bytes"),
    [
        ({}, 6, 8),
        ({"fused_kernels": 1.0}, 2, 0),
        ({"activation_bytes": 4.0}, 4, 8),
        ({"expert_biases": 1.0}, 2, 4),  # GPT-OSS
    ],
)
def test_a_softmax_of_hugging_face_is_kept_in_32_bits_too(changes, each_bytes, running_bytes):
    llama = {"gated_mlp": 1.0, "fused_kernels": 0.0, "has_dropout": 0.0, **changes}
    written, fused = (plans(flash_attention=kind, **llama) for kind in (0.0, 1.0))
    assert kept(written) - kept(fused) == pytest.approx(L * each_bytes * A * S * S)
    running = [activations_of(p, sizes_of(p)).working_bytes for p in (written, fused)]
    assert running[0] - running[1] == pytest.approx(running_bytes * A * S * S)


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        # 1F1B: L/pp layers of pp micro-batches is L layers of one, where there are enough of them.
        ({"pp": 8.0, "grad_accum": 64.0}, 1.0),
        ({"pp": 8.0, "grad_accum": 2.0}, 1 / 4),
        # Korthikanti et al., section 4.2.3: times 1 + (pp - 1)/(pp vp).
        ({"pp": 8.0, "vp": 3.0, "grad_accum": 64.0}, 1 + 7 / 24),
        ({"offloaded_activations": 0.5}, 1 / 2),
    ],
)
def test_what_the_first_stage_holds(changes: dict[str, float], share: float) -> None:
    assert kept(plans(**changes)) == pytest.approx(share * kept(plans()))


@pytest.mark.parametrize("axis", ["cp", "ulysses"])
def test_ranks_that_share_a_sequence_hold_their_part(axis: str) -> None:
    held = [
        float(activations_of(p, sizes_of(p)).first_stage_bytes)
        for p in (plans(has_dropout=0.0, **{axis: n}) for n in (1.0, 4.0))
    ]
    assert held[1] == pytest.approx(held[0] / 4)


def test_gated_mlp_and_grouped_heads() -> None:
    # Llama 3 8B, no dropout: 8 h of norms, 2 (2a + 2k) of heads, 6 f of the MLP, per token.
    llama = plans(
        n_layers=32.0,
        hidden=4096.0,
        ffn_hidden=14336.0,
        n_heads=32.0,
        n_kv_heads=8.0,
        gated_mlp=1.0,
        has_dropout=0.0,
    )
    found = float(activations_of(llama, sizes_of(llama)).first_stage_bytes)
    per_token = 8 * 4096 + 2 * (2 * 4096 + 2 * 1024) + 6 * 14336
    assert found == pytest.approx(32 * 2048 * per_token)


def test_what_is_written_out_keeps_its_steps() -> None:
    # transformers' LlamaMLP and LlamaRMSNorm in bf16: the gate's result, and both norms' inputs in
    # 32 bit. NewGELUActivation: tanh's result, 1 + that, and half the input.
    sizes = {"hidden": 4096.0, "ffn_hidden": 16384.0, "has_dropout": 0.0}
    llama = {**sizes, "gated_mlp": 1.0}
    extra = kept(plans(**llama, fused_kernels=0.0)) - kept(plans(**llama))
    assert extra == pytest.approx(L * S * (2 * 16384 + 2 * 4 * 4096))
    half = kept(plans(**llama, fused_kernels=0.5)) - kept(plans(**llama))
    assert half == pytest.approx(extra / 2)
    gpt2 = {**sizes, "activation_copies": 3.0}
    extra = kept(plans(**gpt2, fused_kernels=0.0)) - kept(plans(**gpt2))
    assert extra == pytest.approx(L * S * 3 * 2 * 16384)
    assert kept(plans(**gpt2)) == kept(plans(**sizes)), "what is fused keeps no steps"


LONG = {
    "n_layers": 32.0,
    "hidden": 4096.0,
    "ffn_hidden": 14336.0,
    "n_heads": 32.0,
    "n_kv_heads": 8.0,
    "head_dim": 128.0,
    "gated_mlp": 1.0,
    "seq_len": 131072.0,
    "micro_batch": 1.0,
    "recompute": float(Recompute.FULL),
}
"""An 8B model on long samples."""


def working(**changes: float) -> float:
    p = plans(**{**LONG, **changes})
    return float(np.ravel(activations_of(p, sizes_of(p)).working_bytes)[0])


def test_an_mlp_in_chunks_holds_one_of_them() -> None:
    """What it keeps, and gradients of its inner results: 5 f of 2 bytes a token."""
    inner_bytes = 2.0 * 5.0 * LONG["ffn_hidden"]
    whole, tiled, one = (working(mlp_tile_tokens=n) for n in (0.0, 4096.0, 131072.0))
    assert whole - tiled == pytest.approx(inner_bytes * (LONG["seq_len"] - 4096.0))
    assert one == pytest.approx(whole)


@pytest.mark.parametrize("experts", [{}, {"n_experts": 8.0, "experts_per_token": 2.0}])
def test_a_chunk_is_held_once_whatever_is_recomputed(experts: dict[str, float]) -> None:
    full, none = (
        working(**{**experts, "mlp_tile_tokens": 4096.0, "recompute": float(recompute)})
        - working(**{**experts, "mlp_tile_tokens": 8.0, "recompute": float(recompute)})
        for recompute in (Recompute.FULL, Recompute.NONE)
    )
    per_token = 2.0 * 5.0 * LONG["ffn_hidden"] * experts.get("experts_per_token", 1.0)
    assert none == pytest.approx(full)
    assert none == pytest.approx(per_token * (4096 - 8))


def test_inputs_on_the_host_leave_two_layers_on_the_device() -> None:
    layer_bytes = 2.0 * LONG["seq_len"] * LONG["hidden"]
    p = plans(**LONG, offloaded_activations=1.0)
    found = activations_of(p, sizes_of(p))
    assert float(np.ravel(found.host_bytes)[0]) == pytest.approx(LONG["n_layers"] * layer_bytes)
    assert working(offloaded_activations=1.0) - working() == pytest.approx(2.0 * layer_bytes)
