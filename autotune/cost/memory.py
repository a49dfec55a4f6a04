"""Memory of the fullest rank: states, activations, buffers, and what the process itself takes."""

import functools
from dataclasses import dataclass

import numpy as np

from autotune.cost.activations import Activations
from autotune.cost.constants import Constants
from autotune.cost.plans import Column, LoggedStage, Plans, RowBuffers, Tier
from autotune.cost.sizes import Sizes, sizes_of

_ROOM_SHARE = 0.5
"""Most of the room that is left which cached segments count with, so that what fits is decided by
what cannot be given back."""
_PINNED_SHARE = 0.5
"""Part of the activations by which CUDA graphs of everything raise the peak: what a graph works
with stays its own. Source: NVIDIA-NeMo/Megatron-Bridge, skills/nemo-mbridge-perf-cuda-graphs: a
few gigabytes for parts of layers, 1.5 to 2 times for whole iterations."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of the rank with the fullest device, by part; they add up to `peak_bytes`."""

    params_bytes: Column
    grads_bytes: Column
    optimizer_bytes: Column
    activations_bytes: Column
    logits_bytes: Column
    buckets_bytes: Column
    gathered_bytes: Column
    """Parameters that stage 3 or FSDP holds whole at the moment."""
    workspace_bytes: Column
    """Memory of the matrix product library, and what the optimizer's step takes for the moment."""
    fragmentation_bytes: Column
    context_bytes: Column
    """Driver and NCCL, outside of the allocator."""
    peak_bytes: Column
    """Everything that is taken from the device: what nvidia-smi would show."""
    allocated_bytes: Column
    """Bytes that the allocator handed out: without fragmentation and context."""
    reserved_bytes: Column
    """Bytes that the allocator holds: without the context."""
    host_bytes: Column
    """Offloaded states and activations of the rank that puts the most on its host."""


def memory_of(
    p: Plans, s: Sizes, a: Activations, c: Constants, *, watched: bool = False
) -> Memory:
    """Peak memory of the fullest rank: on the first or the last stage, or on one between.

    With `watched`, that of the stage which a published figure is of.

    The states of a stage are its layers' and its embedding's. ZeRO splits the optimizer's from
    stage 1, gradients from 2, parameters from 3 over the data parallel ranks: 2 + 2 + 12 bytes per
    parameter in mixed precision. Source: Rajbhandari et al., ZeRO (arXiv:1910.02054), section 5
    and figure 1. Offloaded states leave the device; their gradients leave it with them
    from stage 2 on (Ren et al., ZeRO-Offload, arXiv:2101.06840).

    The peak is that of the fullest of three moments, for nothing has all at once. The loss has all
    kept activations and the logits. The first layers of the backward pass have the activations and
    what a layer works with. The optimizer's step has all gradients and its temporaries, and no
    activations. With FSDP gradients come while activations go: at the first two moments there are
    none yet, but for those of earlier micro-batches. Source: torch, optim/optimizer.py,
    zero_grad(set_to_none=True).
    """
    has_pipeline = np.greater(p.pp, 1)
    positions = p.learned_positions * p.seq_len * p.hidden
    # With one stage it is the first, and holds the logits too.
    ends = [
        (s.first, s.first.params + positions, a.first_stage_bytes, ~has_pipeline * a.logits_bytes),
        (s.last, s.last.params, a.last_stage_bytes, a.logits_bytes),
    ]
    if s.first is not s.last:
        fullest = s.fullest.params - s.held_vocab_params * has_pipeline
        ends.append((s.fullest, fullest, a.middle_stage_bytes, 0.0))
    parts = [
        _stage(
            p,
            s,
            c,
            dense,
            stage.expert_params,
            kept_bytes=kept_bytes,
            working=a.working_bytes,
            logits=logits,
        )
        for stage, dense, kept_bytes, logits in ends
    ]
    worst = parts[0]
    for other in parts[1:]:
        is_worse = np.greater(other["peak_bytes"], worst["peak_bytes"])
        worst = {name: np.where(is_worse, other[name], worst[name]) for name in worst}
    if watched and np.any(p.watched_stage):
        for stage, which in enumerate((LoggedStage.FIRST, LoggedStage.LAST)):
            is_it = np.equal(p.watched_stage, which)
            worst = {name: np.where(is_it, parts[stage][name], worst[name]) for name in worst}
    # Another stage than the one whose device is fullest may put the most on its host.
    host_bytes = [part["host_bytes"] for part in parts]
    worst["host_bytes"] = functools.reduce(np.maximum, host_bytes) + a.host_bytes
    return Memory(**worst)


@dataclass(frozen=True, kw_only=True)
class Held:
    """Bytes that a traced step holds beside the engine's states, at several moments of it.

    Arrays have an element per moment.
    """

    n_params: float
    """Trained and frozen."""
    activations_bytes: Column
    """And what the backward pass works with."""
    logits_bytes: Column
    grads_share: Column
    """Share of the engine's gradients that exists at the moment."""


def memory_of_traced(p: Plans, c: Constants, held: Held) -> Memory:
    """Peak memory of one candidate whose ranks each run the whole model: the fullest moment.

    As `memory_of`, with parameters and activations as they were traced; plain numbers.
    """
    moments = _stage(
        p,
        sizes_of(p),
        c,
        held.n_params,
        0.0,
        kept_bytes=held.activations_bytes,
        working=0.0,
        logits=held.logits_bytes,
        traced_grads_share=held.grads_share,
    )
    fullest = int(np.argmax(moments["peak_bytes"]))
    return Memory(
        **{name: float(np.resize(part, fullest + 1)[fullest]) for name, part in moments.items()}
    )


def _stage(
    p: Plans,
    s: Sizes,
    c: Constants,
    dense: Column,
    experts: Column,
    *,
    kept_bytes: Column,
    working: Column,
    logits: Column,
    traced_grads_share: Column | None = None,
) -> dict[str, Column]:
    """Parts of one stage's peak; where gradients are traced, of the traced moments alone."""
    sharded_1 = np.greater_equal(p.zero_stage, 1)
    sharded_2 = np.greater_equal(p.zero_stage, 2)
    sharded_3 = np.greater_equal(p.zero_stage, 3)
    optimizer_on_device = np.equal(p.optimizer_tier, Tier.DEVICE)
    params_on_device = np.equal(p.param_tier, Tier.DEVICE)
    whole = dense + experts
    shard = dense / s.shard_ranks + experts / s.expert_shard_ranks
    trained = p.trained_share
    # ZeRO++ hpZ: from the forward pass to the end of the step every group holds a copy of all
    # parameters, where stage 3 keeps them. Source: DeepSpeed, runtime/zero/
    # partition_parameters.py (_partition_param_sec), stage3.py (invalidate_secondary_tensor).
    has_copy = np.greater(p.gather_group, 0)
    sharded = shard + has_copy * whole / np.maximum(p.gather_group, 1.0)
    params = np.where(sharded_3, sharded * params_on_device, whole) * p.weight_bytes
    # Where DeepSpeed's Adam runs on the host, stage 3 hands gradients over as they come, and so
    # does stage 2 in the last micro-batch; in those before it a rank keeps its own until the
    # backward pass ends. Stage 1 keeps all of them until the step.
    # Source: DeepSpeed, stage_1_and_2.py (reduce_ready_partitions_and_remove_grads).
    accumulates = np.greater(p.grad_accum, 1)
    is_handed = sharded_2 * (1.0 - optimizer_on_device)
    grads_held = np.where(sharded_2, shard, whole)
    grads_held = grads_held * (1.0 - is_handed * np.where(sharded_3, 1.0, 1.0 - accumulates))
    all_grads = grads_held * p.grad_bytes * trained
    if traced_grads_share is None:
        is_fresh = np.greater(p.layer_wise_gather + p.fresh_grads, 0)
        is_fresh = is_fresh * np.less_equal(p.grad_accum, 1) * np.less_equal(p.pp, 1)
        grads = all_grads * (1.0 - np.maximum(is_fresh, is_handed))
    else:
        grads = all_grads * traced_grads_share * (1.0 - is_handed)
    updated = np.where(sharded_1, shard, whole) * trained
    kept_share = optimizer_on_device * (1.0 - p.optimizer_host_share)
    optimizer = updated * p.optimizer_bytes * kept_share
    buckets, gathered = _buffers(p, s, whole)
    kept_bytes = kept_bytes * (1.0 + _PINNED_SHARE * p.graph_share)
    experts_bytes = _experts_at_once(p, s)
    is_loss = np.greater_equal(logits, working + experts_bytes)
    activations = np.where(is_loss, kept_bytes, kept_bytes + working)
    loss_bytes = logits
    logits = np.where(is_loss, logits, 0.0)
    gathered = gathered + np.where(is_loss, 0.0, experts_bytes)
    varying = kept_bytes + np.where(is_loss, loss_bytes, working) + gathered
    moves = varying - p.fixed_gather * gathered
    spilled = c.fragmentation * (moves + buckets)
    temporary = p.optimizer_temporary_bytes * updated * kept_share
    # Traced are the moments of a step but one: the end of a backward pass before the last one.
    at_step = (all_grads + temporary) * (1.0 if traced_grads_share is None else is_handed)
    # Activations are gone when gradients become 32-bit ones, but one large tensor finds no room
    # between what they leave.
    upcast = 4.0 * p.upcasts_grads * updated * optimizer_on_device
    heap = p.keeps_heap * (c.heap_bytes + c.heap_share * varying)
    fragmentation = p.fragments * (spilled + upcast) + heap
    is_step = np.greater(at_step, grads + varying)
    grads = np.where(is_step, all_grads, grads)
    activations, logits, gathered = (
        np.where(is_step, 0.0, part) for part in (activations, logits, gathered)
    )
    workspace = c.workspace_bytes + is_step * temporary
    n_groups = sum(np.greater(degree, 1) * 1.0 for degree in (p.dp, p.tp, p.pp, p.cp, p.ep))
    process = np.where(np.greater(p.process_bytes, 0), p.process_bytes, c.context_bytes)
    context = process + c.communicator_bytes * n_groups + _row_buffers(p, s)
    allocated = params + grads + optimizer + buckets + activations + logits + gathered + workspace
    # What the loss leaves are whole segments, which the allocator gives back where room is short.
    # Source: torch, c10/cuda/CUDACachingAllocator.cpp (release_cached_blocks).
    room = np.maximum(0.0, p.memory_bytes - allocated - fragmentation - context)
    cached = p.fragments * c.logits_fragmentation * loss_bytes
    fragmentation = fragmentation + np.minimum(cached, _ROOM_SHARE * room)
    optimizer_on_host = np.equal(p.optimizer_tier, Tier.CPU)
    params_on_host = np.equal(p.param_tier, Tier.CPU)
    host_share = np.where(optimizer_on_host, 1.0, p.optimizer_host_share)
    host = updated * (p.optimizer_bytes + p.grad_bytes) * host_share
    host = host + sharded_3 * params_on_host * sharded * p.weight_bytes
    return {
        "params_bytes": params,
        "grads_bytes": grads,
        "optimizer_bytes": optimizer,
        "activations_bytes": activations,
        "logits_bytes": logits,
        "buckets_bytes": buckets,
        "gathered_bytes": gathered,
        "workspace_bytes": workspace,
        "fragmentation_bytes": fragmentation,
        "context_bytes": context,
        "peak_bytes": allocated + fragmentation + context,
        "allocated_bytes": allocated,
        "reserved_bytes": allocated + fragmentation,
        "host_bytes": host,
    }


def _row_buffers(p: Plans, s: Sizes) -> Column:
    """Buffers through which rows go to experts and back, outside of the allocator.

    DeepEP has a ring of 256 tokens for each of 10 channels and 8 peers in a node, and another of
    128 there and back for each node. HybridEP has room for the tokens of all ranks of a group, in
    case that all come to one, on the way there and on the way back. Source: deepseek-ai/DeepEP,
    csrc/config.hpp and deep_ep/buffer.py (get_dispatch_config); its branch hybrid-ep,
    csrc/hybrid_ep.
    """
    if not np.any(p.rank_buffers):
        return 0.0
    token_bytes = p.activation_bytes * p.hidden
    nodes = np.where(np.greater(p.ep, p.devices_per_node), p.ep / p.devices_per_node, 0.0)
    rings = 10.0 * (8.0 * 256.0 + 2.0 * 128.0 * nodes) * token_bytes
    whole = 2.0 * p.ep * s.tokens / p.tp * token_bytes
    kinds = [np.equal(p.rank_buffers, kind) for kind in (RowBuffers.DEEPEP, RowBuffers.HYBRIDEP)]
    found: Column = np.select(kinds, [rings, whole], 0.0)
    return found


def _experts_at_once(p: Plans, s: Sizes) -> Column:
    """What a layer's experts take at stage 3 beside `_buffers`, while they compute.

    They are one module, whose parameters are gathered together, and a gradient larger than the
    reduce bucket is there whole. Source: DeepSpeed, runtime/zero/partitioned_param_coordinator.py
    (fetch_sub_module) and stage3.py (__add_grad_to_ipg_bucket).
    """
    is_split = np.greater_equal(p.zero_stage, 3) & np.greater(s.expert_shard_ranks, 1)
    gathered = np.maximum(0.0, s.layer_expert_params - p.live_elements - p.prefetch_elements)
    grads = np.maximum(0.0, s.layer_expert_params - p.reduce_bucket_elements) * p.trained_share
    found = gathered * np.minimum(p.activation_bytes, p.weight_bytes) + grads * p.reduce_bytes
    return is_split * (1.0 - p.layer_wise_gather) * found


def _buffers(p: Plans, s: Sizes, whole: Column) -> tuple[Column, Column]:
    """Communication buckets, and parameters that are gathered for the moment.

    DeepSpeed's stages 1 and 2 hold a reduce bucket, two where reduction overlaps, and one to
    gather into; stage 3 holds one beside what it gathers: at most `live_elements` and what it
    prefetches. A reduce bucket that gradients are copied into is allocated at its full size, even
    above all gradients of the rank; all else only as far as there is something to hold. FSDP
    holds two layers and the embeddings, and one layer's gradients; in a pipeline it holds all of
    them over the micro-batches. Source: DeepSpeed, runtime/zero/stage_1_and_2.py
    (`setup_buckets`), stage3.py (`_setup_for_real_optimizer`) and
    partitioned_param_coordinator.py; Zhao et al., PyTorch FSDP (arXiv:2304.11277). gloo scatters
    and gathers by way of a copy of the whole. Source: torch,
    csrc/distributed/c10d/ProcessGroupGloo.cpp, _reduce_scatter_base and allgather.
    """
    is_3 = np.greater_equal(p.zero_stage, 3)
    filled = np.minimum(p.reduce_bucket_elements, whole)
    reduce_elements = np.where(p.copies_grads, p.reduce_bucket_elements, filled)
    gather_elements = np.minimum(p.gather_bucket_elements, whole)
    flat = p.flat_buffers * (reduce_elements * (1.0 + p.overlap_reduce) + gather_elements)
    bucket_elements = np.where(is_3, (1.0 - p.layer_wise_gather) * reduce_elements, flat)
    is_copied = p.reduces_whole * (1.0 - p.flat_buffers) * np.greater(s.shard_ranks, 1)
    is_copied = is_copied * np.greater_equal(p.zero_stage, 1) * (1.0 - is_3)
    copies = is_copied * whole * (p.reduce_bytes + p.gather_bytes)
    buckets = bucket_elements * p.reduce_bytes + copies
    embeddings = s.vocab_params * (2.0 - p.tied_embeddings)
    layer = s.layer_params + s.layer_expert_params
    live = np.minimum(p.live_elements + p.prefetch_elements, whole)
    stays = np.greater(p.pp, 1)
    by_layer = np.where(stays, whole, 2.0 * layer + embeddings)
    elements = np.where(p.layer_wise_gather, by_layer, live)
    whole_grads = np.where(stays, whole, layer + embeddings)
    grads = p.layer_wise_gather * whole_grads * p.reduce_bytes * p.trained_share
    # Frozen weights of 4 bits are gathered as they are.
    gathered_bytes = np.minimum(p.activation_bytes, p.weight_bytes)
    return buckets, is_3 * (elements * gathered_bytes + grads)
