"""Memory that the forward pass keeps for the backward pass, on the first and the last stage."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.cost.plans import Column, Plans, Recompute
from autotune.cost.sizes import Sizes


@dataclass(frozen=True, kw_only=True)
class Activations:
    """Bytes on one rank."""

    first_stage_bytes: Column
    """Kept at the peak by the stage that starts first, so holds the most micro-batches."""
    last_stage_bytes: Column
    """Kept at the peak by the stage that holds the logits."""
    working_bytes: Column
    """Held by the layer that runs: what is computed again, and gradients on their way."""
    logits_bytes: Column


def activations_of(p: Plans, s: Sizes) -> Activations:
    """Activations of the two stages that can be the worst.

    Under 1F1B the first stage holds min(pp, m) micro-batches of L/pp layers; interleaved schedules
    (pp + (pp - 1)/vp) of them, and their last stage (1 + (vp - 1) pp / vp). Source: Narayanan et
    al. (arXiv:2104.04473), section 2.2; Korthikanti et al. (arXiv:2205.05198), section 4.2.3.
    """
    everything = _layer_bytes(p, s)
    kept = _kept_bytes(p, s, everything) * (1.0 - p.offloaded_activations)
    interleaves = np.greater(p.vp, 1)
    in_flight = np.where(interleaves, p.pp + (p.pp - 1.0) / p.vp, p.pp)
    in_flight = np.minimum(in_flight, p.grad_accum)
    in_flight_last = np.where(
        interleaves, np.minimum(1.0 + (p.vp - 1.0) * p.pp / p.vp, p.grad_accum), 1.0
    )
    sent = p.keeps_stage_outputs * p.activation_bytes * np.greater(p.pp, 1)
    embedding_bytes = s.tokens * p.hidden * (p.has_dropout / s.norm_split + sent)
    stage_bytes = s.stage_layers * kept
    gradients = (
        s.tokens
        * p.activation_bytes
        * (2.0 * p.hidden / s.norm_split + (1.0 + p.gated_mlp) * p.ffn_hidden / p.tp)
    )
    is_recomputed = np.greater(p.recompute, Recompute.NONE)
    # The head's input, and where sequence parallel ranks gather it whole, that and its gradient.
    whole = p.keeps_gathered * (1.0 - 1.0 / s.norm_split)
    head_bytes = 2.0 * p.activation_bytes * s.tokens * p.hidden * (1.0 / s.norm_split + whole)
    chunk_tokens = np.where(np.greater(p.loss_chunk_tokens, 0), p.loss_chunk_tokens, np.inf)
    return Activations(
        first_stage_bytes=in_flight * (stage_bytes + embedding_bytes),
        last_stage_bytes=in_flight_last * stage_bytes + head_bytes,
        working_bytes=gradients + is_recomputed * np.maximum(0.0, everything - kept),
        logits_bytes=np.minimum(s.tokens, chunk_tokens) * s.loss_vocab * p.logit_bytes,
    )


def _layer_bytes(p: Plans, s: Sizes) -> Column:
    """All that one layer makes and its backward pass needs.

    Per token: the inputs of two norms and of the two blocks behind them (4 h, split only by
    Megatron's sequence parallelism), queries, keys, values and the attention's result (2a + 2k),
    the MLP's inner widths (2 f, gated 3 f), dropout masks of one byte (2 h), and without a fused
    kernel the scores: 2 bytes, with dropout 5, for every head and every other token (in 32 bit 4
    and 9). For GPT in 16 bit that is s b h (10 + 24/t + 5 a s/(h t)), and /t throughout with
    sequence parallelism. Source: Korthikanti et al. (arXiv:2205.05198), equations 1, 2 and 4.
    """
    both_bytes = 2.0 * (p.activation_bytes + p.product_input_bytes)
    norms = p.hidden * (both_bytes + 2.0 * p.has_dropout) / s.norm_split
    heads = p.activation_bytes * (2.0 * s.attention_width + 2.0 * s.kv_width) / p.tp
    written_out = _written_out_bytes(p, s)
    # Torch's own sequence parallelism keeps the whole inputs that it gathered; Megatron's gathers
    # them again.
    gathered = p.keeps_gathered * (1.0 - 1.0 / s.norm_split) * 2.0 * p.activation_bytes * p.hidden
    return s.tokens * (norms + heads + _mlp_bytes(p) + gathered + _score_bytes(p) + written_out)


def _mlp_bytes(p: Plans) -> Column:
    """The MLP's inner widths of a token; a mixture also keeps it as it was sent to its experts."""
    is_mixture = np.greater(p.n_experts, 1)
    per_token = np.where(is_mixture, np.maximum(p.experts_per_token, 1.0), 1.0)
    inner_bytes = p.activation_bytes * (1.0 + p.gated_mlp) + p.product_input_bytes
    inner = inner_bytes * per_token * p.ffn_hidden / p.tp
    return inner + is_mixture * p.activation_bytes * per_token * p.hidden


def _norm_result_bytes(p: Plans, s: Sizes) -> Column:
    """Results of a token's two norms, which the products behind them keep."""
    return 2.0 * p.product_input_bytes * p.hidden / s.norm_split


def _score_bytes(p: Plans) -> Column:
    """Scores of a token where they are written; with dropout its mask and result as well."""
    is_written = np.equal(p.flash_attention, 0)
    each_bytes = p.activation_bytes + p.has_dropout * (1.0 + p.activation_bytes)
    return is_written * each_bytes * p.n_heads * p.seq_len / p.tp


def _written_out_bytes(p: Plans, s: Sizes) -> Column:
    """Bytes that modules that are not fused keep besides, per token of a layer.

    A gate's result before it meets the other half (f), an activation function's own steps, and
    with RMSNorm, which models with gated MLPs have, the input of both norms in 32 bit. Source:
    transformers, models/llama/modeling_llama.py (LlamaMLP, LlamaRMSNorm) and activations.py.
    """
    copies = p.activation_bytes * (p.gated_mlp + p.activation_copies)
    inner = copies * s.experts_per_token * p.ffn_hidden / p.tp
    return (1.0 - p.fused_kernels) * (inner + p.gated_mlp * 2.0 * 4.0 * p.hidden / s.norm_split)


def _kept_bytes(p: Plans, s: Sizes, everything: Column) -> Column:
    """Bytes of a layer that stay until the backward pass.

    Full recomputation keeps the layer's input, 2 s b h; selective all but the scores, 34 s b h of
    GPT. Source: Korthikanti et al. (arXiv:2205.05198), table 2. Torch's selective checkpoints keep
    the layer's input, the attention's result and every other matrix product's. Source: torchtitan,
    torchtitan/distributed/activation_checkpoint.py.
    """
    input_bytes = p.activation_bytes * s.tokens * p.hidden / s.norm_split
    every = 1.0 / p.recompute_every
    full = every * input_bytes + (1.0 - every) * everything
    products = (
        s.attention_width + 2.0 * s.kv_width + (1.0 + p.gated_mlp) * p.ffn_hidden
    ) / p.tp + 2.0 * p.hidden / s.norm_split
    operators = input_bytes + p.activation_bytes * s.tokens * (
        s.attention_width / p.tp + 0.5 * products
    )
    dropped = p.recomputes_scores * s.tokens * _score_bytes(p)
    dropped = dropped + p.recomputes_norms * s.tokens * _norm_result_bytes(p, s)
    takes_mlp = np.maximum(p.recomputes_mlp, p.recomputes_experts)
    dropped = dropped + takes_mlp * s.tokens * _mlp_bytes(p)
    kinds = (Recompute.FULL, Recompute.SELECTIVE, Recompute.OPERATORS)
    kept: NDArray[np.float64] = np.select(
        [np.equal(p.recompute, kind) for kind in kinds],
        [full, everything - dropped, operators],
        everything,
    )
    return kept
