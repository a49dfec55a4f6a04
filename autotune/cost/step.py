"""The time of one optimizer step: micro-batches through the pipeline, then gradients and Adam."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.cost import traffic
from autotune.cost.activations import activations_of
from autotune.cost.compute import LayerTimes, join_s, layer_times, logits_s, optimizer_s
from autotune.cost.constants import Constants
from autotune.cost.plans import PAGE_BYTES, Column, Plans, Recompute
from autotune.cost.sizes import LayerKind, Sizes

_LARGEST_KEPT_BLOCK_BYTES = 32.0 * 2**20
"""glibc maps a larger block on its own and unmaps it when it is freed: mallopt(3),
M_MMAP_THRESHOLD, whose dynamic threshold goes no higher."""
_KEPT_BYTES = 2.0 * _LARGEST_KEPT_BLOCK_BYTES
"""Free memory at its top that the heap keeps: M_TRIM_THRESHOLD goes up to twice that."""
_LEAF_FETCH = 1.0 / 3.0
"""Host time of a tensor of an expert that stage 3 fetches, over that of others: all of a block
come at once, by the hooks of one module (`leaf_module`)."""
_WIDE = 4.0
"""Bytes of a logit in the loss, whatever the layers compute in."""


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Seconds of one step, by part; they add up to `step_s`.

    Where parts overlap, only the time that shows counts.
    """

    matmul_s: Column
    attention_s: Column
    elementwise_s: Column
    logits_s: Column
    recompute_s: Column
    optimizer_s: Column
    tensor_comm_s: Column
    expert_comm_s: Column
    context_comm_s: Column
    pipeline_comm_s: Column
    data_comm_s: Column
    """Gradients and parameters between the data parallel ranks."""
    offload_s: Column
    bubble_s: Column
    """Time in which stages wait, or have less to do than the slowest."""
    pages_s: Column
    """The kernel clears pages for memory that was handed back to it."""
    host_s: Column
    """Launches, the loop, and the slowest of many nodes."""
    step_s: Column


def step_times(p: Plans, s: Sizes, c: Constants) -> StepTimes:
    """Time of a step.

    The slowest stage sets the pace of m micro-batches, and filling and draining the pipeline takes
    the other stages' time once, divided by vp where chunks interleave: a bubble of (pp - 1)/(m vp)
    where stages are alike. A layer takes the device's time or the host's for its launches,
    whichever is longer. Source: Narayanan et al. (arXiv:2104.04473), section 2.2. Where two
    parts overlap, the longer counts, and a share of the shorter, since they compete for the
    memory. Source for the slowdown: Miao et al., Galvatron (arXiv:2211.13878).
    """
    tensor_s, tensor_head_s = traffic.tensor_s(p, s, c), traffic.head_s(p, s, c)
    context_s = traffic.context_s(p, s, c)
    layers = [
        _layer(p, s, c, kind, tensor_s, context_s)
        for kind, n_layers in (
            (LayerKind.DENSE, s.n_dense_layers),
            (LayerKind.MIXTURE, s.n_mixture_layers),
        )
        if np.any(n_layers)
    ]
    logits = logits_s(p, s, c)
    heads = 1.0 + p.n_mtp_layers
    head = heads * (logits + tensor_head_s) + p.n_mtp_layers * join_s(p, s, c)
    slowest, total_s = _stages_s(p, s, layers, head)
    micro_batches = p.grad_accum
    mean_s = total_s / p.pp
    bubble = micro_batches * (slowest - mean_s) + np.maximum(0.0, total_s - slowest) / p.vp

    def of_layers(seconds: Callable[[_Layer], Column]) -> Column:
        """Sum over the layers of a mean stage, for one micro-batch."""
        found: Column = sum(layer.n_layers * seconds(layer) for layer in layers)
        return found / p.pp

    gather_s, reduce_s, gather_step_s = traffic.data_s(p, s, c)
    takes = _taken_from_kernels(p)
    update_s = optimizer_s(p, c, s.updated_params)
    sends = micro_batches * _hidden(mean_s, traffic.pipeline_s(p, s, c), p.overlap_sends, c)
    prefetches = p.overlap_gather * traffic.has_room_to_prefetch(p, s)
    gather = micro_batches * _hidden(mean_s, gather_s, prefetches, c, takes)
    # Parameters come from the host before they are gathered, and hide behind the same kernels.
    fetched_s = gather_s + traffic.offloaded_params_s(p, s, c)
    fetch = micro_batches * _hidden(mean_s, fetched_s, prefetches, c, takes) - gather
    reductions = np.where(p.reduces_every_micro_batch, micro_batches, 1.0)
    # Stage 3's gathers hide behind the same kernels, over the same links.
    free = np.where(prefetches, 1.0 - np.minimum(1.0, gather_s / mean_s), 1.0)
    idle_s = free * of_layers(lambda layer: layer.layer_s - layer.device_s)
    backward_s = free * of_layers(lambda layer: layer.times.backward_s)
    # A third of a layer's launches are those of its forward pass.
    reduce = reductions * _hidden(backward_s, reduce_s, p.overlap_reduce, c, takes, idle_s / 1.5)
    forward_s = of_layers(lambda layer: layer.times.forward_s)
    gather_step = _hidden(forward_s, gather_step_s, p.overlap_gather, c, takes, idle_s / 3.0)
    # Copy engines move these; the kernels hardly notice, and no more does the host's optimizer.
    offload_step = _hidden(update_s, traffic.offload_step_s(p, s, c), p.overlap_offload, c, 0.0)
    offload_micro = micro_batches * np.maximum(
        0.0, traffic.offloaded_activations_s(p, s, c) - mean_s
    )

    nodes = np.maximum(1.0, s.world / p.devices_per_node)
    parts = {
        "matmul_s": micro_batches * of_layers(lambda layer: layer.times.matmul_s),
        "attention_s": micro_batches * of_layers(lambda layer: layer.times.attention_s),
        "elementwise_s": micro_batches * of_layers(lambda layer: layer.times.elementwise_s),
        "logits_s": micro_batches * (head - heads * tensor_head_s) / p.pp,
        "recompute_s": micro_batches * of_layers(lambda layer: layer.times.recompute_s),
        "optimizer_s": update_s,
        "tensor_comm_s": micro_batches
        * (of_layers(lambda _: tensor_s) + heads * tensor_head_s / p.pp),
        "expert_comm_s": micro_batches * of_layers(lambda layer: layer.expert_comm_s),
        "context_comm_s": micro_batches * of_layers(lambda layer: layer.context_comm_s),
        "pipeline_comm_s": sends,
        "data_comm_s": gather + reduce + gather_step + traffic.owners_s(p, s, c),
        "offload_s": fetch + offload_micro + offload_step,
        "bubble_s": bubble,
        "pages_s": micro_batches * _pages_s(p, s, c),
    }
    busy: Column = sum(parts.values())
    is_3 = np.greater_equal(p.zero_stage, 3)
    # What the host does for a tensor of stage 3 hides behind no kernel: it waits for the device.
    fetch_s = np.where(p.runs_ahead, p.cuts_by_rank * c.device_fetch_s, c.fetch_s)
    of_experts = traffic.layer_tensors(p, s) - p.gather_calls_per_layer
    fetches = is_3 * (p.gather_calls_per_layer + _LEAF_FETCH * of_experts)
    waits = of_layers(lambda layer: layer.layer_s - layer.device_s + fetches * fetch_s)
    launches = micro_batches * (waits + c.micro_batch_s) + c.step_s
    host = launches + c.scale_jitter * np.log2(nodes) * (busy + launches)
    return StepTimes(**parts, host_s=host, step_s=busy + host)


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """A layer of one kind, for one micro-batch."""

    kind: LayerKind
    n_layers: Column
    """In the whole model."""
    times: LayerTimes
    expert_comm_s: Column
    context_comm_s: Column
    device_s: Column
    layer_s: Column
    """By the device or the host, whichever takes longer."""


def _layer(
    p: Plans, s: Sizes, c: Constants, kind: LayerKind, tensor_s: Column, context_s: Column
) -> _Layer:
    times = layer_times(p, s, c, kind)
    context_s = _hidden(times.attention_s, context_s, 1.0, c) + traffic.waiting_context_s(p, s, c)
    expert_s = _routing_s(p, s, c, times) if kind == LayerKind.MIXTURE else 0.0
    device_s = times.forward_s + times.backward_s + tensor_s + expert_s + context_s
    launch_s = times.launch_s
    return _Layer(
        kind=kind,
        n_layers=s.n_mixture_layers if kind == LayerKind.MIXTURE else s.n_dense_layers,
        times=times,
        expert_comm_s=expert_s,
        context_comm_s=context_s,
        device_s=device_s,
        layer_s=np.where(p.runs_ahead, _longer(device_s, launch_s), device_s + launch_s),
    )


def _routing_s(p: Plans, s: Sizes, c: Constants, times: LayerTimes) -> Column:
    """What dispatch and combination of one layer add, forward and backward, and again.

    Shared experts hide as much as they take themselves. Overlap by pairs of layers runs the
    forward pass of one micro-batch beside the backward pass of another: combination backward and
    forward beside the attention, both dispatches beside the experts. It hides nothing while the
    pipeline fills and drains. Source: NVIDIA/Megatron-LM, megatron/core/models/common/
    model_chunk_schedule_plan.py (0.16.1); megatron/core/transformer/moe/shared_experts.py.
    """
    way_s = traffic.expert_s(p, s, c)
    taken = np.equal(p.recompute, Recompute.SELECTIVE) * p.recomputes_experts
    again = 2.0 * (np.equal(p.recompute, Recompute.FULL) / p.recompute_every + taken)
    hidden_s = p.overlap_shared_experts * np.minimum(times.shared_s, 4.0 * way_s)
    if np.any(p.overlap_experts):
        before_s = times.forward_s - times.experts_forward_s
        after_s = times.backward_s - times.experts_backward_s
        inside_s = times.experts_forward_s + times.experts_backward_s
        # Gradients of weights that wait can be computed beside the dispatches.
        later_s = p.delays_weight_grads * after_s / 3.0
        by_pairs_s = np.minimum(way_s, before_s) + np.minimum(way_s, after_s - later_s)
        by_pairs_s = by_pairs_s + np.minimum(2.0 * way_s, inside_s + later_s)
        steady = np.maximum(0.0, 1.0 - p.pp / p.grad_accum)
        hidden_s = np.where(p.overlap_experts, steady * by_pairs_s, hidden_s)
    return (4.0 + again) * way_s - (1.0 - c.overlap_share) * hidden_s


def _stages_s(
    p: Plans, s: Sizes, layers: Sequence[_Layer], head_s: Column
) -> tuple[Column, Column]:
    """Time of the slowest stage, and of all stages together, for one micro-batch."""
    seconds: dict[LayerKind, Column] = {layer.kind: layer.layer_s for layer in layers}
    dense_s, mixture_s = seconds.get(LayerKind.DENSE, 0.0), seconds.get(LayerKind.MIXTURE, 0.0)
    # Without an uneven split, the layers left over are not those of the stage with the head.
    last_dense = np.maximum(0.0, s.n_dense_layers - (p.n_layers - s.last_stage_layers))
    last_mixtures = s.last_stage_layers - last_dense + p.n_mtp_layers
    last_s = last_dense * dense_s + last_mixtures * mixture_s + head_s
    slowest = last_s
    for stage in (s.fullest,) if s.first is s.fullest else (s.fullest, s.first):
        stage_s = stage.dense_layers * dense_s + stage.mixture_layers * mixture_s
        slowest = np.maximum(slowest, stage_s)
    total_s = s.n_dense_layers * dense_s + s.n_mixture_layers * mixture_s + head_s
    return slowest, total_s


def _pages_s(p: Plans, s: Sizes, c: Constants) -> Column:
    """Time of one micro-batch for pages that were the rank's before and have to be cleared anew.

    Blocks above glibc's largest threshold come from the kernel each time: the logits of a long
    vocabulary. All other blocks count as far as a micro-batch holds more than the heap keeps.
    """
    if not np.any(p.clears_pages):
        return 0.0
    a = activations_of(p, s)
    chunk = np.where(np.greater(p.loss_chunk_tokens, 0), p.loss_chunk_tokens, np.inf)
    logit_block = np.minimum(s.tokens, chunk) * s.loss_vocab * _WIDE
    is_mapped = np.greater(logit_block, _LARGEST_KEPT_BLOCK_BYTES)
    mapped = is_mapped * s.tokens * s.loss_vocab * p.logit_bytes
    held = a.first_stage_bytes + a.working_bytes + (1.0 - is_mapped) * a.logits_bytes
    cleared = mapped + np.maximum(0.0, held - _KEPT_BYTES)
    page_s = np.where(np.greater(p.page_s, 0), p.page_s, c.page_s)
    return p.clears_pages * cleared / PAGE_BYTES * page_s


def _longer(a_s: Column, b_s: Column) -> Column:
    """The longer of two that mostly overlap; where they are alike, an eighth more than either.

    A rounded corner, max x (1 + (min / max)^6 / 8): kernels are of many sizes, so some wait for
    the host even where the device is the slower on the whole.
    """
    longer = np.maximum(a_s, b_s)
    ratio = np.minimum(a_s, b_s) / longer
    cube = ratio * ratio * ratio
    return longer * (1.0 + 0.125 * cube * cube)


def _taken_from_kernels(p: Plans) -> Column:
    """Processors that NCCL takes from the kernels beside it, over those of usual buffers.

    From registered buffers 4 or 5 within NVLink and 16 beyond it, in place of some 24. Source:
    NVIDIA/Megatron-LM, megatron/core/distributed/distributed_data_parallel_config.py, nccl_ub;
    NVIDIA/nccl, src/include/device.h, for its channels.
    """
    if not np.any(p.user_buffers):
        return 1.0
    is_near = np.less_equal(p.dp * p.tp * p.cp * p.ulysses * p.pp, p.nvlink_domain)
    return np.where(p.user_buffers, np.where(is_near, 4.5, 16.0) / 24.0, 1.0)


def _hidden(
    compute_s: Column,
    comm_s: Column,
    overlaps: Column,
    c: Constants,
    takes: Column = 1.0,
    idle_s: Column = 0.0,
) -> Column:
    """Seconds that communication adds: all of it, less what hides where it `overlaps`.

    `takes`: what it takes from the kernels, over what is usual; in `idle_s` none of them runs.
    """
    elapsed_s = compute_s + idle_s
    shorter = np.where(overlaps, np.minimum(elapsed_s, comm_s), 0.0)
    kernels = compute_s / np.maximum(elapsed_s, 1e-12)
    return comm_s - shorter * (1.0 - takes * c.overlap_share * kernels)
