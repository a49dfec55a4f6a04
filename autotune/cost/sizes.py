"""Sizes that several parts of the model share: parameters of a rank, tokens of a micro-batch."""

from dataclasses import dataclass
from enum import Enum

import numpy as np

from autotune.cost.plans import Column, Plans


class LayerKind(Enum):
    """What a layer has behind its attention."""

    DENSE = "dense"
    """One MLP."""
    MIXTURE = "mixture"
    """A router and experts."""


@dataclass(frozen=True, kw_only=True)
class StageLoad:
    """What one pipeline stage holds, on one rank."""

    dense_layers: Column
    """Layers with one MLP; all layers of a dense model."""
    mixture_layers: Column
    """Layers with experts, those that predict further tokens among them."""
    params: Column
    """Parameters without those of the experts."""
    expert_params: Column


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Derived from `Plans`, per candidate. Parameters are counts, of one rank where it says so."""

    attention_width: Column
    """Width of all heads together: the mean of the queries' and the result's, which differ in
    latent attention."""
    kv_width: Column
    """Width of all key heads together: the mean of the keys' and the values'."""
    tokens: Column
    """Tokens of one micro-batch and rank, before tensor parallel ranks split the sequence."""
    mlp_matrices: Column
    latent_params: Column
    """Down projections of latent attention in one layer: each tensor parallel rank has them
    whole."""
    rank_attention_params: Column
    """Attention of one layer on one rank."""
    dense_ffn_hidden: Column
    """Width of the MLP in layers without experts."""
    mlp_params: Column
    """One MLP or one expert, whole."""
    expert_share: Column
    """Experts that one rank holds; 1 for a dense model."""
    expert_tp: Column
    """Tensor parallel degree of the experts."""
    experts_per_token: Column
    """1 for a dense model."""
    routed_rows: Column
    """Rows that come to the experts of the rank that gets most, for one micro-batch; 0 for a dense
    model."""
    n_dense_layers: Column
    n_mixture_layers: Column
    layer_params: Column
    """One layer on one rank, without its experts' part in a mixture."""
    layer_expert_params: Column
    """Experts of one layer on one rank; 0 for a dense model."""
    vocab_params: Column
    """One embedding, on one rank."""
    held_vocab_params: Column
    """Embedding and head, as far as one rank holds them: without a pipeline both."""
    loss_vocab: Column
    """Columns of the logits that one rank computes the loss of."""
    stage_layers: Column
    """Layers of the fullest pipeline stage between the ends; of two the fuller."""
    last_stage_layers: Column
    """Layers before the head, without those that predict further tokens."""
    first: StageLoad
    fullest: StageLoad
    """That with the most layers of those between the ends, and an embedding."""
    last: StageLoad
    shard_ranks: Column
    """Ranks over which the states of one parameter can be split."""
    expert_shard_ranks: Column
    stage_params: Column
    """The fullest stage on one rank, without its experts' part in a mixture."""
    stage_expert_params: Column
    updated_params: Column
    """Parameters of that stage whose optimizer states one rank holds."""
    norm_split: Column
    """Ranks that norms and residuals are split over: Megatron's sequence parallelism does so."""
    world: Column


def sizes_of(p: Plans) -> Sizes:
    """Count parameters and tokens.

    A layer has h (a + 2k) + a h weights in attention, with a and k the widths of the query and
    key heads, and 2 h f or 3 h f in an MLP of width f, gated ones the latter. Source: Korthikanti
    et al. (arXiv:2205.05198), section 3 and figure 2; Shazeer (arXiv:2002.05202) for the gate.
    Gated models are counted without biases, others with; norms are counted in both. Source for
    latent attention and MTP: DeepSeek-V3 (arXiv:2412.19437), sections 2.1.1 and 2.2; NVIDIA/
    Megatron-LM, megatron/core/transformer/multi_latent_attention.py, for what ranks share.
    """
    is_latent = np.greater(p.latent_kv_rank, 0) * 1.0
    latent_dim = (p.latent_nope_dim + p.latent_rope_dim + p.latent_value_dim) / 2.0
    attention_width = p.n_heads * np.where(is_latent, latent_dim, p.head_dim)
    kv_width = np.where(is_latent, attention_width, p.n_kv_heads * p.head_dim)
    split = p.tp
    mlp_matrices = 2.0 + p.gated_mlp
    latent_params, projections = _attention_params(p, attention_width, kv_width, is_latent)
    mlp_params = mlp_matrices * p.hidden * p.ffn_hidden
    is_mixture = np.greater(p.n_experts, 1) * 1.0
    n_experts = np.maximum(p.n_experts, 1.0)
    expert_share = n_experts / p.ep
    experts_per_token = np.where(is_mixture > 0, np.maximum(p.experts_per_token, 1.0), 1.0)
    dense_ffn_hidden = np.where(
        np.greater(p.dense_ffn_hidden, 0), p.dense_ffn_hidden, p.ffn_hidden
    )
    dense_ffn_hidden = np.where(is_mixture > 0, dense_ffn_hidden, p.ffn_hidden)
    biases = (1.0 - p.gated_mlp) * (
        (attention_width + 2.0 * kv_width + p.ffn_hidden) / split + 4.0 * p.hidden
    )
    sequence_ranks = p.cp * p.ulysses
    data_ranks = p.dp * sequence_ranks
    shard_ranks = np.where(np.greater(p.shard_group, 0), p.shard_group, data_ranks)
    # Experts that fewer tensor parallel ranks share have more replicas, and the reverse.
    expert_tp = np.where(np.greater(p.expert_tp, 0), p.expert_tp, p.tp)
    expert_shard_ranks = np.maximum(1.0, shard_ranks * p.tp / (p.ep * expert_tp))
    vocab_params = p.vocab * p.hidden / split
    held_vocab_params = vocab_params * np.where(np.greater(p.pp, 1), 1.0, 2.0 - p.tied_embeddings)
    rank_attention = latent_params + projections / split
    common = rank_attention + biases + 2.0 * p.hidden
    shared = mlp_matrices * p.hidden * p.shared_expert_hidden / split
    mixture_layer = common + shared + p.hidden * n_experts
    dense_layer = common + mlp_matrices * p.hidden * dense_ffn_hidden / split
    layer_params = np.where(is_mixture > 0, mixture_layer, dense_layer)
    layer_expert_params = is_mixture * expert_share * mlp_params / expert_tp
    n_dense = np.where(is_mixture > 0, np.minimum(p.n_dense_layers, p.n_layers), p.n_layers)
    # One layer that predicts further tokens: itself, and the product that joins its two inputs.
    mtp = p.n_mtp_layers * (layer_params + 2.0 * p.hidden * p.hidden / split + 3.0 * p.hidden)
    mtp_experts = p.n_mtp_layers * layer_expert_params
    is_last_full = np.equal(p.pp, 1)

    def stage(layers: Column, dense_layers: Column, ends: Column, has_mtp: Column) -> StageLoad:
        dense = np.where(is_mixture > 0, dense_layers, layers)
        mixtures = layers - dense
        return StageLoad(
            dense_layers=dense,
            mixture_layers=mixtures + has_mtp * p.n_mtp_layers,
            params=dense * dense_layer + mixtures * layer_params + ends + has_mtp * mtp,
            expert_params=mixtures * layer_expert_params + has_mtp * mtp_experts,
        )

    given = np.greater(p.most_stage_layers, 0)
    # Layers that predict further tokens come on top of an even split, and count in another.
    further = p.n_mtp_layers * np.greater(np.mod(p.n_layers, p.pp), 0)
    most = np.minimum(np.ceil((p.n_layers + further) / p.pp), p.n_layers)
    stage_layers = np.where(given, p.most_stage_layers, most)
    # Dense layers are the first ones: the fullest stage has them if it is the first, as of two.
    before = np.where(np.equal(p.pp, 2), 0.0, p.n_layers - stage_layers)
    stage_dense = np.clip(n_dense - before, 0.0, stage_layers)
    fullest = stage(stage_layers, stage_dense, held_vocab_params, is_last_full)
    first = last = fullest
    last_layers = np.floor(p.n_layers / p.pp)
    if any(np.any(n) for n in (p.n_mtp_layers, p.n_dense_layers, p.most_stage_layers)):
        first_layers = np.where(given, p.first_stage_layers, stage_layers)
        first = stage(
            first_layers, np.minimum(n_dense, first_layers), held_vocab_params, is_last_full
        )
        has_mtp = np.greater(p.n_mtp_layers, 0)
        left = np.maximum(0.0, p.n_layers - (p.pp - 1.0) * stage_layers)
        last_layers, held_layers = (
            np.where(given, p.last_stage_layers, np.where(has_mtp, left, layers))
            for layers in (last_layers, stage_layers)
        )
        # The embedding is needed there too, for the inputs of further tokens.
        again = np.where(np.greater(p.pp, 1), has_mtp * vocab_params, 0.0)
        last = stage(
            held_layers,
            np.maximum(0.0, n_dense - (p.n_layers - held_layers)),
            held_vocab_params + again,
            1.0,
        )
    rows = p.micro_batch * p.seq_len / sequence_ranks / p.tp * experts_per_token * expert_tp
    return Sizes(
        attention_width=attention_width,
        kv_width=kv_width,
        tokens=p.micro_batch * p.seq_len / sequence_ranks,
        mlp_matrices=mlp_matrices,
        latent_params=latent_params,
        rank_attention_params=rank_attention,
        dense_ffn_hidden=dense_ffn_hidden,
        mlp_params=mlp_params,
        expert_share=expert_share,
        expert_tp=expert_tp,
        experts_per_token=experts_per_token,
        routed_rows=is_mixture * rows * p.expert_imbalance,
        n_dense_layers=n_dense,
        n_mixture_layers=p.n_layers - n_dense + p.n_mtp_layers,
        layer_params=layer_params,
        layer_expert_params=layer_expert_params,
        vocab_params=vocab_params,
        held_vocab_params=held_vocab_params,
        loss_vocab=p.vocab / np.where(p.whole_logits, 1.0, p.tp),
        stage_layers=stage_layers,
        last_stage_layers=last_layers,
        first=first,
        fullest=fullest,
        last=last,
        shard_ranks=shard_ranks,
        expert_shard_ranks=expert_shard_ranks,
        stage_params=fullest.params,
        stage_expert_params=fullest.expert_params,
        updated_params=np.where(
            np.greater_equal(p.zero_stage, 1),
            fullest.params / shard_ranks + fullest.expert_params / expert_shard_ranks,
            fullest.params + fullest.expert_params,
        ),
        norm_split=np.where(p.sequence_parallel, p.tp, 1.0),
        world=data_ranks * p.tp * p.pp,
    )


def _attention_params(
    p: Plans, attention_width: Column, kv_width: Column, is_latent: Column
) -> tuple[Column, Column]:
    """Parameters that tensor parallel ranks hold whole, and those that they share; of a layer.

    Latent: h q + q + h (kv + r) + kv, and q A (n + r) + kv A (n + v) + A v h; straight queries
    take h A (n + r) in place of those by rank q.
    """
    projections = p.hidden * (2.0 * attention_width + 2.0 * kv_width)
    if not np.any(is_latent):
        return 0.0, projections
    queries = p.n_heads * (p.latent_nope_dim + p.latent_rope_dim)
    values = p.n_heads * p.latent_value_dim
    down = p.latent_q_rank * (p.hidden + 1.0)
    down = down + p.hidden * (p.latent_kv_rank + p.latent_rope_dim) + p.latent_kv_rank
    from_width = np.where(np.greater(p.latent_q_rank, 0), p.latent_q_rank, p.hidden)
    up = from_width * queries + values * p.hidden
    up = up + p.latent_kv_rank * (p.n_heads * p.latent_nope_dim + values)
    return is_latent * down, np.where(is_latent, up, projections)
