"""Input of the cost model: the candidates, one column per quantity."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from autotune.base.errors import JobError

Column = NDArray[np.float64] | float
"""A value per candidate, or one for all of them."""
Rows = NDArray[np.intp] | NDArray[np.bool_] | slice
PAGE_BYTES = 4096.0
HOST_MEMORY_BYTES_PER_S = 200e9
NVME_BYTES_PER_S = 6e9
"""A node's rate, like that of the host's memory, where nobody measured it."""


class Recompute(IntEnum):
    """Layers that the backward pass computes again, as the column `recompute` holds it."""

    NONE = 0
    SELECTIVE = 1
    """The attention's core: scores, softmax and their product with the values."""
    FULL = 2
    """Whole layers; `recompute_every` says how many of them."""
    OPERATORS = 3
    """All but the results of matrix products and of attention: torch's selective checkpoints."""


class Algorithm(IntEnum):
    """How all-reduces go, as the column `all_reduce_algorithm` holds it."""

    RING = 1
    TREE = 2


class RowBuffers(IntEnum):
    """Whose buffers for the rows of experts stay allocated, as the column `rank_buffers` holds."""

    NONE = 0
    """Rows are sent from and to tensors of the moment."""
    DEEPEP = 1
    HYBRIDEP = 2


class ContextKind(IntEnum):
    """How context parallel ranks exchange keys and values, as the column `context_kind` holds."""

    RING = 0
    """Each passes on what it has from rank to rank, beside the attention of what is there."""
    HEADS = 1
    """They exchange heads for tokens before the attention and after it."""
    GATHERED = 2
    """All are gathered before the attention."""


class Tier(IntEnum):
    """Where offloaded states live, as the columns `optimizer_tier` and `param_tier` hold it."""

    DEVICE = 0
    CPU = 1
    NVME = 2


class LoggedStage(IntEnum):
    """The pipeline stage whose memory a table tells, as the column `watched_stage` holds it."""

    FULLEST = 0
    FIRST = 1
    """Rank 0 alone."""
    LAST = 2
    """The last rank alone."""


@dataclass(frozen=True, kw_only=True)
class PlanColumns:
    """A dataclass of columns with a row each for many things; the rest is alike for all rows."""

    def columns(self) -> dict[str, Any]:
        """Field name -> column."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def take(self, rows: Rows) -> Self:
        found = self.columns()
        for name, column in found.items():
            if isinstance(column, np.ndarray):
                found[name] = column[rows]
            elif isinstance(column, PlanColumns):
                found[name] = column.take(rows)
        return type(self)(**found)

    def join(self, other: Self) -> Self:
        """The rows of both; what is alike for all rows is the first's."""
        found = self.columns()
        for name, added in other.columns().items():
            if isinstance(found[name], np.ndarray):
                found[name] = None if added is None else np.concatenate([found[name], added])
            elif isinstance(found[name], PlanColumns):
                found[name] = None if added is None else found[name].join(added)
        return type(self)(**found)

    def __len__(self) -> int:
        arrays = (column for column in self.columns().values() if isinstance(column, np.ndarray))
        return next(map(len, arrays), 1)


@dataclass(frozen=True, kw_only=True)
class Plans(PlanColumns):
    """Candidates in columns of one length; a plain number is the same for all of them.

    Booleans are 0 and 1. Degrees multiply to the world: dp x tp x pp x cp x ulysses.
    """

    # The model.
    n_layers: Column
    hidden: Column
    ffn_hidden: Column
    """Width of one MLP, or of one expert."""
    n_heads: Column
    n_kv_heads: Column
    head_dim: Column
    vocab: Column
    seq_len: Column
    padded_seq_len: Column = 0.0
    """Tokens of a sample with its padding, on average, where samples differ in length: time goes
    by it, memory by `seq_len`, the longest; 0: all are alike."""
    gated_mlp: Column = 0.0
    tied_embeddings: Column = 0.0
    learned_positions: Column = 0.0
    has_dropout: Column = 0.0
    """Its masks are kept for the backward pass."""
    n_experts: Column = 0.0
    """0 or 1 for a dense model."""
    experts_per_token: Column = 0.0
    routed_share: Column = 1.0
    """Share of the groups of experts that the router chooses first for a token; 1: all."""
    expert_groups: Column = 1.0
    """Number of groups that the experts are divided into; 1: there are no groups."""
    shared_expert_hidden: Column = 0.0
    """Width of an MLP that every token passes beside its experts; 0 for none."""
    n_dense_layers: Column = 0.0
    """First layers of a mixture of experts with one MLP in place of experts."""
    dense_ffn_hidden: Column = 0.0
    """Width of the MLP of those layers."""
    latent_q_rank: Column = 0.0
    """Rank of the queries of latent attention; 0: they are projected straight."""
    latent_kv_rank: Column = 0.0
    """Rank of its keys and values; 0: attention is not latent."""
    latent_nope_dim: Column = 0.0
    latent_rope_dim: Column = 0.0
    latent_value_dim: Column = 0.0
    n_mtp_layers: Column = 0.0
    """Layers on the last stage that predict further tokens, each with a head's work of its own."""
    window: Column = 0.0
    """Tokens that attention looks back in `n_windowed_layers`; 0: no layer has a window."""
    n_windowed_layers: Column = 0.0
    expert_biases: Column = 0.0
    """Whether experts have biases."""
    trained_share: Column = 1.0
    """Share of the parameters that is trained; with LoRA next to none. Frozen weights have no
    gradients."""
    adapters: Column = 0.0
    """Adapters of low rank beside each frozen projection; fewer where one has several of them."""
    adapts_mlp: Column = 0.0
    """Whether the MLP's matrices have adapters too, not the attention's alone."""
    adapts_experts: Column = 0.0
    """Whether experts have adapters: peft makes the changed weights of all of a layer's."""
    dequantized_bytes: Column = 0.0
    """Moved per frozen weight each time that it is unpacked for a product; 0: it is not packed."""

    # The device and its links. Rates are per device, links per direction.
    matmul_flops: Column
    """Best rate of large matrix products at the precision of the layers, of which
    `sustained_share` lasts."""
    half_flops: Column
    """The same at bf16 or fp16: attention and logits run there even where layers run in fp8."""
    memory_bytes: Column
    memory_bytes_per_s: Column
    nvlink_bytes_per_s: Column
    """Rate between devices of one domain; without NVLink, that of PCIe."""
    network_bytes_per_s: Column
    """A device's share of its node's network."""
    host_bytes_per_s: Column
    nvlink_domain: Column
    """Devices that reach each other without the network."""
    devices_per_node: Column
    sustained_share: Column = 1.0
    """Share of those rates that a device holds under a load that lasts, beside other kinds."""
    exponential_speed: Column = 1.0
    """How fast exponentials are, beside devices whose products are as fast."""
    host_memory_bytes_per_s: Column = HOST_MEMORY_BYTES_PER_S
    """Bandwidth of a node's own memory, which the optimizer on the CPU reads and writes."""
    nvme_bytes_per_s: Column = NVME_BYTES_PER_S
    """Rate of a node's drives together."""
    cached_bytes_per_s: Column = 0.0
    """`memory_bytes_per_s` for tensors of at most `cache_bytes`; 0: the same as for all others."""
    cache_bytes: Column = 0.0
    page_s: Column = 0.0
    """Time of the kernel to clear a page, where that was measured; 0: as the constants say."""
    operand_elements_per_s: Column = 0.0
    """How fast products move their operands and results, where that was measured; 0: as a share of
    the memory's bandwidth says."""
    attention_forward_flops: Column = 0.0
    """Rate of a fused kernel, where that was measured; 0: as the constants say."""
    attention_backward_flops: Column = 0.0
    logit_s: Column = 0.0
    """Time of the loss forward and backward, per logit, where that was measured; 0: as the
    memory's bandwidth says."""
    nvlink_measured: Column = 0.0
    """Collectives reached that link's rate: no share of it is taken."""
    nvlink_latency_s: Column = 0.0
    """Per hop of a collective, where that was measured; 0: as the constants say."""
    nvlink_all_reduce_speed: Column = 1.0
    """Share of that link's rate that all-reduces reach beside gathers."""
    nvlink_all_to_all_speed: Column = 1.0
    nvlink_send_speed: Column = 1.0
    nvlink_all_reduce_latency_s: Column = 0.0
    """Per hop of an all-reduce's measured curve; 0: as of `nvlink_latency_s`."""
    network_measured: Column = 0.0
    """`nvlink_measured` and the fields after it, for the link between nodes."""
    network_latency_s: Column = 0.0
    network_all_reduce_speed: Column = 1.0
    network_all_to_all_speed: Column = 1.0
    network_send_speed: Column = 1.0
    network_all_reduce_latency_s: Column = 0.0
    host_link_measured: Column = 0.0
    """The host's link was measured: no share of its rate is taken."""
    fabric_nodes: Column = 0.0
    """Nodes that reach each other at the network's full rate; 0: all do."""
    oversubscription: Column = 1.0
    """Bandwidth of such a group's nodes over that of all links that leave the group."""
    rails: Column = 0.0
    """Network cards of a node; 0: one per device."""
    rail_optimized: Column = 0.0
    """Card i of every node is under a switch of its own."""
    inside_hop_s: Column = 0.0
    """Latency of the switches between two nodes of such a group, beyond a first one."""
    across_hop_s: Column = 0.0
    """The same between nodes of two groups."""
    all_reduce_algorithm: Column = 0.0
    """An `Algorithm`, which comes before what was measured; 0: the fastest, as NCCL chooses."""
    layer_host_s: Column = 0.0
    """Host time of one layer forward and backward, where that was measured; 0: as the constants
    say of its kernels."""

    # The layout.
    dp: Column = 1.0
    tp: Column = 1.0
    pp: Column = 1.0
    vp: Column = 1.0
    """Interleaved model chunks of one pipeline rank."""
    cp: Column = 1.0
    ulysses: Column = 1.0
    """DeepSpeed's sequence parallel degree."""
    ep: Column = 1.0
    zero_stage: Column = 0.0
    shard_group: Column = 0.0
    """Ranks over which states are sharded, where fewer than dp x cp x ulysses; 0: all."""
    expert_tp: Column = 0.0
    """Tensor parallel degree of the experts; 0: `tp`."""
    most_stage_layers: Column = 0.0
    """Layers of the fullest pipeline stage between the ends, or of two; 0: an even split."""
    first_stage_layers: Column = 0.0
    """Layers of the stage with the embedding, where `most_stage_layers` says that they are not
    split evenly; it may have none."""
    last_stage_layers: Column = 0.0
    """The same of the stage with the loss."""
    stages_before_replicas: Column = 0.0
    """Whether the stages of a pipeline are nearer to one another than a stage's replicas."""
    sequence_parallel: Column = 0.0
    """Megatron's, over the tensor parallel ranks."""
    micro_batch: Column
    grad_accum: Column = 1.0
    """Micro-batches of one step and rank; those of the pipeline."""

    # What is kept, and where.
    recompute: Column = 0.0
    """A `Recompute`."""
    recompute_every: Column = 1.0
    """One layer in this many is recomputed, with full recomputation."""
    kept_products: Column = 0.5
    """Share of the matrix products whose results checkpoints by operator keep: torch's keep every
    other one."""
    recomputes_scores: Column = 1.0
    """Whether selective recomputation takes the attention's core."""
    recomputes_norms: Column = 0.0
    """Whether it takes the results of the norms."""
    recomputes_mlp: Column = 0.0
    """Whether it takes the MLP of dense layers."""
    recomputes_experts: Column = 0.0
    """Whether it takes the experts with their way there and back."""
    recomputes_shared: Column = 0.0
    """Whether it takes the shared experts."""
    recomputes_expert_act: Column = 0.0
    """Whether it takes the experts' activation function."""
    recomputes_latent: Column = 0.0
    """Whether it takes the up-projections of latent attention, and so queries, keys, values."""
    optimizer_tier: Column = 0.0
    """A `Tier`."""
    optimizer_host_share: Column = 0.0
    """Share of the optimizer's states that lie and are updated on the host, while the rest and all
    gradients stay on the device: Megatron's hybrid optimizer."""
    param_tier: Column = 0.0
    """A `Tier`."""
    offloaded_activations: Column = 0.0
    """Share of the kept activations that goes to the host."""

    # Dtypes.
    weight_bytes: Column = 2.0
    grad_bytes: Column = 2.0
    """Bytes per gradient as accumulated over micro-batches."""
    reduce_bytes: Column = 2.0
    """Bytes per gradient as sent between the ranks."""
    optimizer_bytes: Column = 12.0
    """States per parameter with the master copy: Adam of mixed precision 12, of fp32 8."""
    activation_bytes: Column = 2.0
    product_input_bytes: Column = 2.0
    """Bytes per element of the inputs of matrix products, as kept for the backward pass; 1 where
    they were cast to fp8 for the forward pass and kept so."""
    logit_bytes: Column = 12.0
    """Held per logit at the peak: in 16 and 32 bit, and gradients; Megatron's loss works in place,
    with 8."""

    # What the engine and its kernels do.
    flash_attention: Column = 1.0
    """The scores are never written."""
    attention_speed: Column = 1.0
    """Speed of the fused attention kernel, beside FlashAttention-2."""
    fused_kernels: Column = 1.0
    """Bias, dropout, activation and norms are each one kernel."""
    activation_copies: Column = 0.0
    """Tensors of the MLP's inner width that an activation function keeps beside its input and its
    result where it is written out in operations of torch, and not fused."""
    runs_ahead: Column = 1.0
    """The host launches kernels ahead of the device; 0 on CPU ranks, where it is the device."""
    clears_pages: Column = 0.0
    """Large blocks of memory go back to the kernel when they are freed, which clears their pages
    when they are asked for again: CPU ranks with glibc's defaults."""
    process_bytes: Column = 0.0
    """Memory of a rank's process beside its training, in bytes; 0: as the constants say."""
    fragments: Column = 1.0
    """Share of the usual fragmentation that there is: nearly 0 where the allocator's segments can
    grow."""
    keeps_heap: Column = 0.0
    """Whether freed memory stays with the process: CPU ranks whose allocator is told so."""
    launch_free: Column = 0.0
    """Share of kernel launches that a CUDA graph or a compiler takes off the host."""
    graph_share: Column = 0.0
    """Share of a layer's kernels that CUDA graphs replay, whose buffers stay where they are."""
    overlap_reduce: Column = 1.0
    """Gradients are reduced while the backward pass still runs."""
    overlap_gather: Column = 1.0
    """Parameters are gathered while layers compute."""
    overlap_sends: Column = 0.0
    """Pipeline stages send while they compute: Megatron's, where chunks interleave."""
    user_buffers: Column = 0.0
    """NCCL sends gradients and parameters from buffers that are registered with it."""
    overlap_offload: Column = 0.0
    """Gradients go to an optimizer on the host and parameters back while it updates others."""
    fixed_gather: Column = 0.0
    """What FSDP gathers has two buffers that stay, so that it leaves no holes."""
    context_kind: Column = 0.0
    """A `ContextKind`."""
    overlap_tp: Column = 0.0
    """Tensor parallel communication runs beside the products it belongs to."""
    expert_imbalance: Column = 1.0
    """Rows of the rank whose experts get most, over those of the mean rank."""
    forced_balance: Column = 0.0
    """The router is made to give every expert as many rows, as benchmarks do."""
    grouped_experts: Column = 1.0
    """A rank's experts are computed by one grouped product, not one by one."""
    cast_bytes: Column = 4.0
    """Moved to cast an element that a product takes to fp8 or fp4: it is read, and written by rows
    and by columns."""
    cast_kernels: Column = 1.0
    """Kernels of such a cast."""
    fused_experts: Column = 0.0
    """Their products are one kernel with the activation and the casts to fp8, launched once."""
    fused_routing: Column = 0.0
    """The router and the permutation of rows are each one kernel."""
    flex_dispatch: Column = 0.0
    """A token goes once to each rank or node, whatever the number of its experts there: DeepEP,
    HybridEP. 0: each of its rows goes by an all-to-all."""
    all_gather_dispatch: Column = 0.0
    """All tokens go to all ranks, which take their experts' rows."""
    rank_buffers: Column = 0.0
    """A `RowBuffers`."""
    overlap_experts: Column = 0.0
    """Dispatch and combination run beside the layers of another micro-batch."""
    overlap_shared_experts: Column = 0.0
    """Shared experts are computed beside them."""
    delays_weight_grads: Column = 0.0
    """Gradients of weights are computed apart, so that more lies beside the all-to-alls."""
    whole_logits: Column = 0.0
    """Tensor parallel ranks gather their parts of the logits, and each computes the whole loss:
    DeepSpeed's AutoTP with the head of Hugging Face's models."""
    loss_chunk_tokens: Column = 0.0
    """Tokens whose logits are there at a time; 0: all of a micro-batch."""
    mlp_tile_tokens: Column = 0.0
    """Tokens that an MLP works on at a time, computed again in the backward pass; 0: all of a
    micro-batch."""
    mlp_grads_in_place: Column = 0.0
    """Gradients of an MLP's inner width overwrite what the forward pass kept there."""
    adapter_bytes: Column = 0.0
    """What the adapters of a layer keep of a token, over the hidden size: inputs that they drop or
    cast for themselves."""
    watched_stage: Column = 0.0
    """A `LoggedStage`: the pipeline stage that a published peak is of."""
    reduces_every_micro_batch: Column = 0.0
    """Gradients are reduced at every micro-batch, not once a step; stages 2 and 3 of DeepSpeed."""
    gather_bytes: Column = 2.0
    """Per gathered parameter; 1 with quantised weights (ZeRO++ qwZ)."""
    gather_group: Column = 0.0
    """Ranks that the backward pass gathers over (ZeRO++ hpZ, FSDP hybrid); 0: as the forward."""
    gather_calls_per_layer: Column = 1.0
    """FSDP gathers a layer at once, DeepSpeed's stage 3 tensor by tensor, as far as its prefetch
    does not join them."""
    cuts_by_rank: Column = 0.0
    """The host cuts each tensor that is gathered or reduced into a part per rank, one at a time:
    DeepSpeed's stage 3."""
    waits_for_stages: Column = 0.0
    """The host waits for every message of a pipeline between nodes, in Python: nanotron's."""
    sends_by_owner: Column = 0.0
    """Parameters that stages 1 and 2 updated are sent to all by calls of each rank's own, one
    after the other: InternEvo."""
    reduces_whole: Column = 0.0
    """What each rank needs a part of is reduced whole, in a copy: gloo's reduce-scatter."""
    reduce_bucket_elements: Column = 5e8
    copies_grads: Column = 1.0
    """DeepSpeed's gradients are copied into a bucket that is there before them
    (`contiguous_gradients`); otherwise those of a bucket are flattened when they are reduced."""
    gather_bucket_elements: Column = 5e8
    prefetch_elements: Column = 5e7
    reuse_elements: Column = 1e9
    """Parameters that are used again within this many elements stay gathered
    (`stage3_max_reuse_distance`)."""
    live_elements: Column = 1e9
    """Most parameters that stage 3 holds gathered (`stage3_max_live_parameters`)."""
    persistent_elements: Column = 0.0
    """Tensors of no more elements stay whole in every rank of stage 3."""
    layer_wise_gather: Column = 0.0
    """FSDP: two layers are gathered at a time, whatever `live_elements` says."""
    flat_buffers: Column = 0.0
    """DeepSpeed's stages 1 and 2: buckets to reduce from and to gather into."""
    keeps_stage_outputs: Column = 0.0
    """DeepSpeed's pipeline holds what a stage sent until its gradient is back."""
    keeps_gathered: Column = 0.0
    """Inputs that sequence parallel ranks gathered stay whole until the backward pass."""
    upcasts_grads: Column = 0.0
    """Before Adam runs, 16-bit gradients become 32-bit ones, all of a shard at once."""
    fresh_grads: Column = 0.0
    """Gradients are made anew by each backward pass, and freed after the step: torch's engines
    without buckets that stay. Where a step has one micro-batch there are none at the loss."""
    optimizer_temporary_bytes: Column = 0.0
    """Bytes per updated parameter that the optimizer's step takes for the moment: torch's
    `foreach` Adam holds the roots of all second moments at once; fused kernels hold nothing."""
    accumulate_bytes: Column = 0.0
    """Moved per parameter and micro-batch beside the sum itself: copies into those buffers."""

    def __post_init__(self) -> None:
        columns = self.columns()
        shapes = {n: c.shape for n, c in columns.items() if isinstance(c, np.ndarray)}
        if len(set(shapes.values())) > 1:
            raise JobError.of("cost.lengths_of_columns", shapes=shapes)

    @classmethod
    def of_rows(cls, rows: Sequence[Mapping[str, float]]) -> Self:
        """Candidates by name of column, each; what a row leaves out has the column's default."""
        return cls(
            **{
                name: np.array([row.get(name, field.default) for row in rows], dtype=np.float64)
                for name, field in cls.__dataclass_fields__.items()
            }
        )
