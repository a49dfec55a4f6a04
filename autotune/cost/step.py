"""The time of one optimizer step: micro-batches through the pipeline, then gradients and Adam."""

from dataclasses import dataclass

import numpy as np

from autotune.cost import traffic
from autotune.cost.activations import activations_of
from autotune.cost.compute import layer_times, logits_s, optimizer_s
from autotune.cost.constants import Constants
from autotune.cost.plans import PAGE_BYTES, Column, Plans
from autotune.cost.sizes import Sizes

_LARGEST_KEPT_BLOCK_BYTES = 32.0 * 2**20
"""glibc maps a larger block on its own and unmaps it when it is freed: mallopt(3),
M_MMAP_THRESHOLD, whose dynamic threshold goes no higher."""
_KEPT_BYTES = 2.0 * _LARGEST_KEPT_BLOCK_BYTES
"""Free memory at its top that the heap keeps: M_TRIM_THRESHOLD goes up to twice that."""
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
    layer = layer_times(p, s, c)
    tensor_s, tensor_head_s = traffic.tensor_s(p, s, c), traffic.head_s(p, s, c)
    expert_s = traffic.expert_s(p, s, c)
    context_s = _exposed(layer.attention_s, traffic.context_s(p, s, c), c)
    gather_s, reduce_s, gather_step_s = traffic.data_s(p, s, c)
    device_s = layer.forward_s + layer.backward_s
    device_s = device_s + tensor_s + expert_s + context_s
    layer_s = np.where(p.runs_ahead, _longer(device_s, layer.launch_s), device_s + layer.launch_s)
    logits = logits_s(p, s, c)
    head = logits + tensor_head_s
    layers = p.n_layers / p.pp
    micro_batches = p.grad_accum
    with_head = np.where(np.greater(p.last_stage_layers, 0), p.last_stage_layers, np.floor(layers))
    slowest = np.maximum(s.stage_layers * layer_s, with_head * layer_s + head)
    total_s = p.n_layers * layer_s + head
    fill_s = np.maximum(0.0, total_s - slowest) / p.vp
    mean_s = total_s / p.pp
    bubble = micro_batches * (slowest - mean_s) + fill_s
    per_layer = micro_batches * layers
    sends = micro_batches * _hidden(mean_s, traffic.pipeline_s(p, s, c), p.overlap_sends, c)
    prefetches = p.overlap_gather * traffic.has_room_to_prefetch(p, s)
    gather = micro_batches * _hidden(mean_s, gather_s, prefetches, c)
    backward_s = layers * layer.backward_s
    reductions = np.where(p.reduces_every_micro_batch, micro_batches, 1.0)
    reduce = reductions * _hidden(backward_s, reduce_s, p.overlap_reduce, c)
    forward_s = layers * layer.forward_s
    gather_step = _hidden(forward_s, gather_step_s, p.overlap_gather, c)
    # Copy engines move these; the kernels hardly notice.
    offload_micro = micro_batches * np.maximum(
        0.0, traffic.offload_micro_batch_s(p, s, c) - mean_s
    )

    nodes = np.maximum(1.0, s.world / p.devices_per_node)
    parts = {
        "matmul_s": per_layer * layer.matmul_s,
        "attention_s": per_layer * layer.attention_s,
        "elementwise_s": per_layer * layer.elementwise_s,
        "logits_s": micro_batches * logits / p.pp,
        "recompute_s": per_layer * layer.recompute_s,
        "optimizer_s": optimizer_s(p, c, s.updated_params),
        "tensor_comm_s": per_layer * tensor_s + micro_batches * tensor_head_s / p.pp,
        "expert_comm_s": per_layer * expert_s,
        "context_comm_s": per_layer * context_s,
        "pipeline_comm_s": sends,
        "data_comm_s": gather + reduce + gather_step + traffic.owners_s(p, s, c),
        "offload_s": offload_micro + traffic.offload_step_s(p, s, c),
        "bubble_s": bubble,
        "pages_s": micro_batches * _pages_s(p, s, c),
    }
    busy: Column = sum(parts.values())
    is_3 = np.greater_equal(p.zero_stage, 3)
    # What the host does for a tensor of stage 3 hides behind no kernel: it waits for the device.
    fetch_s = np.where(p.runs_ahead, p.cuts_by_rank * c.device_fetch_s, c.fetch_s)
    fetches = p.gather_calls_per_layer * is_3
    launches = per_layer * (layer_s - device_s + fetches * fetch_s)
    launches = launches + micro_batches * c.micro_batch_s + c.step_s
    host = launches + c.scale_jitter * np.log2(nodes) * (busy + launches)
    return StepTimes(**parts, host_s=host, step_s=busy + host)


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


def _hidden(compute_s: Column, comm_s: Column, overlaps: Column, c: Constants) -> Column:
    """Seconds that communication adds: part of them where it `overlaps`, else all."""
    return np.where(overlaps, _exposed(compute_s, comm_s, c), comm_s)


def _exposed(compute_s: Column, comm_s: Column, c: Constants) -> Column:
    """Seconds that communication adds to the computation that it overlaps with."""
    shorter = np.minimum(compute_s, comm_s)
    return comm_s - shorter + c.overlap_share * shorter
