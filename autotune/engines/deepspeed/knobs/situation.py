"""Effects of a choice of knobs on others: whether those act, and where they saturate.

Those with a leading underscore are named by rows of `knobs.json` alone.
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import accumulate, pairwise

from autotune.contract import KnobValue
from autotune.engines.deepspeed.bf16_optimizer import is_bf16_optimizer
from autotune.engines.deepspeed.mixtures import experts_elsewhere
from autotune.job.model_shape import ModelShape
from autotune.space.knob import Context, Knobs

ADAM = ("adam", "adamw")


def optimizer_implementation(params: object) -> str | None:
    """The value of `optimizer.implementation` that a user's `optimizer.params` chooses.

    Returns:
        None where they choose nothing, so that the default holds.
    """
    if not isinstance(params, Mapping) or params.get("torch_adam") is not True:
        return None
    return "torch_fused" if params.get("fused") is True else "torch"


def recompute_interval(recompute: object) -> int:
    """Every how many-th layer is recomputed; in a pipeline so many together. 0: none is."""
    text = str(recompute)
    if text.startswith("every_"):
        return int(text.removeprefix("every_"))
    return 1 if text == "full" else 0


def degree(values: Knobs, name: str) -> int:
    """A parallel degree; 1 where there is none."""
    return int(values.get(name, 1))


def stage(values: Knobs) -> int:
    """ZeRO stage."""
    return int(values.get("zero.stage", 0))


def training_precision(values: Knobs, context: Context) -> str:
    """The precision that a choice of knobs trains in: the job's, unless one is chosen."""
    chosen = str(values.get("precision", "default"))
    return context.precision if chosen == "default" else chosen


def has_pipeline(values: Knobs) -> bool:
    """Whether our own transformer is trained, stage by stage, and not Hugging Face's model."""
    return degree(values, "pp") > 1


def data_parallel(values: Knobs, context: Context) -> int:
    """Ranks that train the same parameters, and over which ZeRO shards, sharing samples or not."""
    return max(1, context.world // (degree(values, "tp") * degree(values, "pp")))


def communicates(values: Knobs, context: Context) -> bool:
    """Whether another rank has the same parameters; a reduction over one rank is a copy."""
    return data_parallel(values, context) > 1


def elements_per_rank(values: Knobs, context: Context) -> int:
    """Parameter elements that one rank trains; exact for tp=1, else not below the true number.

    In a pipeline they are those of the largest stage. AutoTP splits the linear layers inside the
    blocks (auto_tp.py: _replace). Embeddings, the head, norms and biases may stay whole, as do
    uneven heads and fused experts: they count whole.
    """
    held = _tensor_parallel_elements(values, context)
    if not has_pipeline(values):
        return held
    return min(held, max(size for size, _ in stages(context.model, degree(values, "pp"))))


def _tensor_parallel_elements(values: Knobs, context: Context) -> int:
    model, tp = context.model, degree(values, "tp")
    if model.n_experts:
        return model.n_params - experts_elsewhere(model, degree(values, "ep"))
    uneven = model.n_heads % tp or model.n_kv_heads % tp or model.ffn_hidden % tp
    if tp == 1 or uneven:
        return model.n_params
    tables = (1 if model.tied_embeddings else 2) * model.vocab + (model.max_seq_len or 0)
    vectors = model.n_layers * (16 * model.hidden + 4 * model.ffn_hidden)
    whole = min(model.n_params, tables * model.hidden + vectors)
    return whole + -(-(model.n_params - whole) // tp)


def gathered_elements(values: Knobs, context: Context) -> int:
    """Parameter elements that stage 3 gathers on a rank: frozen ones like all others."""
    return elements_per_rank(values, context) + context.model.n_params_frozen


def offloads_optimizer(values: Knobs) -> bool:
    """Whether optimizer states live on the host or a disk."""
    return values.get("offload.optimizer", "none") != "none"


def uses_bf16_optimizer(values: Knobs, context: Context) -> bool:
    """Whether a choice of knobs makes stage 1 the BF16_Optimizer."""
    return is_bf16_optimizer(
        stage=stage(values),
        precision=training_precision(values, context),
        grad_accum_dtype=str(values.get("grad_accum_dtype", "model")),
        optimizer_offload=str(values.get("offload.optimizer", "none")),
    )


def shards_gradients(values: Knobs, context: Context) -> bool:
    """Whether ZeRO's own buckets reduce the gradients."""
    return stage(values) > 0 and not uses_bf16_optimizer(values, context)


def is_contiguous(values: Knobs, _: Context) -> bool:
    """Whether gradients are copied into one bucket before they are reduced.

    Source: stage_1_and_2.py: __init__ forces it where the optimizer is offloaded.
    """
    forced = stage(values) < 3 and offloads_optimizer(values)
    return forced or bool(values.get("contiguous_gradients", True))


def fetches_parameters(values: Knobs, context: Context) -> bool:
    """Whether stage 3 gathers parameters, or copies them from the host or a disk.

    A group of one rank gathers nothing (partition_parameters.py: _no_gather_coalesced); what is
    left is the copy, which is none where the device is the host.
    """
    device = values.get("offload.param", "none")
    copies = device == "nvme" or (device == "cpu" and context.accelerator != "cpu")
    return data_parallel(values, context) > 1 or copies


def releases_parameters(values: Knobs, context: Context) -> bool:
    """Whether any parameter is fetched anew at each use.

    Persistent parameters are never released (partitioned_param_coordinator.py:
    __params_to_release): with all of them persistent there is nothing to fetch ahead.
    """
    if not fetches_parameters(values, context):
        return False
    threshold = values.get("stage3.param_persistence_threshold", 0)
    return int(threshold) < context.model.largest_param


def elements_in_partition(values: Knobs, context: Context) -> int:
    """Elements of all parameter partitions of a rank, not below the true figure.

    Every tensor is padded to a multiple of the ranks; 16 tensors per layer and 4 per expert are
    more than any architecture of transformers has.
    """
    model, dp = context.model, data_parallel(values, context)
    n_tensors = model.n_layers * (16 + 4 * model.n_experts) + 8
    padding = n_tensors if dp > 1 else 0
    return min(elements_per_rank(values, context), -(-model.n_params // dp) + padding)


def _fold_recompute(value: KnobValue, values: Knobs, context: Context) -> KnobValue:
    # Layers 0, K, 2K, ...: from K = n_layers on it is the first layer alone. In a pipeline K
    # layers of a stage together: from the longest stage's on, all of every stage.
    if not str(value).startswith("every_"):
        return value
    most = context.model.n_layers
    if has_pipeline(values):
        most = max(n_layers for _, n_layers in stages(context.model, degree(values, "pp")))
    every = min(recompute_interval(value), most)
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


@lru_cache(maxsize=256)
def stages(model: ModelShape, pp: int) -> tuple[tuple[int, int], ...]:
    """Parameters and layers of each stage.

    Stages differ as little as possible. Among all cuts of the first layers that end at a place,
    the one whose largest and smallest stage are closest goes on, among equals the latest. There
    are fewer than `pp` stages where there are fewer layers. Layers that cannot be seen are split
    evenly.

    Source: runtime/utils.py: partition_balanced.
    """
    if not model.n_layers:  # a script's own pipeline, whose layers cannot be seen
        return ((model.n_params // pp, 0),) * pp
    sizes = _layer_sizes(model)
    ends = _cuts(sizes, pp) if len(sizes) > pp else range(len(sizes) + 1)
    return tuple((sum(sizes[first:last]), last - first) for first, last in pairwise(ends))


def _layer_sizes(model: ModelShape) -> list[int]:
    """Parameters of each layer, as autotune/trial/scripts/transformer.py lists them."""
    table, has_positions = model.vocab * model.hidden, model.max_seq_len is not None
    positions = (model.max_seq_len or 0) * model.hidden
    norm = model.hidden * (2 if has_positions else 1)
    rest = table * (1 if model.tied_embeddings else 2) + positions + norm
    block = max(1, (model.n_params - rest) // model.n_layers)
    first = [table, positions] if has_positions else [table]
    last = [norm, table] if model.tied_embeddings else [norm + table]
    return [*first, *[block] * model.n_layers, *last]


def _cuts(sizes: list[int], pp: int) -> list[int]:
    """First layer of each stage, and the end of the last one."""
    n, total = len(sizes), [0, *accumulate(sizes)]
    # By place: the largest and the smallest stage before it, and where each of them ends.
    ways = {end: (total[end], total[end], [0, end]) for end in range(1, n + 1)}
    for n_stages in range(2, pp + 1):
        longer = {}
        for end in range(n_stages, n + 1):
            before = ((total[end] - total[cut], *ways[cut]) for cut in range(n_stages - 1, end))
            tried = [
                (max(size, most), min(size, least), cuts) for size, most, least, cuts in before
            ]
            most, least, cuts = min(reversed(tried), key=lambda way: way[0] - way[1])
            longer[end] = most, least, [*cuts, end]
        ways = longer
    return ways[n][2]
