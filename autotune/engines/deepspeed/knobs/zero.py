"""Knobs of ZeRO: how gradients are reduced, and how stage 3 gathers parameters."""

from autotune.contract import KnobValue
from autotune.engines.deepspeed.knobs.base import DeepSpeedKnob
from autotune.engines.deepspeed.knobs.situation import (
    at_stages,
    communicates,
    data_parallel,
    degree,
    elements_in_partition,
    fetches_parameters,
    fold_elements,
    gathered_elements,
    has_pipeline,
    is_contiguous,
    offloads_optimizer,
    releases_parameters,
    shards_gradients,
    stage,
    training_precision,
)
from autotune.space.knob import Context, Knobs, never


def _fold_gathered(value: KnobValue, values: Knobs, context: Context) -> KnobValue:
    return min(int(value), gathered_elements(values, context))


def _fold_prefetch(value: KnobValue, values: Knobs, context: Context) -> KnobValue:
    # The amount is min(max_live - live, prefetch), so more than max_live is max_live.
    # partitioned_param_coordinator.py: fetch_sub_module
    live = values.get("stage3.max_live_parameters", value)
    return min(int(value), int(live), gathered_elements(values, context))


def _fold_persistence(value: KnobValue, _: Knobs, context: Context) -> KnobValue:
    return min(int(value), context.model.largest_param)


def _fold_reuse(value: KnobValue, _: Knobs, context: Context) -> KnobValue:
    # A step visits every module in forward, in backward and, recomputed, once more between; tied
    # weights count at each of their two places. Beyond that nothing is left to look at. The same
    # bound with and without recomputation: else the default would seem to change with it.
    model = context.model
    tied = model.vocab * model.hidden if model.tied_embeddings else 0
    return min(int(value), 3 * (model.n_params_total + tied))


def _fold_sub_group(value: KnobValue, values: Knobs, context: Context) -> KnobValue:
    return min(int(value), elements_in_partition(values, context))


def _fold_communication(value: KnobValue, values: Knobs, context: Context) -> KnobValue:
    # engine.py: communication_data_type answers the training precision where none is set.
    return "model" if value == training_precision(values, context) else value


def _has_own_dtype(values: Knobs, context: Context) -> bool:
    # engine.py: _configure_distributed_model; where samples are shared, gradients are reduced in
    # seq_parallel_communication_data_type, which is fp32 unless a base configuration says so.
    return communicates(values, context) and degree(values, "sp") == 1


def _fold_hpz(value: KnobValue, _: Knobs, context: Context) -> KnobValue:
    return min(max(int(value), 1), context.world)


def _caps_prefetch(values: Knobs, context: Context) -> bool:
    # Its only reader is the prefetcher (fetch_sub_module); releasing goes by reuse distance.
    prefetch = int(values["stage3.prefetch_bucket_size"])
    return releases_parameters(values, context) and prefetch > 0


def _overlaps(values: Knobs, context: Context) -> bool:
    # Stage 3 only picks a stream with it (stage3.py: __init__), and a CPU has no streams
    # (cpu_accelerator.py: Stream). Stages 1 and 2 also double the bucket and, at stage 1, reduce
    # inside backward (stage_1_and_2.py: setup_buckets, process_gradients).
    if stage(values) == 3:
        return context.accelerator != "cpu"
    # A pipeline has none (engine.py: _configure_zero_optimizer).
    return shards_gradients(values, context) and not has_pipeline(values)


def _may_scatter_bucket(values: Knobs, context: Context) -> bool:
    # Forced where the optimizer is offloaded below stage 3 (stage_1_and_2.py: __init__).
    forced = stage(values) < 3 and offloads_optimizer(values)
    return shards_gradients(values, context) and not forced


def _scatters(values: Knobs, context: Context) -> bool:
    # Stages 1 and 2 ask in average_tensor, stage 3 in __reduce_and_partition_ipg_grads; both only
    # where the gradients lie in one bucket.
    reduces = communicates(values, context) and shards_gradients(values, context)
    return reduces and is_contiguous(values)


def _deals_out(values: Knobs, context: Context) -> bool:
    # With one rank the order stays as it was (stage_1_and_2.py: _round_robin_reorder).
    return communicates(values, context) and shards_gradients(values, context)


def quantizes_gradients(values: Knobs, context: Context) -> bool:
    """Whether quantised gradients act: between nodes alone."""
    # Within a node it is plain reduce-scatter (stage3.py: __avg_scatter_grads); devices unknown:
    # no claim that it does nothing.
    nodes = context.world // context.n_devices if context.n_devices else 2
    return communicates(values, context) and nodes > 1


ENTRIES = (
    DeepSpeedKnob(
        name="contiguous_gradients",
        key="zero_optimization.contiguous_gradients",
        read_back="contiguous_gradients",
        default=True,
        scope="at stages 1 to 3; below stage 3 not where the optimizer is offloaded",
        when=at_stages(1, 2, 3),
        acts=_may_scatter_bucket,
        help="copy gradients into one bucket before they are reduced: one bucket more memory (two "
        "with overlap_comm below stage 3), no fragments",
        source="runtime/zero/stage_1_and_2.py: reduce_independent_p_g_buckets_and_remove_grads",
    ),
    DeepSpeedKnob(
        name="reduce_scatter",
        key="zero_optimization.reduce_scatter",
        read_back="reduce_scatter",
        default=True,
        scope="at stages 1 to 3 over more than one rank where gradients are contiguous",
        when=at_stages(1, 2, 3),
        acts=_scatters,
        help="send each rank its own part of the gradients instead of all of them",
        source="runtime/zero/stage_1_and_2.py: average_tensor; stage3.py: "
        "__reduce_and_partition_ipg_grads",
    ),
    DeepSpeedKnob(
        name="round_robin_gradients",
        key="zero_optimization.round_robin_gradients",
        read_back="round_robin_gradients",
        default=False,
        scope="at stages 1 and 2 over more than one rank",
        when=at_stages(1, 2),
        acts=_deals_out,
        help="deal parameters out to the ranks in turn, so that all copy gradients to the host at "
        "the same time",
        source="runtime/zero/stage_1_and_2.py: _round_robin_reorder",
    ),
    DeepSpeedKnob(
        # Stage 0 reduces by a constant of its own (engine.py: MEMORY_OPT_ALLREDUCE_SIZE). Above
        # all gradients of a rank nothing changes but an allocation that is never filled
        # (stage_1_and_2.py: setup_buckets; stage3.py: _setup_for_real_optimizer).
        name="reduce_bucket_size",
        key="zero_optimization.reduce_bucket_size",
        read_back="reduce_bucket_size",
        default=500_000_000,
        minimum=1,
        scope="at stages 1 to 3",
        when=at_stages(1, 2, 3),
        acts=shards_gradients,
        fold=fold_elements,
        help="gradient elements reduced at once",
        source="runtime/zero/stage_1_and_2.py: setup_buckets",
    ),
    DeepSpeedKnob(
        # Read only where torch lacks all_gather_into_tensor (utils.py: all_gather_dp_groups);
        # every torch that this package supports has it. Stage 3 is not even given it.
        name="allgather_bucket_size",
        key="zero_optimization.allgather_bucket_size",
        read_back="allgather_bucket_size",
        default=500_000_000,
        minimum=2,
        scope="nowhere with torch 1.13 or newer",
        when=at_stages(1, 2),
        acts=never,
        fold=fold_elements,
        help="parameter elements gathered at once after the optimizer step",
        source="runtime/utils.py: all_gather_dp_groups",
    ),
    DeepSpeedKnob(
        # config.py: overlap_comm_valid
        name="overlap_comm",
        key="zero_optimization.overlap_comm",
        read_back="overlap_comm",
        default=False,
        default_when={("zero.stage", 3): True},
        scope="at stages 1 and 2, and on a GPU at stage 3",
        when=at_stages(1, 2, 3),
        acts=_overlaps,
        help="reduce gradients while backward still runs; doubles the bucket at stages 1 and 2",
        source="runtime/zero/config.py: overlap_comm_valid",
    ),
    DeepSpeedKnob(
        # parameter_offload.py: mark_persistent_parameters
        name="stage3.param_persistence_threshold",
        key="zero_optimization.stage3_param_persistence_threshold",
        read_back="param_persistence_threshold",
        default=100_000,
        scope="at stage 3 where parameters are fetched (dp above 1, or offloaded to the host)",
        when=at_stages(3),
        acts=fetches_parameters,
        fold=_fold_persistence,
        help="parameters of at most this many elements stay gathered",
        source="runtime/zero/parameter_offload.py: mark_persistent_parameters",
    ),
    DeepSpeedKnob(
        name="stage3.max_live_parameters",
        key="zero_optimization.stage3_max_live_parameters",
        read_back="max_live_parameters",
        default=1_000_000_000,
        minimum=1,
        scope="at stage 3 where parameters are fetched ahead",
        when=at_stages(3),
        acts=_caps_prefetch,
        fold=_fold_gathered,
        help="fetch ahead only while fewer parameter elements than this are gathered",
        source="runtime/zero/partitioned_param_coordinator.py: fetch_sub_module",
    ),
    DeepSpeedKnob(
        name="stage3.prefetch_bucket_size",
        key="zero_optimization.stage3_prefetch_bucket_size",
        read_back="prefetch_bucket_size",
        default=50_000_000,
        scope="at stage 3 where parameters are fetched and some are not persistent",
        when=at_stages(3),
        acts=releases_parameters,
        fold=_fold_prefetch,
        help="parameter elements fetched ahead of use; 0 fetches none ahead",
        source="runtime/zero/partitioned_param_coordinator.py: fetch_sub_module",
    ),
    DeepSpeedKnob(
        name="stage3.max_reuse_distance",
        key="zero_optimization.stage3_max_reuse_distance",
        read_back="max_reuse_distance",
        default=1_000_000_000,
        scope="at stage 3 where parameters are fetched and some are not persistent",
        when=at_stages(3),
        acts=releases_parameters,
        fold=_fold_reuse,
        help="a parameter that is used again within this many elements stays gathered",
        source="runtime/zero/partitioned_param_coordinator.py: __params_to_release",
    ),
    DeepSpeedKnob(
        name="stage3.sub_group_size",
        key="zero_optimization.sub_group_size",
        read_back="sub_group_size",
        default=1_000_000_000,
        minimum=1,
        scope="at stage 3",
        when=at_stages(3),
        fold=_fold_sub_group,
        help="parameter elements of a rank that the optimizer updates at once: smaller takes less "
        "working memory, and more steps",
        source="runtime/zero/stage3.py: _create_fp16_sub_groups",
    ),
    DeepSpeedKnob(
        # Stage 0: engine.py: allreduce_bucket; 1 and 2: stage_1_and_2.py: allreduce_bucket;
        # 3: stage3.py: __avg_scatter_grads.
        name="communication_dtype",
        key="communication_data_type",
        by_template=True,
        default="model",
        choices=("model", "fp32", "fp16", "bf16"),
        scope="where gradients are reduced over more than one rank, and sp is 1",
        acts=_has_own_dtype,
        fold=_fold_communication,
        help="data type of gradient reduction; model: the training precision",
        changes_training="below the training precision, sums of gradients are rounded to it",
        source="runtime/engine.py: communication_data_type",
    ),
)

ZEROPP = (
    DeepSpeedKnob(
        name="zeropp.hpz_partition_size",
        key="zero_optimization.zero_hpz_partition_size",
        read_back="hpz_partition_size",
        default=1,
        minimum=1,
        scope="at stage 3 over more than one rank",
        when=at_stages(3),
        acts=lambda values, context: data_parallel(values, context) > 1,
        fold=_fold_hpz,
        help="ranks that hold a second copy of the parameters between them (a node's devices), so "
        "that backward gathers within it; 1 keeps none",
        source="utils/groups.py: _create_zero_param_parallel_group",
    ),
    DeepSpeedKnob(
        name="zeropp.quantized_weights",
        key="zero_optimization.zero_quantized_weights",
        read_back="quantized_weights",
        default=False,
        scope="at stage 3 over more than one rank",
        when=at_stages(3),
        acts=communicates,
        needs_cuda=(True,),
        help="gather parameters as int8 (qwZ)",
        changes_training="parameters are rounded to int8 on their way",
        source="runtime/zero/partition_parameters.py: CUDAQuantizer",
    ),
    DeepSpeedKnob(
        name="zeropp.quantized_gradients",
        key="zero_optimization.zero_quantized_gradients",
        read_back="quantized_gradients",
        default=False,
        scope="at stage 3 over more than one node",
        when=at_stages(3),
        acts=quantizes_gradients,
        needs_cuda=(True,),
        help="reduce gradients between nodes as int4 and int8 (qgZ)",
        changes_training="gradients are rounded to int4 and int8 on their way",
        source="runtime/zero/stage3.py: __avg_scatter_grads",
    ),
)
