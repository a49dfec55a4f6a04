"""How long a rank communicates, by kind, before anything overlaps."""

import numpy as np

from autotune.cost import collectives
from autotune.cost.activations import kept_bytes
from autotune.cost.constants import Constants
from autotune.cost.plans import Column, ContextKind, Plans, Recompute, Tier
from autotune.cost.sizes import Sizes


def data_s(p: Plans, s: Sizes, c: Constants) -> tuple[Column, Column, Column]:
    """Communication between the data parallel ranks.

    Rank order is tensor, context, data, pipeline, as Megatron lays them out (megatron/core/
    parallel_state.py): tensor parallel ranks are neighbours, pipeline ranks are farthest apart,
    unless `stages_before_replicas`.

    Returns:
        Gathers of stage 3's parameters, per micro-batch, forward and backward: by rings that use
        all network cards of a node, with DeepSpeed a call per tensor or per prefetched bucket, for
        which the host cuts every tensor into as many parts as there are ranks (DeepSpeed,
        runtime/comm/coalesced_collectives.py, reduce_scatter_coalesced, and
        runtime/zero/partition_parameters.py, _all_gather_coalesced); reductions of
        gradients, per micro-batch or per step, as `reduces_every_micro_batch` says; gathers of
        the parameters that stages 1 and 2 updated, per step.
    """
    data_ranks = p.dp * p.cp * p.ulysses
    apart = np.where(p.stages_before_replicas, p.pp, 1.0)
    stride = p.tp * apart
    states = collectives.group(p, c, ranks=data_ranks, stride=stride)
    shard = collectives.group(p, c, ranks=s.shard_ranks, stride=stride)
    backward_ranks = np.where(np.greater(p.gather_group, 0), p.gather_group, s.shard_ranks)
    backward_shard = collectives.group(p, c, ranks=backward_ranks, stride=stride)
    layers = s.stage_layers
    is_3 = np.greater_equal(p.zero_stage, 3)
    is_sharded = np.greater_equal(p.zero_stage, 1)
    tensors = layer_tensors(p, s)
    layer_params = s.layer_params + s.layer_expert_params
    largest = np.maximum(p.reduce_bucket_elements, layer_params / tensors)

    def reduced_s(of: collectives.RankGroup, params: Column) -> Column:
        grads_bytes = params * p.reduce_bytes * p.trained_share
        trained = params * p.trained_share
        calls = np.where(p.layer_wise_gather, layers, np.maximum(1.0, np.ceil(trained / largest)))
        bucket_bytes = p.reduce_bucket_elements * p.reduce_bytes
        calls = np.where(is_3, calls, np.maximum(1.0, np.ceil(grads_bytes / bucket_bytes)))
        scatters = is_sharded * (1.0 - p.reduces_whole)
        return np.where(
            scatters,
            collectives.gather_s(of, grads_bytes / calls, calls),
            collectives.all_reduce_s(of, grads_bytes / calls, calls),
        )

    def gathered_step_s(of: collectives.RankGroup, params: Column) -> Column:
        trained = params * p.trained_share
        calls = np.maximum(1.0, np.ceil(trained / p.gather_bucket_elements))
        size_bytes = trained * p.gather_bytes
        return collectives.gather_s(of, size_bytes / calls, calls)

    whole = s.stage_params + s.stage_expert_params
    if np.any(np.greater(p.ep, 1)):
        # An expert's states go round the ranks that hold the same one, which lie ep apart: a ring
        # of its own for each expert of a node.
        apart_too = np.greater(p.ep, 1)
        replicas = collectives.group(
            p, c, ranks=s.expert_shard_ranks, stride=s.expert_tp * p.ep * apart
        )
        dense = np.where(apart_too, s.stage_params, whole)
        experts = apart_too * s.stage_expert_params
        reduced = reduced_s(states, dense) + apart_too * reduced_s(replicas, experts)
        gather_step = gathered_step_s(shard, dense)
        gather_step = gather_step + apart_too * gathered_step_s(replicas, experts)
        # Fetches by stage 3 count as if all went round the dense parameters' ring: as much a
        # rank, but for the share (n - 1)/n that each group's size makes.
        alone = (1.0 - 1.0 / s.expert_shard_ranks) / np.maximum(1.0 - 1.0 / data_ranks, 1e-9)
        whole = dense + experts * alone
    else:
        reduced, gather_step = reduced_s(states, whole), gathered_step_s(shard, whole)
    gathered_bytes = whole * p.gather_bytes
    fetches = layers * np.clip(layer_params / p.prefetch_elements, 1.0, tensors)
    fetched_bytes = (gathered_bytes - _whole_elements(p, s) * p.gather_bytes) / fetches
    passes = 1.0 + _fetched_again(p, s)
    gather_micro = collectives.gather_s(shard, fetched_bytes, fetches)
    gather_micro = gather_micro + passes * collectives.gather_s(
        backward_shard, fetched_bytes, fetches
    )
    # Those of experts come at once, with their block as one leaf.
    cut_s = p.cuts_by_rank * layers * p.gather_calls_per_layer * s.shard_ranks * c.cut_s
    return (
        is_3 * (gather_micro + (1.0 + passes) * cut_s),
        reduced + is_3 * cut_s,
        is_sharded * (1 - is_3) * gather_step,
    )


def layer_tensors(p: Plans, s: Sizes) -> Column:
    """Tensors that stage 3 gathers of a layer: of each expert that is a module its own too."""
    of_experts = (1.0 - p.grouped_experts) * np.greater(p.n_experts, 1)
    of_experts = of_experts * s.mlp_matrices * s.expert_share * (1.0 - p.layer_wise_gather)
    return p.gather_calls_per_layer + of_experts


def owners_s(p: Plans, s: Sizes, c: Constants) -> Column:
    """Calls by which each rank sends the parameters it updated, per step: one for every rank.

    Their latencies add up, and nothing hides them. Source: InternLM/InternEvo,
    internlm/solver/optimizer/hybrid_zero_optim.py, broadcast_params.
    """
    is_split = np.greater_equal(p.zero_stage, 1) & np.less(p.zero_stage, 3)
    return np.where(is_split, p.sends_by_owner * (s.shard_ranks - 1.0) * c.send_s, 0.0)


def has_room_to_prefetch(p: Plans, s: Sizes) -> Column:
    """Whether stage 3 may gather a tensor while the largest one is in use, or a layer's experts.

    DeepSpeed prefetches while less than `live_elements` are gathered, whatever the size of the
    next tensor. Source: DeepSpeed, runtime/zero/partitioned_param_coordinator.py,
    fetch_sub_module. A loop over experts waits for each one's rows, so the host is never ahead.
    """
    attention = p.hidden * (s.attention_width + 2.0 * s.kv_width)
    experts = s.layer_expert_params * np.greater(s.expert_shard_ranks, 1)
    largest = np.maximum(np.maximum(attention, p.hidden * p.ffn_hidden) / p.tp, experts)
    fits = np.where(p.layer_wise_gather, 1.0, np.less(largest, p.live_elements))
    return fits * np.where(np.greater(p.n_experts, 1), p.grouped_experts, 1.0)


def _fetched_again(p: Plans, s: Sizes) -> Column:
    """Share of the parameters that stage 3 gathers once more for what is computed again.

    A layer that is recomputed uses each tensor twice, forward and then backward, and between the
    two goes from there to the layer's end and back. A tensor stays gathered if that is no more
    than `reuse_elements`. FSDP holds the whole layer meanwhile. Source: DeepSpeed,
    runtime/zero/partitioned_param_coordinator.py, __params_to_release.
    """
    layer_params = s.layer_params + s.layer_expert_params
    stays = 0.5 * p.reuse_elements / np.maximum(1.0, layer_params)
    return (1.0 - p.layer_wise_gather) * _again(p) * np.maximum(0.0, 1.0 - stays)


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


def tensor_s(p: Plans, s: Sizes, c: Constants) -> Column:
    """Tensor parallelism, per layer and micro-batch: two all-reduces forward and two backward.

    With sequence parallelism each is a reduce-scatter and an all-gather of the same volume, and
    the backward pass gathers the two inputs once more. Source: Shoeybi et al., Megatron-LM
    (arXiv:1909.08053), section 3; Korthikanti et al. (arXiv:2205.05198), section 4.2.2. Where a
    reduce-scatter is a whole all-reduce, the gather comes on top. What is recomputed is
    communicated again. Ranks that share a key head gather the queries, keys and values of all,
    and scatter their gradients; nothing hides that. Source: NVIDIA/Megatron-LM, megatron/core/
    transformer/attention.py, get_query_key_value_tensors.
    """
    g = collectives.group(p, c, ranks=p.tp, stride=1.0)
    size_bytes = s.tokens * p.hidden * p.activation_bytes
    pairs = 4.0 + 2.0 * _again(p)
    reduced = collectives.all_reduce_s(g, size_bytes, pairs)
    gathers = p.sequence_parallel * (2.0 + p.reduces_whole * pairs)
    gathered = collectives.gather_s(g, size_bytes, gathers)
    shares_heads = np.greater(p.tp, p.n_kv_heads) & np.equal(p.latent_kv_rank, 0)
    qkv_bytes = s.tokens * (s.attention_width + 2.0 * s.kv_width) * p.activation_bytes
    heads_s: Column = np.where(shares_heads, collectives.gather_s(g, qkv_bytes, 2 + _again(p)), 0)
    return (reduced + gathered) * (1.0 - p.overlap_tp) + heads_s


def head_s(p: Plans, s: Sizes, c: Constants) -> Column:
    """Logits that are gathered for the loss, per micro-batch; backward each has its part."""
    g = collectives.group(p, c, ranks=p.tp, stride=1.0)
    again = 1.0 + np.greater(p.loss_chunk_tokens, 0)
    size_bytes = p.whole_logits * s.tokens * p.vocab * p.activation_bytes
    return np.greater(p.whole_logits, 0) * collectives.gather_s(g, size_bytes, again)


def expert_s(p: Plans, s: Sizes, c: Constants) -> Column:
    """Rows to their experts, or their results back: one way, of one layer and micro-batch.

    An all-to-all moves all T K / tp rows of a rank, whichever of them go the same way; what
    sends a token once to each rank or node moves fewer. Neighbours are the ranks of one expert,
    then those of its group. Source: Lepikhin et al., GShard (arXiv:2006.16668); counted on ranks
    of megatron-core 0.16.1: 2 T K h / tp bytes, of which (ep - 1) / ep leave. The dispatcher
    `allgather` gathers T h / tp of each rank and scatters as much, whatever K is. Where tensor
    parallel ranks share an expert, they gather its rows and scatter the results.
    """
    g = collectives.group(p, c, ranks=p.ep, stride=s.expert_tp, network_share=c.all_to_all_share)
    token_bytes = s.tokens * p.hidden * p.activation_bytes / p.tp * p.expert_imbalance
    way_s = collectives.exchange_s(g, token_bytes * s.experts_per_token)
    if np.any(p.all_gather_dispatch):
        gathered_s = collectives.gather_s(g, token_bytes * p.ep)
        way_s = np.where(p.all_gather_dispatch, gathered_s, way_s)
    if np.any(p.flex_dispatch):
        routing = (s.experts_per_token, p.routed_share, p.expert_groups)
        flex_s = collectives.spread_s(g, token_bytes, *routing)
        way_s = np.where(p.flex_dispatch, flex_s, way_s)
    if np.any(np.greater(s.expert_tp, 1) & np.greater(s.routed_rows, 0)):
        shared = collectives.group(p, c, ranks=s.expert_tp, stride=1.0)
        rows_bytes = s.routed_rows * p.hidden * p.activation_bytes
        way_s = way_s + collectives.gather_s(shared, rows_bytes)
    return way_s


def context_s(p: Plans, s: Sizes, c: Constants) -> Column:
    """What runs beside attention: ring attention's keys and values, Ulysses' heads; per layer.

    The ring sends the keys and values of the other cp - 1 ranks forward, and again with their
    gradients backward. Source: Liu et al., Ring Attention (arXiv:2310.01889), section 3. Ulysses
    exchanges queries, keys, values and the result. Source: Jacobs et al., DeepSpeed-Ulysses
    (arXiv:2309.14509), section 3.
    """
    passed = np.equal(p.context_kind, ContextKind.RING) * _gathered_kv_s(p, s, c)
    return passed + _heads_s(p, s, c, p.ulysses, _again(p))


def waiting_context_s(p: Plans, s: Sizes, c: Constants) -> Column:
    """What attention waits for, of context parallel ranks that pass nothing round; per layer.

    Heads for tokens, or keys and values that are gathered before it, and again backward, where
    their gradients are scattered. Source: NVIDIA/TransformerEngine, transformer_engine/pytorch/
    attention/dot_product_attention/context_parallel.py, AttnFuncWithCPAndQKVOA2A and
    AttnFuncWithCPAndKVAllGather.
    """
    if not np.any(p.context_kind):
        return 0.0
    kinds = [np.equal(p.context_kind, k) for k in (ContextKind.HEADS, ContextKind.GATHERED)]
    heads_s = _heads_s(p, s, c, p.cp, _core_again(p))
    found: Column = np.select(kinds, [heads_s, _gathered_kv_s(p, s, c)], 0.0)
    return found


def _again(p: Plans) -> Column:
    """Share of the layers whose forward pass runs again."""
    return np.equal(p.recompute, Recompute.FULL) / p.recompute_every


def _core_again(p: Plans) -> Column:
    """The same of the attention's core, which context parallel ranks exchange for.

    Source: NVIDIA/Megatron-LM, megatron/core/transformer/attention.py,
    _checkpointed_attention_forward.
    """
    return _again(p) + np.equal(p.recompute, Recompute.SELECTIVE) * p.recomputes_scores


def _gathered_kv_s(p: Plans, s: Sizes, c: Constants) -> Column:
    """Keys and values of all context parallel ranks, forward and again; gradients backward."""
    ring = collectives.group(p, c, ranks=p.cp, stride=p.tp)
    kv_bytes = s.tokens * 2.0 * s.kv_width / p.tp * p.activation_bytes
    return collectives.gather_s(ring, kv_bytes * p.cp, 3.0 + _core_again(p))


def _heads_s(p: Plans, s: Sizes, c: Constants, ranks: Column, again: Column) -> Column:
    """Heads for tokens among so many ranks, forward, backward and again."""
    sp = collectives.group(p, c, ranks=ranks, stride=p.tp)
    widths = 2.0 * s.attention_width + 2.0 * s.kv_width
    exchanged_bytes = s.tokens * widths * p.activation_bytes / (4.0 * p.tp)
    return collectives.exchange_s(sp, exchanged_bytes, 8.0 + 4.0 * again)


def pipeline_s(p: Plans, s: Sizes, c: Constants) -> Column:
    """Activations forward and gradients backward, per micro-batch, for every chunk of layers.

    Source: Narayanan et al. (arXiv:2104.04473), sections 2.2 and 4.1: Megatron splits them over
    the tensor parallel ranks for the way.
    """
    replicas = np.where(p.stages_before_replicas, 1.0, p.dp)
    g = collectives.group(p, c, ranks=p.pp, stride=p.tp * p.cp * p.ulysses * replicas)
    size_bytes = s.tokens * p.hidden * p.activation_bytes / p.tp
    return collectives.send_s(g, size_bytes, 2.0 * p.vp)


def offloaded_params_s(p: Plans, s: Sizes, c: Constants) -> Column:
    """Parameters up from the host, for the forward pass, for the backward pass and again.

    Each rank brings its own shard over its own link, just before it gathers the rest from the
    others, on the same stream. The ranks of a node share its memory. Source: Rajbhandari et al.,
    ZeRO-Infinity (arXiv:2104.07857), section 6.1; DeepSpeed, runtime/zero/
    partition_parameters.py, _all_gather_coalesced.
    """
    link = np.minimum(_host_link(p, c), p.host_memory_bytes_per_s / p.devices_per_node)
    drive = p.nvme_bytes_per_s / p.devices_per_node
    source = np.where(np.equal(p.param_tier, Tier.NVME), np.minimum(link, drive), link)
    is_offloaded = np.greater(p.param_tier, Tier.DEVICE) * np.greater_equal(p.zero_stage, 3)
    fetches = 2.0 + _fetched_again(p, s)
    return is_offloaded * fetches * s.updated_params * p.gather_bytes / source


def offloaded_activations_s(p: Plans, s: Sizes, c: Constants) -> Column:
    """Activations down to the host and up again, per micro-batch."""
    if not np.any(p.offloaded_activations):
        return 0.0
    return 2.0 * p.offloaded_activations * kept_bytes(p, s) / _host_link(p, c)


def offload_step_s(p: Plans, s: Sizes, c: Constants) -> Column:
    """Gradients to the host and updated parameters back, for an optimizer on the host.

    In mixed precision 2 bytes each way per parameter of the shard (Ren et al., ZeRO-Offload,
    arXiv:2101.06840).
    """
    link = _host_link(p, c)
    share = np.where(np.greater(p.optimizer_tier, Tier.DEVICE), 1.0, p.optimizer_host_share)
    moved_bytes = p.grad_bytes + p.activation_bytes
    return share * s.updated_params * p.trained_share * moved_bytes / link


def _host_link(p: Plans, c: Constants) -> Column:
    return p.host_bytes_per_s * np.where(p.host_link_measured, 1.0, c.host_link_share)
