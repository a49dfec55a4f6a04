"""How long a rank communicates, by kind, before anything overlaps."""

from dataclasses import dataclass

import numpy as np

from autotune.cost import collectives
from autotune.cost.constants import Constants
from autotune.cost.plans import Column, Plans, Recompute, Tier
from autotune.cost.sizes import Sizes


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Seconds of one rank."""

    tensor_layer_s: Column
    """Tensor parallelism, per layer and micro-batch, forward, backward and recomputed."""
    tensor_head_s: Column
    """Communication of the logits, per micro-batch."""
    expert_layer_s: Column
    context_layer_s: Column
    """Ring attention's keys and values, or Ulysses' exchanges."""
    pipeline_send_s: Column
    """Per micro-batch, what a stage waits for its neighbours' sends, both ways."""
    gather_micro_batch_s: Column
    """Parameters of stage 3, per micro-batch, forward and backward."""
    reduce_s: Column
    """Gradients: per micro-batch or per step, as `reduces_every_micro_batch` says."""
    gather_step_s: Column
    """Updated parameters of stages 1 and 2, per step."""
    offload_micro_batch_s: Column
    """Parameters and activations over the host's link."""
    offload_step_s: Column
    """Gradients down and updated parameters up."""


def traffic_of(p: Plans, s: Sizes, c: Constants) -> Traffic:
    """Communication of one rank.

    Rank order is tensor, context, data, pipeline, as Megatron lays them out (megatron/core/
    parallel_state.py): tensor parallel ranks are neighbours, pipeline ranks are farthest apart.
    """
    data_ranks = p.dp * p.cp * p.ulysses
    states = collectives.group(p, c, ranks=data_ranks, stride=p.tp)
    shard = collectives.group(p, c, ranks=s.shard_ranks, stride=p.tp)
    backward_ranks = np.where(np.greater(p.gather_group, 0), p.gather_group, s.shard_ranks)
    backward_shard = collectives.group(p, c, ranks=backward_ranks, stride=p.tp)
    layers = s.stage_layers
    # An expert's states go round the ranks that hold the same expert, which are fewer by ep: as
    # much a rank, but for the share (n - 1)/n that each group's size makes.
    alone = np.maximum(0.0, 1.0 - p.ep / data_ranks) / np.maximum(1.0 - 1.0 / data_ranks, 1e-9)
    whole = s.stage_params + s.stage_expert_params * np.where(np.greater(p.ep, 1), alone, 1.0)
    is_3 = np.greater_equal(p.zero_stage, 3)
    is_sharded = np.greater_equal(p.zero_stage, 1)
    grads_bytes = whole * p.reduce_bytes * p.trained_share
    bucket_bytes = p.reduce_bucket_elements * p.reduce_bytes
    calls = np.where(is_3, layers, np.ceil(grads_bytes / bucket_bytes))
    scatters = is_sharded * (1.0 - p.reduces_whole)
    reduced = np.where(
        scatters,
        collectives.gather_s(states, grads_bytes / calls, calls),
        collectives.all_reduce_s(states, grads_bytes / calls, calls),
    )
    gathered_bytes = whole * p.gather_bytes
    step_calls = np.ceil(whole / p.gather_bucket_elements)
    gather_step = collectives.gather_s(
        shard, gathered_bytes * p.trained_share / step_calls, step_calls
    )
    fetches = layers * p.gather_calls_per_layer
    fetched_bytes = (gathered_bytes - _whole_elements(p, s) * p.gather_bytes) / fetches
    gather_micro = collectives.gather_s(shard, fetched_bytes, fetches)
    gather_micro = gather_micro + collectives.gather_s(backward_shard, fetched_bytes, fetches)
    return Traffic(
        tensor_layer_s=_tensor_s(p, s, c),
        tensor_head_s=_head_s(p, s, c),
        expert_layer_s=_expert_s(p, s, c),
        context_layer_s=_context_s(p, s, c),
        pipeline_send_s=_pipeline_s(p, s, c),
        gather_micro_batch_s=is_3 * gather_micro / p.gather_speed,
        reduce_s=np.where(is_3, reduced / p.gather_speed, reduced),
        gather_step_s=is_sharded * (1 - is_3) * gather_step,
        offload_micro_batch_s=_offload_micro_batch_s(p, s, c),
        offload_step_s=_offload_step_s(p, s, c),
    )


def _whole_elements(p: Plans, s: Sizes) -> Column:
    """Parameters that stage 3 does not split, since their tensors are small.

    Source: DeepSpeed, runtime/zero/parameter_offload.py, mark_persistent_parameters. Norms and
    biases, which are small anyhow, are left out.
    """
    tensors = (
        (2.0, p.hidden * s.attention_width),
        (2.0, p.hidden * s.kv_width),
        (s.mlp_matrices * np.equal(s.experts_per_token, 1), p.hidden * p.ffn_hidden),
    )
    layer = sum(n * size * np.less_equal(size, p.persistent_elements) for n, size in tensors)
    table = p.vocab * p.hidden
    vocab = s.held_vocab_params * np.less_equal(table, p.persistent_elements)
    return s.stage_layers * layer / p.tp + vocab


def _tensor_s(p: Plans, s: Sizes, c: Constants) -> Column:
    """Two all-reduces forward and two backward of the layer's output.

    With sequence parallelism each is a reduce-scatter and an all-gather of the same volume, and
    the backward pass gathers the two inputs once more. Source: Shoeybi et al., Megatron-LM
    (arXiv:1909.08053), section 3; Korthikanti et al. (arXiv:2205.05198), section 4.2.2. What is
    recomputed is communicated again.
    """
    g = collectives.group(p, c, ranks=p.tp, stride=1.0)
    size_bytes = s.tokens * p.hidden * p.activation_bytes
    again = 2.0 * np.equal(p.recompute, Recompute.FULL) / p.recompute_every
    reduced = collectives.all_reduce_s(g, size_bytes, 4.0 + again)
    extra = p.sequence_parallel * collectives.gather_s(g, size_bytes, 2.0)
    return (reduced + extra) * (1.0 - p.overlap_tp)


def _head_s(p: Plans, s: Sizes, c: Constants) -> Column:
    """Logits that are gathered for the loss; backward each rank takes its part of the gradient."""
    g = collectives.group(p, c, ranks=p.tp, stride=1.0)
    again = 1.0 + np.greater(p.loss_chunk_tokens, 0)
    size_bytes = p.whole_logits * s.tokens * p.vocab * p.activation_bytes
    return np.greater(p.whole_logits, 0) * collectives.gather_s(g, size_bytes, again)


def _expert_s(p: Plans, s: Sizes, c: Constants) -> Column:
    """Tokens to their experts and back, forward and backward: four all-to-alls.

    Source: Lepikhin et al., GShard (arXiv:2006.16668).
    """
    g = collectives.group(p, c, ranks=p.ep, stride=p.tp)
    size_bytes = s.tokens * s.experts_per_token * p.hidden * p.activation_bytes / s.norm_split
    again = 2.0 * np.equal(p.recompute, Recompute.FULL) / p.recompute_every
    return collectives.exchange_s(g, size_bytes, 4.0 + again)


def _context_s(p: Plans, s: Sizes, c: Constants) -> Column:
    """Ring attention passes keys and values round; Ulysses exchanges heads for tokens.

    The ring sends the keys and values of the other cp - 1 ranks forward, and again with their
    gradients backward. Source: Liu et al., Ring Attention (arXiv:2310.01889), section 3. Ulysses
    exchanges queries, keys, values and the result. Source: Jacobs et al., DeepSpeed-Ulysses
    (arXiv:2309.14509), section 3.
    """
    ring = collectives.group(p, c, ranks=p.cp, stride=p.tp)
    kv_bytes = s.tokens * 2.0 * s.kv_width / p.tp * p.activation_bytes
    passed = collectives.gather_s(ring, kv_bytes * p.cp, 3.0)
    sp = collectives.group(p, c, ranks=p.ulysses, stride=p.tp)
    again = np.equal(p.recompute, Recompute.FULL) / p.recompute_every
    widths = 2.0 * s.attention_width + 2.0 * s.kv_width
    exchanged_bytes = s.tokens * widths * p.activation_bytes / (4.0 * p.tp)
    exchanged = collectives.exchange_s(sp, exchanged_bytes, 8.0 + 4.0 * again)
    return passed + exchanged


def _pipeline_s(p: Plans, s: Sizes, c: Constants) -> Column:
    """Activations forward and gradients backward, once for every chunk of the rank's layers.

    Source: Narayanan et al. (arXiv:2104.04473), sections 2.2 and 4.1: Megatron splits them over
    the tensor parallel ranks for the way.
    """
    g = collectives.group(p, c, ranks=p.pp, stride=p.tp * p.cp * p.ulysses * p.dp)
    size_bytes = s.tokens * p.hidden * p.activation_bytes / p.tp
    return collectives.send_s(g, size_bytes, 2.0 * p.vp)


def _offload_micro_batch_s(p: Plans, s: Sizes, c: Constants) -> Column:
    """Parameters up twice, and the offloaded activations down and up.

    Each rank brings its own shard over its own link and gathers the rest from the others. Source:
    Rajbhandari et al., ZeRO-Infinity (arXiv:2104.07857), section 6.1.
    """
    link = _host_link(p, c)
    drive = p.nvme_bytes_per_s / p.devices_per_node
    source = np.where(np.equal(p.param_tier, Tier.NVME), np.minimum(link, drive), link)
    is_offloaded = np.greater(p.param_tier, Tier.DEVICE) * np.greater_equal(p.zero_stage, 3)
    params = is_offloaded * 2.0 * s.updated_params * p.gather_bytes / source
    width = p.hidden * 4.0 + 2.0 * s.attention_width + 2.0 * s.kv_width
    width = (width + (2.0 + p.gated_mlp) * p.ffn_hidden) / p.tp
    kept_bytes = s.stage_layers * s.tokens * p.activation_bytes * width
    return params + 2.0 * p.offloaded_activations * kept_bytes / link


def _offload_step_s(p: Plans, s: Sizes, c: Constants) -> Column:
    """Gradients to the host and updated parameters back, for an optimizer on the host.

    In mixed precision 2 bytes each way per parameter of the shard (Ren et al., ZeRO-Offload,
    arXiv:2101.06840).
    """
    link = _host_link(p, c)
    is_offloaded = np.greater(p.optimizer_tier, Tier.DEVICE)
    moved_bytes = p.grad_bytes + p.activation_bytes
    return is_offloaded * s.updated_params * p.trained_share * moved_bytes / link


def _host_link(p: Plans, c: Constants) -> Column:
    return p.host_bytes_per_s * np.where(p.host_link_measured, 1.0, c.host_link_share)
