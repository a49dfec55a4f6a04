"""Rules that calculate with arguments, or ask what is given and where it runs."""

from autotune.engines.launches.devices import too_few, visible_devices
from autotune.engines.megatron.argument_rules.making import (
    ARGUMENTS,
    CHUNKED,
    CONFIG,
    Answer,
    argument_rule,
    flag_name,
    is_on,
    rules_in,
)
from autotune.engines.megatron.launched import MegatronLaunch
from autotune.engines.megatron.stages import stages_of
from autotune.space.rule import Patch, UnknownFactError

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
ENDS = tuple(f"account_for_{end}_in_pipeline_split" for end in ("embedding", "loss"))
"""Switches by which embedding and loss count as layers."""
_END_SIZES = tuple(f"decoder_{end}_pipeline_num_layers" for end in ("first", "last"))
_FP8_FLAGS = (
    *("fp8", "fp8_recipe", "fp8_param_gather", "fp8_margin", "fp8_interval"),
    *("fp8_amax_history_len", "fp8_amax_compute_algo"),
)
_LARGEST_COUNT = 2**31 - 1
_DEGREES = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    *("expert_model_parallel_size", "expert_tensor_parallel_size"),
    *("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank"),
    "virtual_pipeline_model_parallel_size",
)
_COUNTS = (
    *_DEGREES,
    *("num_layers", "num_attention_heads", "num_query_groups", "hidden_size", "seq_length"),
    *("micro_batch_size", "global_batch_size"),
)
"""Arguments by which others are divided."""
_SIZES = (
    *_COUNTS,
    *("num_experts", "ffn_hidden_size", "max_position_embeddings"),
    *("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"),
    "cpu_offloading_num_layers",
)


@argument_rule("sizes.count", f"{ARGUMENTS}: world_size, by what divides it")
def _counts(launch: MegatronLaunch) -> Answer:
    """A degree or a size of the model that is below 1, or larger than any there is."""
    for name in _SIZES:
        value = launch.given[name].value if name in launch.given else None
        if value is None:
            continue
        flag = f"{flag_name(name)} {value}"
        change: Patch = {name: None} if name in _DEGREES else {}
        advice = "" if change else "give the model's"
        if value < 1 and name in _COUNTS:
            return f"{flag}: is below 1", change, advice
        if abs(value) > _LARGEST_COUNT:
            return f"{flag}: no model or cluster has so many", change, advice
    return None


_REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "seq_length")
_OLD = {"batch_size": "micro_batch_size", "model_parallel_size": "tensor_model_parallel_size"}
"""Argument of old -> the one in its place."""


@argument_rule("flags.old", f"{ARGUMENTS}: batch_size, model_parallel_size, warmup")
def _old_flags(launch: MegatronLaunch) -> Answer:
    """--batch-size, --model-parallel-size, --warmup or --checkpoint-activations."""
    for old, new in _OLD.items():
        if (value := launch.get(old)) is not None:
            return f"{flag_name(old)} is called {flag_name(new)} now", {old: None, new: value}
    if launch.get("warmup") is not None:
        return "--warmup is no longer taken", {"warmup": None}, "or set --lr-warmup-fraction"
    if is_on(launch, "checkpoint_activations"):
        return (
            "--checkpoint-activations is called --recompute-activations now",
            {"checkpoint_activations": None, "recompute_activations": True},
        )
    return None


@argument_rule("model.required", f"{ARGUMENTS}: required_args")
def _required(launch: MegatronLaunch) -> Answer:
    """No --num-layers, --hidden-size, --num-attention-heads or --seq-length."""
    either = {"num_layers": "encoder_num_layers", "seq_length": "encoder_seq_length"}
    missing = [
        name
        for name in _REQUIRED
        if launch.get(name) is None and launch.get(either.get(name, name)) is None
    ]
    if not missing:
        return None
    flags = " and ".join(map(flag_name, missing))
    return f"{flags}: missing, and without a default", {}, "give the model's"


@argument_rule("sequence.positions", f"{ARGUMENTS}: max_position_embeddings")
def _positions(launch: MegatronLaunch) -> Answer:
    """No --max-position-embeddings, or one below --seq-length."""
    length = launch.get("seq_length") or launch.get("encoder_seq_length")
    positions = launch.get("max_position_embeddings")
    if length is None or (positions or 0) >= length:
        return None
    problem = "is missing" if positions is None else f"{positions} is below --seq-length {length}"
    return f"--max-position-embeddings {problem}", {"max_position_embeddings": length}


@argument_rule("model.head_width", f"{ARGUMENTS}: kv_channels")
def _head_width(launch: MegatronLaunch) -> Answer:
    """--hidden-size is no multiple of --num-attention-heads, and no --kv-channels is given."""
    hidden, heads = launch.get("hidden_size"), launch.get("num_attention_heads")
    if not hidden or not heads or launch.get("kv_channels") is not None or hidden % heads == 0:
        return None
    return (
        f"--hidden-size {hidden} is no multiple of --num-attention-heads {heads}",
        {},
        "give --kv-channels, the width of a head, or other sizes",
    )


@argument_rule("model.kv_heads_unused", f"{ARGUMENTS}: group_query_attention", "ignored")
def _groups(launch: MegatronLaunch) -> Answer:
    """--num-query-groups without --group-query-attention: every head has its own key and value."""
    given = "num_query_groups" in launch.given
    is_latent = is_on(launch, "multi_latent_attention")
    if given and not is_latent and launch.get("group_query_attention") is False:
        return (
            "--num-query-groups counts only with --group-query-attention",
            {"group_query_attention": True},
        )
    return None


@argument_rule("fp8.device", "Transformer Engine: FP8 needs compute capability 8.9")
def _fp8_device(launch: MegatronLaunch) -> Answer:
    """--fp8-format on a GPU that computes nothing in fp8."""
    if launch.get("fp8") and launch.gpu and "fp8" not in launch.gpu_precisions:
        return (
            f"--fp8-format: the {launch.gpu} computes nothing in fp8",
            {name: None for name in _FP8_FLAGS if name in launch.given},
        )
    return None


@argument_rule("environment.connections", f"{ARGUMENTS}: CUDA_DEVICE_MAX_CONNECTIONS")
def _connections(launch: MegatronLaunch) -> Answer:
    """CUDA_DEVICE_MAX_CONNECTIONS that the file sets to another value than Megatron asks for."""
    value = launch.variables.get(CONNECTIONS)
    if value is None or "$" in value:
        return None
    for name in ("use_megatron_fsdp", "use_torch_fsdp2"):
        if is_on(launch, name):
            if value != "1":
                return None
            return (
                f"{flag_name(name)}: asks for a {CONNECTIONS} other than 1, and it is set to 1",
                {},
                f"set {CONNECTIONS} to 8, or leave it out",
            )
    if is_on(launch, "overlap_moe_expert_parallel_comm") or value == "1":
        return None
    if asks_for_connections(launch):
        return (
            f"tensor and context parallel ranks ask for {CONNECTIONS}=1 on GPUs before "
            f"Blackwell, and it is set to {value}",
            {},
            f"set {CONNECTIONS} to 1",
        )
    return None


@argument_rule("environment.visible_devices", "megatron/training/initialize.py: set_device")
def _visible(launch: MegatronLaunch) -> Answer:
    """CUDA_VISIBLE_DEVICES that leaves fewer devices than a node has ranks."""
    found = too_few(visible_devices(launch.variables), launch.per_node)
    return None if found is None else (found[0], {}, found[1])


def asks_for_connections(launch: MegatronLaunch) -> bool:
    """True if Megatron asks for CUDA_DEVICE_MAX_CONNECTIONS=1 on GPUs before Blackwell."""
    sharded = ("use_megatron_fsdp", "use_torch_fsdp2", "overlap_moe_expert_parallel_comm")
    try:
        splits = ("tensor_model_parallel_size", "context_parallel_size")
        is_split = any(launch.get(name) > 1 for name in splits)
        return is_split and not any(is_on(launch, argument) for argument in sharded)
    except UnknownFactError:
        return False


@argument_rule("vp.pipeline", f"{ARGUMENTS}: overlap_p2p_comm")
def _chunks_alone(launch: MegatronLaunch) -> Answer:
    """Interleaved chunks without a pipeline."""
    given = [name for name in CHUNKED if launch.get(name) is not None]
    pipeline = launch.get("pipeline_model_parallel_size")
    if len(given) != 1 or pipeline != 1 or chunks_of(launch) == 1:
        return None
    (name,) = given
    return (
        f"{flag_name(name)} interleaves chunks of a pipeline, and "
        "--pipeline-model-parallel-size is 1",
        {name: None},
        "or set --pipeline-model-parallel-size above 1",
    )


@argument_rule("vp.one_chunk", f"{ARGUMENTS}: virtual_pipeline_model_parallel_size", "ignored")
def _one_chunk(launch: MegatronLaunch) -> Answer:
    """One chunk a stage: Megatron runs the pipeline as if nobody had asked to interleave it."""
    given = [name for name in CHUNKED if launch.get(name) is not None]
    if len(given) != 1 or chunks_of(launch) != 1:
        return None
    (name,) = given
    smaller = "a smaller number" if name == CHUNKED[0] else "2 or more"
    return (
        f"{flag_name(name)} {launch.get(name)} makes one chunk a stage, which is not interleaved",
        {},
        f"remove it, or with a pipeline take {smaller}",
    )


def chunks_of(launch: MegatronLaunch) -> int | None:
    """Chunks of a pipeline rank; None where they are not even."""
    if (layout := launch.get("pipeline_model_parallel_layout")) is not None:
        stages = stages_of(str(layout))
        by_rank = len(stages or ()) / launch.get("pipeline_model_parallel_size")
        return int(by_rank) if by_rank >= 1 and by_rank.is_integer() else None
    by_layers, by_stages = (launch.get(name) for name in CHUNKED)
    if by_stages is not None or by_layers is None:
        return int(by_stages or 1)
    total, pp = launch.get("num_layers"), launch.get("pipeline_model_parallel_size")
    # Stages of their own size take no number of layers, which a rule of arguments says.
    if not total or any(launch.get(name) for name in _END_SIZES):
        return None
    n_chunks, rest = divmod(total + sum(is_on(launch, end) for end in ENDS), pp * by_layers)
    return None if rest else int(n_chunks)


@argument_rule("overlap.p2p", f"{ARGUMENTS}: overlap_p2p_comm")
def _two_stages(launch: MegatronLaunch) -> Answer:
    """--no-overlap-p2p-communication with interleaved chunks on two stages."""
    if launch.get("overlap_p2p_comm") is not False or (chunks_of(launch) or 1) == 1:
        return None
    if launch.get("pipeline_model_parallel_size") != 2:
        return None
    return (
        "--no-overlap-p2p-communication: with interleaved chunks and "
        "--pipeline-model-parallel-size 2 the same two ranks have two sends at a time",
        {"overlap_p2p_comm": None},
        "or set --pipeline-model-parallel-size above 2",
    )


@argument_rule("vp.chunk_layers", f"{ARGUMENTS}: num_layers_per_virtual_pipeline_stage")
def _chunk_layers(launch: MegatronLaunch) -> Answer:
    """--num-layers-per-virtual-pipeline-stage does not divide a stage, or stages differ."""
    size, total = launch.get(CHUNKED[0]), launch.get("num_layers")
    pp = launch.get("pipeline_model_parallel_size")
    if size is None or not total or pp < 2:
        return None
    if any(launch.get(name) is not None for name in _END_SIZES):
        return (
            f"{flag_name(CHUNKED[0])}: stages of their own size take {flag_name(CHUNKED[1])}",
            {CHUNKED[0]: None},
        )
    total += sum(is_on(launch, end) for end in ENDS)
    if total % pp:  # `pp.split` knows no number of chunks then
        return (
            f"{total} layers do not split evenly into --pipeline-model-parallel-size {pp} stages",
            {},
            f"take a pipeline that divides {total}",
        )
    stage = total // pp
    if stage % size == 0:
        return None
    sizes = [divisor for divisor in range(1, stage) if stage % divisor == 0] or [stage]
    nearest = min(sizes, key=lambda divisor: (abs(divisor - size), divisor))
    return (
        f"{flag_name(CHUNKED[0])} {size} does not divide the {stage} layers of a stage "
        f"({total} / --pipeline-model-parallel-size {pp})",
        {CHUNKED[0]: nearest},
    )


@argument_rule("pp.one_end", f"{ARGUMENTS}: account_for_embedding_in_pipeline_split")
def _one_end(launch: MegatronLaunch) -> Answer:
    """Layers that do not split evenly with the embedding or the loss as one of them."""
    counted = [name for name in ENDS if is_on(launch, name)]
    layers, pp = launch.get("num_layers"), launch.get("pipeline_model_parallel_size")
    is_sized = any(launch.get(name) for name in (*_END_SIZES, "pipeline_model_parallel_layout"))
    if len(counted) != 1 or not layers or is_sized:
        return None
    chunks = pp * (launch.get(CHUNKED[1]) or 1)
    if (layers + 1) % chunks == 0:
        return None
    change: Patch = {counted[0]: None}
    if layers % chunks:
        other = next(name for name in ENDS if name not in counted)
        change = {other: True} if (layers + 2) % chunks == 0 else {}
    return (
        f"{layers} layers and {flag_name(counted[0])} make {layers + 1}, which is no multiple of "
        f"{chunks} chunks",
        change,
        "" if change else "take a pipeline that divides them",
    )


@argument_rule("recompute.full_method", f"{CONFIG}: recompute_method")
def _full_method(launch: MegatronLaunch) -> Answer:
    """--recompute-granularity full without a method or a number of layers."""
    if launch.get("recompute_granularity") != "full" or is_on(launch, "recompute_activations"):
        return None
    missing = _missing(launch)
    if not missing:
        return None
    flags = " and ".join(map(flag_name, missing))
    return f"--recompute-granularity full: needs {flags}", missing


def _missing(launch: MegatronLaunch) -> Patch:
    """What full recomputation lacks."""
    needed = {"recompute_method": "uniform", "recompute_num_layers": 1}
    return {name: value for name, value in needed.items() if launch.get(name) is None}


@argument_rule("recompute.one_way", f"{ARGUMENTS}: recompute_activations", "ignored")
def _one_way(launch: MegatronLaunch) -> Answer:
    """--recompute-activations, which means selective, beside --recompute-granularity full."""
    is_full = launch.get("recompute_granularity") == "full"
    if not (is_full and is_on(launch, "recompute_activations")) or len(_missing(launch)) < 2:
        return None  # with a method it is refused
    return (
        "--recompute-granularity full: --recompute-activations makes it selective",
        {},
        "remove one of the two",
    )


@argument_rule("recompute.selective_method", f"{CONFIG}: recompute_granularity")
def _selective_method(launch: MegatronLaunch) -> Answer:
    """--recompute-granularity selective with a method or a number of layers."""
    is_selective = launch.get("recompute_granularity") == "selective"
    if not (is_selective or launch.get("recompute_activations")):
        return None
    names = ("recompute_method", "recompute_num_layers")
    given = [name for name in names if launch.get(name) is not None]
    if not given:
        return None
    flags = " and ".join(map(flag_name, given))
    if launch.get("recompute_granularity") == "full":
        return (
            "--recompute-activations makes --recompute-granularity full selective, which takes "
            f"no {flags}",
            {"recompute_activations": None, **_missing(launch)},
        )
    return (
        f"--recompute-granularity selective takes no {flags}: that is for full recomputation",
        dict.fromkeys(given),
    )


@argument_rule("schedule.lr", f"{ARGUMENTS}: min_lr")
def _learning_rate(launch: MegatronLaunch) -> Answer:
    """--min-lr above --lr."""
    rate, least = launch.get("lr"), launch.get("min_lr") or 0.0
    if rate is not None and least > rate:
        return f"--min-lr {least} is above --lr {rate}", {"min_lr": rate}
    return None


@argument_rule("data.one_source", f"{ARGUMENTS}: mock_data, data_path")
def _data(launch: MegatronLaunch) -> Answer:
    """More than one of --mock-data, --data-path and the paths by split."""
    by_split = ("train_data_path", "valid_data_path", "test_data_path")
    # What a path is may be the shell's to know; that it is given counts.
    named = launch.given.keys() | launch.unknown
    sources: list[str] = [name for name in ("data_path", "mock_data") if name in named]
    sources += [name for name in by_split if name in named][:1]
    if len(sources) < 2:
        return None
    flags = " and ".join(map(flag_name, sources))
    removed = "mock_data" if "mock_data" in sources else sources[-1]
    return f"{flags}: a run has one source of data", {removed: None}


RULES = rules_in(globals())
