"""Mixtures of experts: sizes, activations and times by mechanism.

Numbers of bytes and elements were counted on ranks of megatron-core 0.16.1.
"""

import numpy as np
import pytest

from autotune.cost import Plans, predict
from autotune.cost.activations import activations_of
from autotune.cost.compute import layer_times
from autotune.cost.constants import load_constants
from autotune.cost.plans import Column, Recompute, RowBuffers
from autotune.cost.sizes import LayerKind, sizes_of
from autotune.cost.step import step_times
from autotune.cost.traffic import expert_s
from autotune.cost.traits import SCALINGS
from tests.cases import data_beside
from tests.cost.plans import DEVICE

DATA = data_beside(__file__)

TINY: dict[str, Column] = {**DEVICE, **DATA["TINY"]}
LATENT: dict[str, Column] = DATA["LATENT"]
DEEPSEEK_V3: dict[str, Column] = {**DEVICE, **DATA["DEEPSEEK_V3"]}


def tiny(**changes: Column) -> Plans:
    return Plans(**{**TINY, **changes})


def deepseek(**changes: Column) -> Plans:
    return Plans(**{**DEEPSEEK_V3, **changes})


def kept_per_token(p: Plans) -> float:
    """Bytes that one layer keeps per token, of a model of one layer without its head."""
    head_bytes = 2.0 * p.activation_bytes * p.hidden / sizes_of(p).norm_split
    tokens = sizes_of(p).tokens
    return float(activations_of(p, sizes_of(p)).last_stage_bytes / tokens - head_bytes)


def test_a_rank_holds_what_megatron_builds() -> None:
    # Qwen3-MoE's layers: 2 norms, grouped heads, router, 8 experts; its two norms of heads (64)
    # are not counted.
    s = sizes_of(tiny())
    assert (
        s.layer_params + s.layer_expert_params == 64 * 32 * 4 * 3 + 128 + 64 * 8 + 8 * 3 * 64 * 32
    )
    halved = sizes_of(tiny(tp=2.0, dp=2.0, ep=4.0, expert_tp=1.0))
    assert halved.layer_expert_params == 2 * 3 * 64 * 32
    assert halved.layer_params == 64 * 32 * 4 * 3 / 2 + 128 + 64 * 8


@pytest.mark.parametrize(("tp", "split"), [(1.0, 1), (2.0, 2)])
def test_down_projections_of_latent_attention_are_whole_on_each_rank(tp, split) -> None:
    s = sizes_of(tiny(**LATENT, tp=tp))
    down = 64 * 24 + 24 + 64 * (16 + 8) + 16
    up = 24 * 4 * (16 + 8) + 16 * 4 * (16 + 16) + 4 * 16 * 64
    assert s.rank_attention_params == down + up / split
    straight = sizes_of(tiny(**{**LATENT, "latent_q_rank": 0.0}, tp=tp))
    assert straight.rank_attention_params == (
        64 * (16 + 8) + 16 + (64 * 4 * 24 + 16 * 4 * 32 + 64 * 64) / split
    )


def test_deepseek_v3_has_671_billion_parameters_and_further_tokens_add_14() -> None:
    s, more = sizes_of(deepseek()), sizes_of(deepseek(n_mtp_layers=1.0))
    whole = s.stage_params + s.stage_expert_params
    assert whole / 1e9 == pytest.approx(671.03, abs=0.02)
    # The released 14 billion count the embedding and the head once more, which are shared here.
    added = more.stage_params + more.stage_expert_params - whole
    assert (added + 2 * 129280 * 7168) / 1e9 == pytest.approx(13.4, abs=0.2)


def test_stages_have_the_layers_that_the_ends_leave() -> None:
    s = sizes_of(deepseek(pp=16.0, n_mtp_layers=1.0))
    assert (s.stage_layers, s.first.dense_layers, s.first.mixture_layers) == (4, 3, 1)
    assert (s.last.dense_layers, s.last.mixture_layers) == (0, 2)
    even = sizes_of(deepseek(n_layers=60.0, pp=2.0, n_mtp_layers=1.0))
    assert (even.fullest.dense_layers, even.first.mixture_layers) == (3, 27)
    assert even.last.mixture_layers == 31, "a layer for further tokens comes on top"
    given = sizes_of(
        deepseek(pp=4.0, most_stage_layers=17.0, first_stage_layers=14.0, last_stage_layers=13.0)
    )
    assert (given.first.dense_layers, given.first.mixture_layers) == (3, 11)
    assert (given.fullest.dense_layers, given.last.mixture_layers) == (0, 13)


def test_further_tokens_slow_the_last_stage_by_a_layer_and_a_head() -> None:
    plain = deepseek(pp=4.0, grad_accum=16.0, last_stage_layers=15.0, most_stage_layers=16.0)
    more = deepseek(
        pp=4.0, grad_accum=16.0, last_stage_layers=15.0, most_stage_layers=16.0, n_mtp_layers=1.0
    )
    s = sizes_of(plain)
    c = load_constants()
    added = step_times(more, sizes_of(more), c).step_s - step_times(plain, s, c).step_s
    layer = step_times(plain, s, c).step_s / (16 + 3) / 16
    assert added > 16 * layer


def test_activations_of_latent_attention_are_those_counted() -> None:
    # 201 kB a token, of which the up-projections are 131 kB; the rest here is the mixture's.
    p = deepseek(n_layers=1.0, n_dense_layers=0.0)
    up = deepseek(
        n_layers=1.0,
        n_dense_layers=0.0,
        recompute=float(Recompute.SELECTIVE),
        recomputes_scores=0.0,
        recomputes_latent=1.0,
    )
    assert kept_per_token(p) - kept_per_token(up) == 131072
    attention = 2 * (2 * 7168 + (2 * 1536 + 2 * 512 + 64) + 65536 + 16384)
    router = 10 * 256 + 30 * 8
    row = 2 * (7168 + 3 * 2048) + 4
    shared = 2 * 3 * 2048
    assert kept_per_token(p) == attention + 2 * 2 * 7168 + router + 8 * row + shared


@pytest.mark.cases("columns", "dropped_bytes")
def test_recomputed_modules_are_not_kept(columns: dict[str, float], dropped_bytes: int) -> None:
    base: dict[str, Column] = {"n_layers": 1.0, "shared_expert_hidden": 32.0}
    chosen = {"recompute": float(Recompute.SELECTIVE), "recomputes_scores": 0.0, **columns}
    assert kept_per_token(tiny(**base)) - kept_per_token(tiny(**base, **chosen)) == dropped_bytes


def test_recomputed_experts_leave_their_input_alone() -> None:
    base: dict[str, Column] = {"n_layers": 1.0, "shared_expert_hidden": 32.0}
    chosen = {"recompute": float(Recompute.SELECTIVE), "recomputes_experts": 1.0}
    heads = 2 * (2 * 4 * 32 + 2 * 2 * 32)
    assert kept_per_token(tiny(**base, **chosen)) == heads + 2 * 4 * 64


@pytest.mark.cases("model", "part", "ratio", "changes")
def test_the_second_beside_the_first(model, part, ratio, changes) -> None:
    """A part of time or memory of two candidates: its ratio, or the bounds of that."""
    columns = {n: np.array(v, float) if isinstance(v, list) else v for n, v in changes.items()}
    found = predict({"tiny": tiny, "deepseek": deepseek}[model](**columns))
    parts = vars(found.times) | vars(found.memory)
    first, second = np.broadcast_to(parts[part], 2)
    least, most = ratio if isinstance(ratio, list) else (0.999999 * ratio, 1.000001 * ratio)
    assert least < second / first < most


@pytest.mark.parametrize(
    ("ranks", "share", "groups", "likely"), [(8, 1, 1, 8), (8, 0.5, 8, 4), (4, 0.5, 8, 3)]
)
def test_the_dispatch_moves_each_row_and_flex_each_token_once(ranks, share, groups, likely):
    device: dict[str, Column] = {"nvlink_measured": 1.0, "nvlink_latency_s": 1e-12}
    p = deepseek(ep=8.0, dp=8.0, **device)
    rows_bytes = 4096 * 8 * 7168 * 2
    c = load_constants()
    assert expert_s(p, sizes_of(p), c) == pytest.approx(rows_bytes * 7 / 8 / 300e9, rel=1e-3)
    device |= {"flex_dispatch": 1.0, "routed_share": share, "expert_groups": groups}
    flex = deepseek(ep=float(ranks), dp=8.0, **device)
    distinct = (1 - 1 / ranks) * likely * (1 - (1 - 1 / likely) ** 8)
    assert expert_s(flex, sizes_of(flex), c) == pytest.approx(
        rows_bytes / 8 * distinct / 300e9, rel=1e-3
    )


def test_rows_of_dense_models_and_mixtures_do_not_change_each_other() -> None:
    rows = [{**TINY, "n_experts": 0.0}, {**DEEPSEEK_V3, "n_mtp_layers": 1.0, "pp": 4.0}]
    together = predict(Plans.of_rows(rows)).step_time_s  # type: ignore[arg-type]
    alone = [predict(Plans.of_rows([row])).step_time_s[0] for row in rows]  # type: ignore[list-item]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


def test_overlap_by_pairs_takes_one_chunk_more_of_a_pipeline() -> None:
    base: dict[str, Column] = {"n_layers": 64.0, "n_dense_layers": 0.0, "grad_accum": 64.0}
    alone = [deepseek(**base, overlap_experts=share) for share in (0.0, 1.0)]
    piped = [deepseek(**base, pp=4.0, vp=2.0, overlap_experts=share) for share in (0.0, 1.0)]
    first = [float(activations_of(p, sizes_of(p)).first_stage_bytes) for p in (*alone, *piped)]
    assert first[1] == first[0]
    assert first[3] / first[2] == pytest.approx((4 + 3 / 2 + 1 / 2) / (4 + 3 / 2))


def test_a_wide_experts_weights_move_like_a_dense_layers() -> None:
    """Rows come in pieces, and cost more where there are more of them; weights do not."""
    c = load_constants()
    few, many = (deepseek(micro_batch=size, ep=64.0, dp=64.0) for size in (1.0, 2.0))
    times = [layer_times(p, sizes_of(p), c, LayerKind.MIXTURE).matmul_s for p in (few, many)]
    assert 1.6 < float(times[1] / times[0]) < 2.0


def test_biases_of_experts_are_added_in_32_bits() -> None:
    """28 bytes an element forward, and half as many again backward; fused experts add none."""
    plain, biased = deepseek(), deepseek(expert_biases=1.0)
    fused = deepseek(expert_biases=1.0, fused_experts=1.0)
    s, c = sizes_of(plain), load_constants()

    def moved(p: Plans) -> float:
        return float(layer_times(p, s, c, LayerKind.MIXTURE).elementwise_s)

    added_bytes = 2.5 * 28.0 * s.routed_rows * plain.hidden
    rate = plain.memory_bytes_per_s * c.memory_share
    assert moved(biased) - moved(plain) == pytest.approx(float(added_bytes / rate))
    assert moved(fused) == pytest.approx(moved(deepseek(fused_experts=1.0)))


def test_each_recipe_of_fp8_casts_in_its_way() -> None:
    times = {
        name: predict(deepseek(matmul_flops=2.0 * DEVICE["half_flops"], **columns)).step_time_s[0]
        for name, columns in SCALINGS.items()
    }
    assert times["delayed"] < times["mxfp8"] < times["tensorwise"] < 1.2 * times["delayed"]


def test_an_allgather_sends_all_tokens_whatever_experts_take_each() -> None:
    c = load_constants()

    def way_s(**changes: Column) -> float:
        p = deepseek(ep=8.0, dp=8.0, **changes)
        return float(np.ravel(expert_s(p, sizes_of(p), c))[0])

    assert way_s(all_gather_dispatch=1.0) == way_s(all_gather_dispatch=1.0, experts_per_token=2.0)
    assert way_s(experts_per_token=2.0) < way_s(all_gather_dispatch=1.0)


def test_buffers_that_stay_take_memory() -> None:
    """HybridEP's hold the tokens of all ranks, there and back: 2 x 64 x 4096 x 7168 x 2."""
    memory = [
        predict(deepseek(ep=64.0, dp=64.0, rank_buffers=float(kind))).memory.context_bytes[0]
        for kind in RowBuffers
    ]
    none, deepep, hybridep = memory
    assert hybridep - none == pytest.approx(2 * 64 * 4096 * 7168 * 2)
    assert 0 < deepep - none < 1e9


def test_a_model_without_dense_layers_is_the_same_beside_one_that_has_them() -> None:
    wide = {"dense_ffn_hidden": 200_000.0, "recompute": 1.0, "recomputes_mlp": 1.0}
    both = predict(deepseek(**wide, n_dense_layers=np.array([0.0, 3.0])), load_constants())
    alone = predict(deepseek(**wide, n_dense_layers=np.array([0.0])), load_constants())
    assert both.peak_memory_bytes[0] == alone.peak_memory_bytes[0]
