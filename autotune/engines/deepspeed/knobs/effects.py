"""Where knobs act and saturate: the functions that rows of `knobs.json` name."""

from autotune.contract import KnobValue
from autotune.engines.deepspeed.knobs.situation import (
    communicates,
    degree,
    elements_in_partition,
    gathered_elements,
    has_pipeline,
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


def _fold_optimizer(value: KnobValue, values: Knobs, _: Context) -> KnobValue:
    # Below stage 3 nothing swaps: the states stay on the host (stage_1_and_2.py: __init__).
    return "cpu" if value == "nvme" and values.get("zero.stage") != 3 else value


def _has_sub_groups(values: Knobs, context: Context) -> bool:
    # Whole ones go to one side or the other (stage3.py: _create_fp32_partitions).
    group = int(values.get("stage3.sub_group_size", 1))
    return group < elements_in_partition(values, context)


def _is_another(values: Knobs, context: Context) -> bool:
    return values["precision"] not in ("default", context.precision)


def _fold_dtype(value: KnobValue, values: Knobs, context: Context) -> KnobValue:
    # engine.py: get_data_types and communication_data_type answer the training precision where
    # none is set.
    return "model" if value == training_precision(values, context) else value


def _has_low_precision(values: Knobs, context: Context) -> bool:
    # BF16_Optimizer is not given it (engine.py: _configure_bf16_optimizer).
    return training_precision(values, context) != "fp32" and shards_gradients(values, context)


def _has_low_masters(values: Knobs, context: Context) -> bool:
    low = values.get("master_dtype", "fp32") == "model"
    is_bf16 = training_precision(values, context) == "bf16"
    return low and is_bf16 and _has_low_precision(values, context)


def _fold_prefetch(value: KnobValue, values: Knobs, context: Context) -> KnobValue:
    # The amount is min(max_live - live, prefetch), so more than max_live is max_live.
    # partitioned_param_coordinator.py: fetch_sub_module
    live = values.get("stage3.max_live_parameters", value)
    return min(int(value), int(live), gathered_elements(values, context))


def _fold_reuse(value: KnobValue, _: Knobs, context: Context) -> KnobValue:
    # A step visits every module in forward, in backward and, recomputed, once more between; tied
    # weights count at each of their two places. Beyond that nothing is left to look at. The same
    # bound with and without recomputation: else the default would seem to change with it.
    model = context.model
    tied = model.vocab * model.hidden if model.tied_embeddings else 0
    return min(int(value), 3 * (model.n_params_total + tied))


def _overlaps(values: Knobs, context: Context) -> bool:
    # Stage 3 only picks a stream with it (stage3.py: __init__), and a CPU has no streams
    # (cpu_accelerator.py: Stream). Stages 1 and 2 also double the bucket and, at stage 1, reduce
    # inside backward (stage_1_and_2.py: setup_buckets, process_gradients).
    if stage(values) == 3:
        return context.accelerator != "cpu"
    # A pipeline has none (engine.py: _configure_zero_optimizer).
    return shards_gradients(values, context) and not has_pipeline(values)


def _quantizes_gradients(values: Knobs, context: Context) -> bool:
    """Whether quantised gradients act: between nodes alone."""
    # Within a node it is plain reduce-scatter (stage3.py: __avg_scatter_grads); devices unknown:
    # no claim that it does nothing.
    nodes = context.world // context.n_devices if context.n_devices else 2
    return communicates(values, context) and nodes > 1


def _fold_chunk(value: KnobValue, values: Knobs, context: Context) -> KnobValue:
    # One chunk that holds all tokens of a rank is no chunking.
    tokens = int(values.get("micro_batch", 1)) * context.seq_len // degree(values, "sp")
    return 0 if tokens and int(value) >= tokens else value


def _fold_compile(value: KnobValue, values: Knobs, _: Context) -> KnobValue:
    # engine.py: get_deepcompile_backend falls back to the torch compiler at stage 0.
    return "torch" if value == "deepcompile" and values.get("zero.stage") == 0 else value
