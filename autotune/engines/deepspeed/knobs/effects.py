"""Where knobs act and saturate: the functions that rows of `knobs.json` name."""

from autotune.contract import KnobValue
from autotune.engines.deepspeed.knobs.situation import (
    communicates,
    degree,
    elements_in_partition,
    gathered_elements,
    has_adam,
    has_pipeline,
    is_contiguous,
    offloads_optimizer,
    releases_parameters,
    shards_gradients,
    stage,
    training_precision,
)
from autotune.engines.deepspeed.knobs.stages import stages
from autotune.space.knob import Context, Knobs


def _fold_recompute(value: KnobValue, values: Knobs, context: Context) -> KnobValue:
    # Layers 0, K, 2K, ...: from K = n_layers on it is the first layer alone. In a pipeline K
    # layers of a stage together: from the longest stage's on, all of every stage.
    if not str(value).startswith("every_"):
        return value
    most = context.model.n_layers
    if has_pipeline(values):
        most = max(n_layers for _, n_layers in stages(context.model, degree(values, "pp")))
    every = min(int(str(value).removeprefix("every_")), most)
    return "full" if every == 1 else f"every_{every}"


def _has_experts(_: Knobs, context: Context) -> bool:
    return context.model.n_experts > 0 and context.is_hugging_face


def _spreads_experts(values: Knobs, _: Context) -> bool:
    return degree(values, "ep") > 1


def _splits_layers(values: Knobs, _: Context) -> bool:
    return degree(values, "tp") > 1 and not has_pipeline(values)


def _fold_optimizer(value: KnobValue, values: Knobs, _: Context) -> KnobValue:
    # Below stage 3 nothing swaps: the states stay on the host (stage_1_and_2.py: __init__).
    return "cpu" if value == "nvme" and values.get("zero.stage") != 3 else value


def _splits_states(values: Knobs, context: Context) -> bool:
    # Whole sub-groups go to one side or the other (stage3.py: _create_fp32_partitions), and on a
    # CPU both sides are the host.
    group = int(values.get("stage3.sub_group_size", 1))
    return (
        values.get("offload.optimizer") == "cpu"
        and context.accelerator != "cpu"
        and has_adam(context)
        and group < elements_in_partition(values, context)
    )


def _fold_kept(value: KnobValue, values: Knobs, context: Context) -> KnobValue:
    return min(int(value), elements_in_partition(values, context))


def _is_on_host(values: Knobs, context: Context) -> bool:
    return values.get("offload.optimizer") == "cpu" and has_adam(context)


def _may_select(values: Knobs, context: Context) -> bool:
    # Its updates hang on the engine's step(), which a pipeline does not call (pipe/engine.py).
    return _is_on_host(values, context) and not has_pipeline(values)


def _is_another(values: Knobs, context: Context) -> bool:
    return values["precision"] not in ("default", context.precision)


def _fold_accumulation(value: KnobValue, values: Knobs, context: Context) -> KnobValue:
    # engine.py: get_data_types answers the training precision where none is set.
    return "model" if value == training_precision(values, context) else value


def _has_low_precision(values: Knobs, context: Context) -> bool:
    # BF16_Optimizer is not given it (engine.py: _configure_bf16_optimizer).
    return training_precision(values, context) != "fp32" and shards_gradients(values, context)


def _has_low_masters(values: Knobs, context: Context) -> bool:
    low = values.get("master_dtype", "fp32") == "model"
    is_bf16 = training_precision(values, context) == "bf16"
    return low and is_bf16 and _has_low_precision(values, context)


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


def _quantizes_gradients(values: Knobs, context: Context) -> bool:
    """Whether quantised gradients act: between nodes alone."""
    # Within a node it is plain reduce-scatter (stage3.py: __avg_scatter_grads); devices unknown:
    # no claim that it does nothing.
    nodes = context.world // context.n_devices if context.n_devices else 2
    return communicates(values, context) and nodes > 1


def _is_hugging_face(values: Knobs, context: Context) -> bool:
    return context.is_hugging_face and not has_pipeline(values)


def _fold_chunk(value: KnobValue, values: Knobs, context: Context) -> KnobValue:
    # One chunk that holds all tokens of a rank is no chunking.
    tokens = int(values.get("micro_batch", 1)) * context.seq_len // degree(values, "sp")
    return 0 if tokens and int(value) >= tokens else value


def _has_plain_mlps(values: Knobs, context: Context) -> bool:
    return _is_hugging_face(values, context) and context.model.n_experts == 0


def _keeps_inputs(values: Knobs, context: Context) -> bool:
    is_recomputed = values.get("recompute", "none") != "none"
    is_compiled = values.get("compile", "none") != "none"  # that takes the layers' calls apart
    return _is_hugging_face(values, context) and is_recomputed and not is_compiled


def _fold_compile(value: KnobValue, values: Knobs, _: Context) -> KnobValue:
    # engine.py: get_deepcompile_backend falls back to the torch compiler at stage 0.
    return "torch" if value == "deepcompile" and values.get("zero.stage") == 0 else value


def _has_a_choice(_: Knobs, context: Context) -> bool:
    return has_adam(context)


def _is_cpu(_: Knobs, context: Context) -> bool:
    return context.accelerator == "cpu"


def _is_cuda(_: Knobs, context: Context) -> bool:
    return context.accelerator == "cuda"
