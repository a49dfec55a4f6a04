"""Memory that the forward pass keeps for the backward pass, on the first and the last stage."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.cost.plans import Column, Plans, Recompute
from autotune.cost.sizes import LayerKind, Sizes


@dataclass(frozen=True, kw_only=True)
class Activations:
    """Bytes on one rank."""

    first_stage_bytes: Column
    """Kept at the peak by the stage that starts first, so holds the most micro-batches."""
    middle_stage_bytes: Column
    """Kept at the peak by a stage after the first; 0 where there is none between the ends."""
    last_stage_bytes: Column
    """Kept at the peak by the stage that holds the logits."""
    working_bytes: Column
    """Held by the layer that runs: what is computed again, and gradients on their way."""
    logits_bytes: Column
    host_bytes: Column
    """Kept on the host by the stage that starts first."""


def activations_of(p: Plans, s: Sizes) -> Activations:
    """Activations of the two stages that can be the worst.

    Under 1F1B the first stage holds min(pp, m) micro-batches of L/pp layers; interleaved schedules
    (pp + (pp - 1)/vp) of them, and their last stage (1 + (vp - 1) pp / vp). Source: Narayanan et
    al. (arXiv:2104.04473), section 2.2; Korthikanti et al. (arXiv:2205.05198), section 4.2.3.
    """
    interleaves = np.greater(p.vp, 1)
    in_flight = np.where(interleaves, p.pp + (p.pp - 1.0) / p.vp, p.pp)
    in_flight = np.minimum(in_flight, p.grad_accum)
    in_flight_last = np.where(
        interleaves, np.minimum(1.0 + (p.vp - 1.0) * p.pp / p.vp, p.grad_accum), 1.0
    )
    # A pipeline that pairs passes forward and backward takes one chunk more before it starts.
    in_flight = in_flight + p.overlap_experts * np.greater(p.pp, 1) / p.vp
    sent = p.keeps_stage_outputs * p.activation_bytes * np.greater(p.pp, 1)
    embedding_bytes = s.tokens * p.hidden * (p.has_dropout / s.norm_split + sent)
    first, fullest, last, working = _stages_bytes(p, s)
    on_device = 1.0 - p.offloaded_activations
    # The head's input, and where sequence parallel ranks gather it whole, that and its gradient.
    whole = p.keeps_gathered * (1.0 - 1.0 / s.norm_split)
    head_bytes = 2.0 * p.activation_bytes * s.tokens * p.hidden * (1.0 / s.norm_split + whole)
    chunk_tokens = np.where(np.greater(p.loss_chunk_tokens, 0), p.loss_chunk_tokens, np.inf)
    # The second stage holds a micro-batch less than the first.
    beside = np.where(np.greater(p.pp, 2), 1.0 - 1.0 / p.pp, 0.0)
    return Activations(
        first_stage_bytes=in_flight * (on_device * first + embedding_bytes),
        middle_stage_bytes=beside * in_flight * on_device * fullest,
        last_stage_bytes=in_flight_last * on_device * last + head_bytes,
        working_bytes=working,
        logits_bytes=np.minimum(s.tokens, chunk_tokens) * s.loss_vocab * p.logit_bytes,
        host_bytes=in_flight * p.offloaded_activations * first,
    )


def kept_bytes(p: Plans, s: Sizes) -> Column:
    """Kept by the layers of the fullest stage for one micro-batch, on the device and the host."""
    return _stages_bytes(p, s)[1]


def _stages_bytes(p: Plans, s: Sizes) -> tuple[Column, Column, Column, Column]:
    """Kept by the layers of the first, the fullest, the last stage; and a running layer's own."""
    found: list[tuple[Column, Column]] = []
    for kind, layers in (
        (LayerKind.DENSE, s.n_dense_layers),
        (LayerKind.MIXTURE, s.n_mixture_layers),
    ):
        if not np.any(layers):
            found.append((0.0, 0.0))
            continue
        changed_bytes = _changed_bytes(p, kind)
        everything = _layer_bytes(p, s, kind) + changed_bytes
        kept_bytes = _kept_bytes(p, s, kind, everything)
        gradients = 2.0 * p.hidden / s.norm_split
        inner = (1.0 + p.gated_mlp) * inner_width(p, s, kind)
        gradients = gradients + _tile_share(p, s) * (1.0 - p.mlp_grads_in_place) * inner
        if kind == LayerKind.MIXTURE:
            gradients = gradients + 2.0 * p.grouped_experts * _rows_per_token(s) * p.hidden
        gradients = p.activation_bytes * s.tokens * gradients
        again = np.greater(p.recompute, Recompute.NONE) * np.maximum(0.0, everything - kept_bytes)
        again = again + s.tokens * (_tile_bytes(p, s, kind) + _score_gradient_bytes(p))
        again = again + changed_bytes  # their gradients
        # A model may have no layer of this kind, beside others in the same columns that do.
        exists = np.greater(layers, 0)
        # What goes to the host is copied while the next layer runs, and comes back a layer ahead.
        on_way = 2.0 * p.offloaded_activations * kept_bytes
        found.append((exists * kept_bytes, exists * (gradients + again + on_way)))
    (dense, dense_working), (mixture, mixture_working) = found
    first, fullest, last = (
        stage.dense_layers * dense + stage.mixture_layers * mixture
        for stage in (s.first, s.fullest, s.last)
    )
    return first, fullest, last, np.maximum(mixture_working, dense_working)


def _changed_bytes(p: Plans, kind: LayerKind) -> Column:
    """Weights of a layer's experts as their adapters change them, which products keep.

    Source: huggingface/peft, src/peft/tuners/lora/layer.py (ParamWrapper); counted in tensors that
    Qwen3-MoE saves (transformers 5.23, peft 0.21).
    """
    if kind == LayerKind.DENSE or not np.any(p.adapts_experts):
        return 0.0
    elements = p.n_experts * (2.0 + p.gated_mlp) * p.hidden * p.ffn_hidden
    return p.adapts_experts * p.activation_bytes * elements


def inner_width(p: Plans, s: Sizes, kind: LayerKind) -> Column:
    """Width of a token's MLP on one rank: of all its experts together, and of the shared one."""
    if kind == LayerKind.DENSE:
        return s.dense_ffn_hidden / p.tp
    return routed_width(p, s) + p.shared_expert_hidden / p.tp


def routed_width(p: Plans, s: Sizes) -> Column:
    """Width of a token's experts on one rank: rows that come, each f / etp wide."""
    return _rows_per_token(s) * p.ffn_hidden / s.expert_tp


def _rows_per_token(s: Sizes) -> Column:
    return s.routed_rows / s.tokens


def _layer_bytes(p: Plans, s: Sizes, kind: LayerKind) -> Column:
    """All that one layer makes and its backward pass needs.

    Per token: the inputs of two norms and of the two blocks behind them (4 h, split only by
    Megatron's sequence parallelism), queries, keys, values and the attention's result (2a + 2k),
    the MLP's inner widths (2 f, gated 3 f), dropout masks of one byte (2 h), and without a fused
    kernel the scores: 2 bytes, with dropout 5, for every head and every other token (in 32 bit 4
    and 9). For GPT in 16 bit that is s b h (10 + 24/t + 5 a s/(h t)), and /t throughout with
    sequence parallelism. Source: Korthikanti et al. (arXiv:2205.05198), equations 1, 2 and 4.
    With RMSNorm, which models with gated MLPs have, norms that are not fused keep their input in
    32 bit. Source: transformers, models/llama/modeling_llama.py (LlamaRMSNorm).
    """
    both_bytes = 2.0 * (p.activation_bytes + p.product_input_bytes)
    norms = p.hidden * (both_bytes + 2.0 * p.has_dropout) / s.norm_split
    heads = p.activation_bytes * (2.0 * s.attention_width + 2.0 * s.kv_width) / p.tp
    heads = heads + _latent_bytes(p, s)
    inner = _keeps_inner(p) * _written_inner_bytes(p, s, kind)
    written_out = inner + (1.0 - p.fused_kernels) * p.gated_mlp * 8.0 * p.hidden / s.norm_split
    # Torch's own sequence parallelism keeps the whole inputs that it gathered; Megatron's gathers
    # them again.
    gathered = p.keeps_gathered * (1.0 - 1.0 / s.norm_split) * 2.0 * p.activation_bytes * p.hidden
    mlp = _mlp_bytes(p, s, kind)
    adapters = p.adapter_bytes * p.hidden / s.norm_split
    return s.tokens * (norms + heads + mlp + gathered + _score_bytes(p) + written_out + adapters)


def _keeps_inner(p: Plans) -> Column:
    """Whether an MLP keeps what is of its inner width: not in tiles.

    Each tile is computed again in the backward pass, so there is one at a time. Source: Bekman et
    al., ALST (arXiv:2506.13996), section 3.1; DeepSpeed,
    runtime/sequence_parallel/ulysses_sp.py (TiledMLP).
    """
    return np.equal(p.mlp_tile_tokens, 0) * 1.0


def _tile_bytes(p: Plans, s: Sizes, kind: LayerKind) -> Column:
    """What a tile holds, per token of the micro-batch."""
    if not np.any(p.mlp_tile_tokens):
        return 0.0
    held = _inner_bytes(p) * inner_width(p, s, kind) + _written_inner_bytes(p, s, kind)
    return (1.0 - _keeps_inner(p)) * _tile_share(p, s) * held


def _tile_share(p: Plans, s: Sizes) -> Column:
    """Share of the tokens that an MLP works on at a time."""
    share = np.minimum(1.0, p.mlp_tile_tokens / s.tokens)
    return np.where(np.greater(p.mlp_tile_tokens, 0), share, 1.0)


def _latent_bytes(p: Plans, s: Sizes) -> Column:
    """Down projections of a token before and after their norms, and its rotary key.

    2 q + 2 kv + r elements. Counted in saved tensors of NVIDIA/Megatron-LM,
    megatron/core/transformer/multi_latent_attention.py.
    """
    if not np.any(p.latent_kv_rank):
        return 0.0
    ranks = p.latent_q_rank + p.latent_kv_rank
    elements = (p.activation_bytes + p.product_input_bytes) * ranks
    return (elements + p.activation_bytes * p.latent_rope_dim) / s.norm_split


def _mlp_bytes(p: Plans, s: Sizes, kind: LayerKind) -> Column:
    """What a token's MLP keeps, or its router, its experts and the shared expert.

    2 f + f of the width f, unless it runs in tiles; an expert's row also its input (h) and its
    probability (4), and the router 8 E in logits and scores, 2 E in masks and 30 K in indices.
    Nothing is kept of the all-to-alls. Counted in saved tensors of megatron/core/transformer/moe
    (0.16.1).
    """
    if kind == LayerKind.DENSE:
        return _keeps_inner(p) * _inner_bytes(p) * s.dense_ffn_hidden / p.tp
    router_bytes = (10.0 * p.n_experts + 30.0 * s.experts_per_token) / s.norm_split
    return _experts_bytes(p, s) + _shared_bytes(p) + router_bytes


def _inner_bytes(p: Plans) -> Column:
    """Bytes of a column of an MLP: result of the first product, input of the second."""
    return p.activation_bytes * (1.0 + p.gated_mlp) + p.product_input_bytes


def _experts_bytes(p: Plans, s: Sizes) -> Column:
    inner = _keeps_inner(p) * _inner_bytes(p) * routed_width(p, s)
    return inner + _rows_per_token(s) * (p.product_input_bytes * p.hidden + 4.0)


def _shared_bytes(p: Plans) -> Column:
    return _keeps_inner(p) * _inner_bytes(p) * p.shared_expert_hidden / p.tp


def _expert_act_bytes(p: Plans, s: Sizes) -> Column:
    """Result of the experts' activation function, which is the second product's input."""
    return _keeps_inner(p) * p.product_input_bytes * routed_width(p, s)


def _up_projected_bytes(p: Plans, s: Sizes) -> Column:
    """Queries, keys and values of latent attention; without the attention's result."""
    result = np.where(np.greater(p.latent_kv_rank, 0), p.n_heads * p.latent_value_dim, 0.0)
    return p.activation_bytes * (2.0 * s.attention_width + 2.0 * s.kv_width - result) / p.tp


def _score_bytes(p: Plans) -> Column:
    """Scores of a token where they are written; with dropout its mask and result as well.

    Hugging Face's modules of gated models keep the softmax in 32 bits beside its 16-bit copy, but
    for GPT-OSS, whose experts have biases. Source: transformers, models/llama/modeling_llama.py
    and models/gpt_oss/modeling_gpt_oss.py (eager_attention_forward).
    """
    each_bytes = p.activation_bytes + p.has_dropout * (1.0 + p.activation_bytes)
    each_bytes = each_bytes + 4.0 * (1.0 - p.fused_kernels) * _is_cast(p)
    return each_bytes * _n_scores(p)


def _score_gradient_bytes(p: Plans) -> Column:
    """Gradients of softmax's result and input, for a token, in the layer that runs backward."""
    each_bytes = np.maximum(p.activation_bytes, 4.0 * _is_cast(p))
    return 2.0 * p.gated_mlp * (1.0 - p.fused_kernels) * each_bytes * _n_scores(p)


def _is_cast(p: Plans) -> Column:
    """1 where softmax is computed in 32 bits beside layers in 16, else 0."""
    return p.gated_mlp * (1.0 - p.expert_biases) * np.less(p.activation_bytes, 4)


def _n_scores(p: Plans) -> Column:
    return np.equal(p.flash_attention, 0) * p.n_heads * p.seq_len / p.tp


def _written_inner_bytes(p: Plans, s: Sizes, kind: LayerKind) -> Column:
    """What an MLP that is not fused has besides, per token.

    A gate's result before it meets the other half (f), and an activation function's own steps.
    Source: transformers, models/llama/modeling_llama.py (LlamaMLP) and activations.py.
    """
    copies = p.activation_bytes * (p.gated_mlp + p.activation_copies)
    return (1.0 - p.fused_kernels) * copies * inner_width(p, s, kind)


def _kept_bytes(p: Plans, s: Sizes, kind: LayerKind, everything: Column) -> Column:
    """Bytes of a layer that stay until the backward pass.

    Full recomputation keeps the layer's input, 2 s b h; selective all but the scores, 34 s b h of
    GPT. Source: Korthikanti et al. (arXiv:2205.05198), table 2. Torch's selective checkpoints keep
    the layer's input, the attention's result and those of some matrix products. Source:
    torchtitan, torchtitan/distributed/activation_checkpoint.py.
    """
    input_bytes = p.activation_bytes * s.tokens * p.hidden / s.norm_split
    every = 1.0 / p.recompute_every
    full = every * input_bytes + (1.0 - every) * everything
    products = (s.attention_width + 2.0 * s.kv_width) / p.tp
    products = products + _keeps_inner(p) * (1.0 + p.gated_mlp) * inner_width(p, s, kind)
    products = products + 2.0 * p.hidden / s.norm_split
    operators = input_bytes + p.activation_bytes * s.tokens * (
        s.attention_width / p.tp + p.kept_products * products
    )
    dropped = p.recomputes_scores * _score_bytes(p)
    # Results of a token's two norms, which the products behind them keep.
    norm_bytes = 2.0 * p.product_input_bytes * p.hidden / s.norm_split
    dropped = dropped + p.recomputes_norms * norm_bytes
    dropped = dropped + p.recomputes_latent * _up_projected_bytes(p, s)
    if kind == LayerKind.DENSE:
        dropped = dropped + p.recomputes_mlp * _mlp_bytes(p, s, kind)
    else:
        part = p.recomputes_shared * _shared_bytes(p)
        part = part + p.recomputes_expert_act * _expert_act_bytes(p, s)
        dropped = dropped + np.where(p.recomputes_experts, _mlp_bytes(p, s, kind), part)
    kinds = (Recompute.FULL, Recompute.SELECTIVE, Recompute.OPERATORS)
    layer_bytes: NDArray[np.float64] = np.select(
        [np.equal(p.recompute, recompute) for recompute in kinds],
        [full, everything - s.tokens * dropped, operators],
        everything,
    )
    return layer_bytes
