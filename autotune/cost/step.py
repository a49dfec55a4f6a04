"""The time of one optimizer step: micro-batches through the pipeline, then gradients and Adam."""

from dataclasses import dataclass

import numpy as np

from autotune.cost.compute import layer_times, logits_s, optimizer_s
from autotune.cost.constants import Constants
from autotune.cost.pages import pages_s
from autotune.cost.plans import Column, Plans
from autotune.cost.sizes import Sizes
from autotune.cost.traffic import traffic_of


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
    t = traffic_of(p, s, c)
    context = _exposed(layer.attention_s, t.context_layer_s, c)
    device_s = layer.forward_s + layer.backward_s
    device_s = device_s + t.tensor_layer_s + t.expert_layer_s + context
    layer_s = np.where(p.runs_ahead, _longer(device_s, layer.launch_s), device_s + layer.launch_s)
    logits = logits_s(p, s, c)
    head = logits + t.tensor_head_s
    layers = p.n_layers / p.pp
    micro_batches = p.grad_accum
    slowest = np.maximum(s.stage_layers * layer_s, np.floor(layers) * layer_s + head)
    total_s = p.n_layers * layer_s + head
    fill_s = np.maximum(0.0, total_s - slowest) / p.vp
    mean_s = total_s / p.pp
    bubble = micro_batches * (slowest - mean_s) + fill_s
    per_layer = micro_batches * layers
    sends = micro_batches * _hidden(mean_s, t.pipeline_send_s, p.overlap_sends, c)
    gather = micro_batches * _hidden(mean_s, t.gather_micro_batch_s, p.overlap_gather, c)
    backward_s = layers * layer.backward_s
    reductions = np.where(p.reduces_every_micro_batch, micro_batches, 1.0)
    reduce = reductions * _hidden(backward_s, t.reduce_s, p.overlap_reduce, c)
    forward_s = layers * layer.forward_s
    gather_step = _hidden(forward_s, t.gather_step_s, p.overlap_gather, c)
    # Copy engines move these; the kernels hardly notice.
    offload_micro = micro_batches * np.maximum(0.0, t.offload_micro_batch_s - mean_s)

    sharded = np.greater_equal(p.zero_stage, 1)
    dense = s.stage_layers * s.layer_params + s.held_vocab_params
    experts = s.stage_layers * s.layer_expert_params
    shards = np.where(sharded, s.shard_ranks, 1.0), np.where(sharded, s.expert_shard_ranks, 1.0)
    updated = dense / shards[0] + experts / shards[1]
    optimizer = optimizer_s(p, c, updated)
    pages = micro_batches * pages_s(p, s, c)
    nodes = np.maximum(1.0, s.world / p.devices_per_node)
    parts = {
        "matmul_s": per_layer * layer.matmul_s,
        "attention_s": per_layer * layer.attention_s,
        "elementwise_s": per_layer * layer.elementwise_s,
        "logits_s": micro_batches * logits / p.pp,
        "recompute_s": per_layer * layer.recompute_s,
        "optimizer_s": optimizer,
        "tensor_comm_s": per_layer * t.tensor_layer_s + micro_batches * t.tensor_head_s / p.pp,
        "expert_comm_s": per_layer * t.expert_layer_s,
        "context_comm_s": per_layer * context,
        "pipeline_comm_s": sends,
        "data_comm_s": gather + reduce + gather_step,
        "offload_s": offload_micro + t.offload_step_s,
        "bubble_s": bubble,
        "pages_s": pages,
    }
    busy: Column = sum(parts.values())
    is_3 = np.greater_equal(p.zero_stage, 3)
    fetches = (1.0 - p.runs_ahead) * 2.0 * p.gather_calls_per_layer * is_3
    launches = per_layer * (layer_s - device_s + fetches * c.fetch_s)
    launches = launches + micro_batches * c.micro_batch_s + c.step_s
    host = launches + c.scale_jitter * np.log2(nodes) * (busy + launches)
    return StepTimes(**parts, host_s=host, step_s=busy + host)


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
    """What communication adds where it overlaps if `overlaps`, else all of it."""
    return np.where(overlaps, _exposed(compute_s, comm_s, c), comm_s)


def _exposed(compute_s: Column, comm_s: Column, c: Constants) -> Column:
    """What communication adds to the computation that it overlaps with."""
    shorter = np.minimum(compute_s, comm_s)
    return comm_s - shorter + c.overlap_share * shorter
