"""Sizes that several parts of the model share: parameters of a rank, tokens of a micro-batch."""

from dataclasses import dataclass

import numpy as np

from autotune.cost.plans import Column, Plans


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Derived from `Plans`, per candidate. Parameters are counts, of one rank where it says so."""

    attention_width: Column
    """Width of all heads together."""
    kv_width: Column
    """Width of all key heads together; the values are as wide."""
    tokens: Column
    """Tokens of one micro-batch and rank, before tensor parallel ranks split the sequence."""
    mlp_matrices: Column
    attention_params: Column
    """Attention of one layer, whole."""
    mlp_params: Column
    """One MLP or one expert, whole."""
    expert_share: Column
    """Experts that one rank holds; 1 for a dense model."""
    experts_per_token: Column
    """1 for a dense model."""
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
    """Layers of the fullest pipeline stage."""
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
    Gated models are counted without biases, others with; norms are counted in both.
    """
    attention_width = p.n_heads * p.head_dim
    kv_width = p.n_kv_heads * p.head_dim
    split = p.tp
    mlp_matrices = 2.0 + p.gated_mlp
    attention_params = p.hidden * (2.0 * attention_width + 2.0 * kv_width)
    mlp_params = mlp_matrices * p.hidden * p.ffn_hidden
    is_mixture = np.greater(p.n_experts, 1) * 1.0
    n_experts = np.maximum(p.n_experts, 1.0)
    expert_share = n_experts / p.ep
    experts_per_token = np.where(is_mixture > 0, np.maximum(p.experts_per_token, 1.0), 1.0)
    biases = (1.0 - p.gated_mlp) * (
        (attention_width + 2.0 * kv_width + p.ffn_hidden) / split + 4.0 * p.hidden
    )
    shared = mlp_matrices * p.hidden * p.shared_expert_hidden
    router = is_mixture * p.hidden * n_experts
    dense_mlp = (1.0 - is_mixture) * mlp_params
    sequence_ranks = p.cp * p.ulysses
    data_ranks = p.dp * sequence_ranks
    shard_ranks = np.where(np.greater(p.shard_group, 0), p.shard_group, data_ranks)
    # Experts that fewer tensor parallel ranks share have more replicas, and the reverse.
    own_tp = np.where(np.greater(p.expert_tp, 0), p.expert_tp, p.tp)
    expert_shard_ranks = np.maximum(1.0, shard_ranks * p.tp / (p.ep * own_tp))
    vocab_params = p.vocab * p.hidden / split
    held_vocab_params = vocab_params * np.where(np.greater(p.pp, 1), 1.0, 2.0 - p.tied_embeddings)
    dense = (attention_params + dense_mlp + shared) / split
    layer_params = dense + router + biases + 2.0 * p.hidden
    layer_expert_params = is_mixture * expert_share * mlp_params / own_tp
    uneven = np.greater(p.most_stage_layers, 0)
    stage_layers = np.where(uneven, p.most_stage_layers, np.ceil(p.n_layers / p.pp))
    stage_params = stage_layers * layer_params + held_vocab_params
    stage_expert_params = stage_layers * layer_expert_params
    return Sizes(
        attention_width=attention_width,
        kv_width=kv_width,
        tokens=p.micro_batch * p.seq_len / sequence_ranks,
        mlp_matrices=mlp_matrices,
        attention_params=attention_params,
        mlp_params=mlp_params,
        expert_share=expert_share,
        experts_per_token=experts_per_token,
        layer_params=layer_params,
        layer_expert_params=layer_expert_params,
        vocab_params=vocab_params,
        held_vocab_params=held_vocab_params,
        loss_vocab=p.vocab / np.where(p.whole_logits, 1.0, p.tp),
        stage_layers=stage_layers,
        shard_ranks=shard_ranks,
        expert_shard_ranks=expert_shard_ranks,
        stage_params=stage_params,
        stage_expert_params=stage_expert_params,
        updated_params=np.where(
            np.greater_equal(p.zero_stage, 1),
            stage_params / shard_ranks + stage_expert_params / expert_shard_ranks,
            stage_params + stage_expert_params,
        ),
        norm_split=np.where(p.sequence_parallel, p.tp, 1.0),
        world=data_ranks * p.tp * p.pp,
    )
