"""Rules of arguments of Megatron-LM beside one another: its own checks, before any layout.

Each rule names the function of NVIDIA/Megatron-LM that checks it (the main branch at Megatron Core
0.20, unless it says more), and the change that makes it legal. `_needs` and `_excludes` make the
rules that many arguments share; the others are functions.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from autotune.engines.megatron.flags import flags, is_flag_of_any, newest_release
from autotune.engines.megatron.launched import MegatronLaunch
from autotune.space.rule import Consequence, Finding, Patch, Rule, UnknownFactError

_ARGUMENTS = "megatron/training/arguments.py, validate_args"
_CONFIG = "megatron/core/transformer/transformer_config.py, __post_init__"
_OPTIMIZER = "megatron/core/optimizer/optimizer_config.py, __post_init__"
_PARALLEL = "megatron/core/model_parallel_config.py, __post_init__"
_FLAG = re.compile(r"--([a-z0-9-]+)")
Answer = tuple[str, Patch] | tuple[str, Patch, str] | None
"""What is wrong, the change that mends it, and advice where somebody has to choose."""


def _rule(
    name: str, source: str, consequence: Consequence = "raised"
) -> Callable[[Callable[[MegatronLaunch], Answer]], Rule[MegatronLaunch]]:
    """A rule of a function that gives what is wrong, or nothing for a legal launch."""

    def of(asked: Callable[[MegatronLaunch], Answer]) -> Rule[MegatronLaunch]:
        return _made(name, source, " ".join((asked.__doc__ or "").split()), asked, consequence)

    return of


def _made(
    name: str,
    source: str,
    says: str,
    asked: Callable[[MegatronLaunch], Answer],
    consequence: Consequence = "raised",
) -> Rule[MegatronLaunch]:
    def check(launch: MegatronLaunch) -> Finding | None:
        answer = asked(launch)
        if answer is None:
            return None
        message, changes, advice = (*answer, "")[:3]
        words = " and ".join(in_words(name, value) for name, value in changes.items())
        named = (flag.replace("-", "_") for flag in _FLAG.findall(message))
        at = tuple(each for each in (*named, *changes) if each in launch.given)
        return Finding(
            message=message,
            changes=changes,
            words=words,
            advice=advice,
            at=at,
            consequence=consequence,
        )

    return Rule(name=name, check=check, witnesses=(), source=source, says=says)


def in_words(name: str, value: Any) -> str:
    """A change of one argument, in words."""
    if value is None:
        return f"remove {flag_name(name)}"
    flag = flag_name(name)
    return f"add {flag}" if isinstance(value, bool) else f"set {flag} to {as_word(value)}"


@cache
def flag_name(argument: str) -> str:
    """An argument as it is written on a command line."""
    own = f"--{argument.replace('_', '-')}"
    if is_flag_of_any(own):
        return own
    known = flags(newest_release()).values()
    return next((flag.name for flag in known if flag.argument == argument), own)


def as_word(value: Any) -> str:
    """A value as it is written on a command line."""
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _is_on(launch: MegatronLaunch, argument: str) -> bool:
    return bool(launch.get(argument))


def _needs(
    name: str,
    asked: str,
    needed: Sequence[str],
    source: str = _ARGUMENTS,
    *,
    removes: bool = False,
    before: str = "",
) -> Rule[MegatronLaunch]:
    """A switch that needs one of others.

    Args:
        name: The rule's.
        asked: The switch.
        needed: Of which one has to be on; the first is added.
        source: Where Megatron checks it.
        removes: Whether the switch goes, instead of the needed one coming.
        before: First release that asks no longer for it; empty: all do.
    """
    others = " or ".join(map(flag_name, needed))

    def check(launch: MegatronLaunch) -> Answer:
        if before and not _is_before(launch.release, before):
            return None
        if not _is_on(launch, asked) or any(_is_on(launch, each) for each in needed):
            return None
        change: Patch = {asked: None} if removes else {needed[0]: True}
        return f"{flag_name(asked)}: needs {others}", change

    says = f"{flag_name(asked)} without {others}."
    return _made(name, f"{source}: {asked}", says, check)


def _excludes(
    name: str, kept: str, removed: str, why: str, source: str = _ARGUMENTS
) -> Rule[MegatronLaunch]:
    """Two switches that are not both on; the second goes."""

    def check(launch: MegatronLaunch) -> Answer:
        if _is_on(launch, kept) and _is_on(launch, removed):
            return f"{flag_name(kept)} and {flag_name(removed)}: {why}", {removed: None}
        return None

    says = f"{flag_name(kept)} beside {flag_name(removed)}."
    return _made(name, f"{source}: {kept}", says, check)


def _is_before(release: str, other: str) -> bool:
    return tuple(map(int, release.split("."))) < tuple(map(int, other.split(".")))


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
)
"""Arguments by which others are divided."""
_SIZES = (
    *_COUNTS,
    *("micro_batch_size", "global_batch_size", "num_experts", "ffn_hidden_size"),
    *("max_position_embeddings", "decoder_first_pipeline_num_layers"),
    *("decoder_last_pipeline_num_layers", "cpu_offloading_num_layers"),
)


@_rule("sizes.count", f"{_ARGUMENTS}: world_size, by what divides it")
def _counts(launch: MegatronLaunch) -> Answer:
    """A degree or a size of the model that is below 1, or larger than any there is."""
    for name in _SIZES:
        value = launch.given[name].value if name in launch.given else None
        if value is None:
            continue
        said = f"{flag_name(name)} {value}"
        change: Patch = {name: None} if name in _DEGREES else {}
        advice = "" if change else "give the model's"
        if value < 1 and name in _COUNTS:
            return f"{said}: is below 1", change, advice
        if abs(value) > _LARGEST_COUNT:
            return f"{said}: no model or cluster has so many", change, advice
    return None


@_rule("precision.one", f"{_ARGUMENTS}: args.fp16, args.bf16")
def _one_precision(launch: MegatronLaunch) -> Answer:
    """--fp16 and --bf16 are both given."""
    if launch.get("fp16") and launch.get("bf16"):
        return "--fp16 and --bf16: a run has one precision", {"fp16": None}
    return None


@_rule("overlap.needs_sharding", f"{_ARGUMENTS}: overlap_param_gather")
def _gather_needs_sharding(launch: MegatronLaunch) -> Answer:
    """--overlap-param-gather without the distributed optimizer or Megatron's FSDP."""
    sharded = launch.get("use_distributed_optimizer") or launch.get("use_megatron_fsdp")
    if launch.get("overlap_param_gather") and not sharded:
        return (
            "--overlap-param-gather: without --use-distributed-optimizer no parameters are "
            "gathered",
            {"use_distributed_optimizer": True},
        )
    return None


@_rule("overlap.gather_needs_reduce", f"{_ARGUMENTS}: overlap_param_gather")
def _gather_needs_reduce(launch: MegatronLaunch) -> Answer:
    """--overlap-param-gather without --overlap-grad-reduce."""
    if launch.get("overlap_param_gather") and not launch.get("overlap_grad_reduce"):
        return (
            "--overlap-param-gather: needs --overlap-grad-reduce",
            {"overlap_grad_reduce": True},
        )
    return None


@_rule("overlap.with_optimizer_step", f"{_ARGUMENTS}: overlap_param_gather_with_optimizer_step")
def _gather_with_step(launch: MegatronLaunch) -> Answer:
    """--overlap-param-gather-with-optimizer-step without --overlap-param-gather."""
    asked = launch.get("overlap_param_gather_with_optimizer_step")
    if asked and not launch.get("overlap_param_gather"):
        return (
            "--overlap-param-gather-with-optimizer-step: needs --overlap-param-gather",
            {"overlap_param_gather_with_optimizer_step": None},
        )
    return None


@_rule("overlap.tp_needs_sequence_parallel", f"{_ARGUMENTS}: tp_comm_overlap")
def _tp_overlap(launch: MegatronLaunch) -> Answer:
    """--tp-comm-overlap without --sequence-parallel."""
    is_on = launch.get("sequence_parallel") and launch.get("tensor_model_parallel_size") > 1
    if launch.get("tp_comm_overlap") and not is_on:
        change: Patch = {"sequence_parallel": True}
        if launch.get("tensor_model_parallel_size") == 1:
            change = {"tp_comm_overlap": None}
        return "--tp-comm-overlap: overlaps what --sequence-parallel sends", change
    return None


@_rule("sequence_parallel.tp", f"{_ARGUMENTS}: sequence_parallel", "ignored")
def _sequence_parallel(launch: MegatronLaunch) -> Answer:
    """--sequence-parallel with one tensor parallel rank: Megatron turns it off."""
    if launch.get("sequence_parallel") and launch.get("tensor_model_parallel_size") == 1:
        return (
            "--sequence-parallel splits over the tensor parallel ranks, and "
            "--tensor-model-parallel-size is 1",
            {"sequence_parallel": None},
        )
    return None


@_rule("recompute.full_method", f"{_CONFIG}: recompute_method")
def _full_method(launch: MegatronLaunch) -> Answer:
    """--recompute-granularity full without a method or a number of layers."""
    if launch.get("recompute_granularity") != "full":
        return None
    missing = {
        name: value
        for name, value in (("recompute_method", "uniform"), ("recompute_num_layers", 1))
        if launch.get(name) is None
    }
    if not missing:
        return None
    flags = " and ".join(f"--{name.replace('_', '-')}" for name in missing)
    return f"--recompute-granularity full: needs {flags}", missing


@_rule("recompute.selective_method", f"{_CONFIG}: recompute_granularity")
def _selective_method(launch: MegatronLaunch) -> Answer:
    """--recompute-granularity selective with a method or a number of layers."""
    is_selective = launch.get("recompute_granularity") == "selective"
    if not (is_selective or launch.get("recompute_activations")):
        return None
    names = ("recompute_method", "recompute_num_layers")
    given = [name for name in names if launch.get(name) is not None]
    if not given:
        return None
    flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
    return (
        f"--recompute-granularity selective takes no {flags}: that is for full recomputation",
        dict.fromkeys(given),
    )


@_rule("recompute.saved_by_sequence", f"{_CONFIG}: distribute_saved_activations")
def _saved_activations(launch: MegatronLaunch) -> Answer:
    """--distribute-saved-activations with --sequence-parallel."""
    if launch.get("distribute_saved_activations") and launch.get("sequence_parallel"):
        return (
            "--distribute-saved-activations: --sequence-parallel splits them already",
            {"distribute_saved_activations": None},
        )
    return None


@_rule("vp.one_way", f"{_ARGUMENTS}: num_virtual_stages_per_pipeline_rank")
def _one_way_to_interleave(launch: MegatronLaunch) -> Answer:
    """Both ways to say how a pipeline is interleaved."""
    by_layers = launch.get("num_layers_per_virtual_pipeline_stage")
    if by_layers is not None and launch.get("num_virtual_stages_per_pipeline_rank") is not None:
        return (
            "--num-layers-per-virtual-pipeline-stage and --num-virtual-stages-per-pipeline-rank "
            "say the same in two ways, and Megatron takes one",
            {"num_layers_per_virtual_pipeline_stage": None},
        )
    return None


@_rule("optimizer_offload.precision_aware", f"{_ARGUMENTS}: optimizer_cpu_offload")
def _offload(launch: MegatronLaunch) -> Answer:
    """--optimizer-cpu-offload without --use-precision-aware-optimizer."""
    if launch.get("optimizer_cpu_offload") and not launch.get("use_precision_aware_optimizer"):
        return (
            "--optimizer-cpu-offload: needs --use-precision-aware-optimizer",
            {"use_precision_aware_optimizer": True},
        )
    return None


@_rule("experts.none", f"{_ARGUMENTS}: expert_model_parallel_size")
def _no_experts(launch: MegatronLaunch) -> Answer:
    """--expert-model-parallel-size above 1 for a model without experts."""
    if launch.get("expert_model_parallel_size") > 1 and launch.get("num_experts") is None:
        return (
            "--expert-model-parallel-size spreads experts, and --num-experts gives none",
            {"expert_model_parallel_size": None},
        )
    return None


@_rule("fsdp.pipeline", f"{_ARGUMENTS}: use_torch_fsdp2")
def _fsdp_pipeline(launch: MegatronLaunch) -> Answer:
    """--use-torch-fsdp2 with a pipeline."""
    if launch.get("use_torch_fsdp2") and launch.get("pipeline_model_parallel_size") > 1:
        return (
            "--use-torch-fsdp2: shards no pipeline",
            {"pipeline_model_parallel_size": 1},
        )
    return None


@_rule("fsdp.optimizer", f"{_ARGUMENTS}: use_torch_fsdp2")
def _fsdp_optimizer(launch: MegatronLaunch) -> Answer:
    """--use-torch-fsdp2 with the distributed optimizer."""
    if launch.get("use_torch_fsdp2") and launch.get("use_distributed_optimizer"):
        return (
            "--use-torch-fsdp2: shards the optimizer by itself, and refuses "
            "--use-distributed-optimizer",
            {"use_distributed_optimizer": None},
        )
    return None


_REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "seq_length")
_OLD = {"batch_size": "micro_batch_size", "model_parallel_size": "tensor_model_parallel_size"}
"""Argument of old -> the one in its place."""


@_rule("flags.old", f"{_ARGUMENTS}: batch_size, model_parallel_size, warmup")
def _old_flags(launch: MegatronLaunch) -> Answer:
    """--batch-size, --model-parallel-size, --warmup or --checkpoint-activations."""
    for old, new in _OLD.items():
        if (value := launch.get(old)) is not None:
            return f"{flag_name(old)} is called {flag_name(new)} now", {old: None, new: value}
    if launch.get("warmup") is not None:
        return "--warmup is no longer taken", {"warmup": None}, "or set --lr-warmup-fraction"
    if _is_on(launch, "checkpoint_activations"):
        return (
            "--checkpoint-activations is called --recompute-activations now",
            {"checkpoint_activations": None, "recompute_activations": True},
        )
    return None


@_rule("model.required", f"{_ARGUMENTS}: required_args")
def _required(launch: MegatronLaunch) -> Answer:
    """No --num-layers, --hidden-size, --num-attention-heads or --seq-length."""
    if launch.is_yaml:
        return None  # it has no defaults at all, and its reader says what is missing
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


@_rule("sequence.positions", f"{_ARGUMENTS}: max_position_embeddings")
def _positions(launch: MegatronLaunch) -> Answer:
    """No --max-position-embeddings, or one below --seq-length."""
    length = launch.get("seq_length") or launch.get("encoder_seq_length")
    positions = launch.get("max_position_embeddings")
    is_missing = positions is None and not launch.is_yaml
    if length is None or not (is_missing or (positions or length) < length):
        return None
    said = "is missing" if positions is None else f"{positions} is below --seq-length {length}"
    return f"--max-position-embeddings {said}", {"max_position_embeddings": length}


@_rule("model.head_width", f"{_ARGUMENTS}: kv_channels")
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


@_rule("model.kv_heads_unused", f"{_ARGUMENTS}: group_query_attention", "ignored")
def _groups(launch: MegatronLaunch) -> Answer:
    """--num-query-groups without --group-query-attention: every head has its own key and value."""
    given = "num_query_groups" in launch.given and not launch.is_yaml
    is_latent = _is_on(launch, "multi_latent_attention")
    if given and not is_latent and launch.get("group_query_attention") is False:
        return (
            "--num-query-groups counts only with --group-query-attention",
            {"group_query_attention": True},
        )
    return None


@_rule("model.latent_attention", f"{_ARGUMENTS}: multi_latent_attention")
def _latent(launch: MegatronLaunch) -> Answer:
    """From 0.16 on: --multi-latent-attention with --group-query-attention."""
    if _is_before(launch.release, "0.16"):
        return None
    if _is_on(launch, "multi_latent_attention") and _is_on(launch, "group_query_attention"):
        return (
            "--multi-latent-attention has no groups of queries: --group-query-attention",
            {"group_query_attention": None},
        )
    return None


@_rule("model.position_embedding", f"{_ARGUMENTS}: add_position_embedding")
def _position_embedding(launch: MegatronLaunch) -> Answer:
    """--no-position-embedding with another position embedding than rope."""
    kind = launch.get("position_embedding_type")
    if _is_on(launch, "use_rotary_position_embeddings"):
        kind = "rope"
    if launch.get("add_position_embedding") is False and kind != "rope":
        return (
            "--no-position-embedding: says what --position-embedding-type says now",
            {"add_position_embedding": None},
            "and set --position-embedding-type to none, if that is meant",
        )
    return None


@_rule("model.more_tokens", f"{_ARGUMENTS}: mtp_num_layers")
def _multi_token(launch: MegatronLaunch) -> Answer:
    """--mtp-num-layers with another position embedding than rope or none."""
    kind = launch.get("position_embedding_type")
    if _is_on(launch, "mtp_num_layers") and kind not in ("rope", "none"):
        if _is_on(launch, "use_rotary_position_embeddings"):
            return None
        return (
            f"--mtp-num-layers: takes no --position-embedding-type {kind}",
            {"position_embedding_type": "rope"},
        )
    return None


_BY_ITERS = ("lr_decay_iters", "lr_warmup_iters")
_BY_SAMPLES = ("lr_decay_samples", "lr_warmup_samples", "rampup_batch_size")


@_rule("schedule.iters", f"{_ARGUMENTS}: train_iters")
def _iterations(launch: MegatronLaunch) -> Answer:
    """--train-iters with --train-samples, or with a schedule that is counted in samples."""
    if not launch.get("train_iters"):
        return None
    if launch.get("train_samples") is not None:
        return "--train-iters and --train-samples: a run has one length", {"train_samples": None}
    return _other_count(launch, "train_iters", _BY_SAMPLES)


@_rule("schedule.samples", f"{_ARGUMENTS}: train_samples")
def _samples(launch: MegatronLaunch) -> Answer:
    """--train-samples with a schedule that is counted in steps."""
    if not launch.get("train_samples") or launch.get("train_iters"):
        return None
    return _other_count(launch, "train_samples", _BY_ITERS)


def _other_count(launch: MegatronLaunch, length: str, others: Sequence[str]) -> Answer:
    wrong = [name for name in others if launch.get(name)]
    if not wrong:
        return None
    flags = " and ".join(map(flag_name, wrong))
    unit = "steps" if length == "train_iters" else "samples"
    advice = f"or give them in {unit}"
    if "rampup_batch_size" in wrong:
        advice = "or count the run by --train-samples"
    message = f"{flags}: {flag_name(length)} counts the run in {unit}"
    return message, dict.fromkeys(wrong), advice


@_rule("schedule.warmup", f"{_ARGUMENTS}: lr_warmup_fraction")
def _warmup(launch: MegatronLaunch) -> Answer:
    """--lr-warmup-fraction with --lr-warmup-iters or --lr-warmup-samples."""
    if launch.get("lr_warmup_fraction") is None:
        return None
    other = "lr_warmup_samples" if launch.get("train_samples") else "lr_warmup_iters"
    if launch.get(other):
        return f"--lr-warmup-fraction and {flag_name(other)}: give one", {other: None}
    return None


@_rule("schedule.lr", f"{_ARGUMENTS}: min_lr")
def _learning_rate(launch: MegatronLaunch) -> Answer:
    """--min-lr above --lr."""
    rate, least = launch.get("lr"), launch.get("min_lr") or 0.0
    if rate is not None and least > rate:
        return f"--min-lr {least} is above --lr {rate}", {"min_lr": rate}
    return None


@_rule("schedule.weight_decay", f"{_ARGUMENTS}: weight_decay_incr_style")
def _weight_decay(launch: MegatronLaunch) -> Answer:
    """--start-weight-decay or --end-weight-decay without a style, or a style without them."""
    style = launch.get("weight_decay_incr_style")
    given = [
        name for name in ("start_weight_decay", "end_weight_decay") if launch.get(name) is not None
    ]
    if style == "constant" and given:
        flags = " and ".join(map(flag_name, given))
        return f"{flags}: --weight-decay-incr-style is constant", dict.fromkeys(given)
    if style not in (None, "constant") and len(given) < 2:
        return (
            f"--weight-decay-incr-style {style}: needs --start-weight-decay and "
            "--end-weight-decay",
            {"weight_decay_incr_style": None, **dict.fromkeys(given)},
        )
    return None


@_rule("checkpoint.interval", f"{_ARGUMENTS}: save_interval")
def _save_interval(launch: MegatronLaunch) -> Answer:
    """--save without --save-interval."""
    if launch.get("save") is not None and not launch.get("save_interval"):
        return "--save: needs --save-interval", {"save_interval": 1000}, "or another number"
    return None


@_rule("checkpoint.format", f"{_ARGUMENTS}: ckpt_format")
def _format(launch: MegatronLaunch) -> Answer:
    """A --ckpt-format that belongs to another way of sharding."""
    kind = launch.get("ckpt_format")
    if _is_on(launch, "use_megatron_fsdp") and kind != "fsdp_dtensor":
        return (
            f"--use-megatron-fsdp: saves no --ckpt-format {kind}",
            {"ckpt_format": "fsdp_dtensor"},
        )
    if _is_on(launch, "use_torch_fsdp2") and kind not in ("torch_dist", "torch_dcp"):
        return f"--use-torch-fsdp2: saves no --ckpt-format {kind}", {"ckpt_format": "torch_dist"}
    owners = {"fsdp_dtensor": "use_megatron_fsdp", "torch_dcp": "use_torch_fsdp2"}
    owner = owners.get(str(kind))
    if owner is not None and not _is_on(launch, owner):
        return f"--ckpt-format {kind}: is that of {flag_name(owner)}", {"ckpt_format": None}
    return None


@_rule("data.one_source", f"{_ARGUMENTS}: mock_data, data_path")
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


@_rule("batch.micro", f"{_ARGUMENTS}: micro_batch_size")
def _micro_batch(launch: MegatronLaunch) -> Answer:
    """No --micro-batch-size, or a batch below 1."""
    size = launch.get("micro_batch_size")
    if size is None and launch.get("batch_size") is None:
        return "--micro-batch-size is missing, and has no default", {"micro_batch_size": 1}
    for name in ("micro_batch_size", "global_batch_size"):
        value = launch.get(name)
        if value is not None and value < 1:
            return f"{flag_name(name)} {value} is below 1", {name: 1}
    return None


@_rule("precision.residual", f"{_ARGUMENTS}: fp32_residual_connection")
def _residual(launch: MegatronLaunch) -> Answer:
    """--fp32-residual-connection without --fp16 or --bf16."""
    if _is_on(launch, "fp32_residual_connection") and not (
        _is_on(launch, "fp16") or _is_on(launch, "bf16")
    ):
        return (
            "--fp32-residual-connection: a run in fp32 has it anyway",
            {"fp32_residual_connection": None},
        )
    return None


@_rule("fp8.params", f"{_CONFIG}: fp8_param")
def _fp8_params(launch: MegatronLaunch) -> Answer:
    """--fp8-param-gather without --fp8-format, or without anything that shards parameters."""
    gathers = _is_on(launch, "fp8_param_gather")
    if gathers and not launch.get("fp8"):
        return "--fp8-param-gather: needs --fp8-format", {"fp8_param_gather": None}
    sharded = ("use_distributed_optimizer", "use_megatron_fsdp", "use_torch_fsdp2")
    if gathers and not any(_is_on(launch, each) for each in sharded):
        return (
            "--fp8-param-gather: without --use-distributed-optimizer or an FSDP no parameters "
            "are gathered",
            {"use_distributed_optimizer": True},
        )
    return None


@_rule("fp8.first_last", f"{_CONFIG}: first_last_layers_bf16")
def _first_last(launch: MegatronLaunch) -> Answer:
    """--first-last-layers-bf16 with the delayed recipe."""
    if (
        launch.get("fp8")
        and _is_on(launch, "first_last_layers_bf16")
        and launch.get("fp8_recipe") == "delayed"
    ):
        return (
            "--first-last-layers-bf16: --fp8-recipe delayed has all layers in fp8",
            {"first_last_layers_bf16": None},
            "or take another --fp8-recipe",
        )
    return None


@_rule("recompute.saved_alone", f"{_ARGUMENTS}: distribute_saved_activations")
def _saved_alone(launch: MegatronLaunch) -> Answer:
    """--distribute-saved-activations without tensor parallel ranks or full recomputation."""
    if not _is_on(launch, "distribute_saved_activations"):
        return None
    if launch.get("tensor_model_parallel_size") == 1:
        said = "splits over the tensor parallel ranks, and --tensor-model-parallel-size is 1"
    elif launch.get("recompute_granularity") != "full" or _is_on(launch, "recompute_activations"):
        said = "splits what --recompute-granularity full saves"
    else:
        return None
    return f"--distribute-saved-activations: {said}", {"distribute_saved_activations": None}


_RECOMPUTED = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")


@_rule("recompute.modules", f"{_CONFIG}: recompute_modules")
def _recompute_modules(launch: MegatronLaunch) -> Answer:
    """--recompute-modules that the model or fp8's recipe lacks."""
    modules = launch.get("recompute_modules")
    is_selective = launch.get("recompute_granularity") == "selective"
    if not modules or not (is_selective or _is_on(launch, "recompute_activations")):
        return None
    reasons = {
        "moe_act": (not _is_on(launch, "moe_grouped_gemm"), "needs --moe-grouped-gemm"),
        "mla_up_proj": (
            not _is_on(launch, "multi_latent_attention"),
            "needs --multi-latent-attention",
        ),
        "shared_experts": (
            launch.get("moe_shared_expert_intermediate_size") is not None
            and _is_on(launch, "moe_shared_expert_overlap"),
            "does not go with --moe-shared-expert-overlap",
        ),
    }
    is_delayed = bool(launch.get("fp8")) and launch.get("fp8_recipe") == "delayed"
    for module in modules:
        clashes, why = reasons.get(module, (False, ""))
        if module not in _RECOMPUTED and _is_before(launch.release, "0.17"):
            clashes, why = True, f"is none of {', '.join(_RECOMPUTED)}"
        elif module in ("moe_act", "layernorm") and is_delayed and not clashes:
            clashes, why = True, "is not recomputed with --fp8-recipe delayed"
        if clashes:
            left = [each for each in modules if each != module]
            return f"--recompute-modules {module}: {why}", {"recompute_modules": left or None}
    return None


@_rule("vp.pipeline", f"{_ARGUMENTS}: overlap_p2p_comm")
def _chunks_alone(launch: MegatronLaunch) -> Answer:
    """Interleaved chunks without a pipeline."""
    given = [name for name in _CHUNKED if launch.get(name) is not None]
    pipeline = launch.get("pipeline_model_parallel_size")
    if len(given) != 1 or pipeline != 1:
        return None
    (name,) = given
    layers = launch.get("num_layers")
    n_chunks = launch.get(name) if name == _CHUNKED[1] else (layers or 0) // launch.get(name)
    if n_chunks == 1:
        return None
    return (
        f"{flag_name(name)} interleaves chunks of a pipeline, and "
        "--pipeline-model-parallel-size is 1",
        {name: None},
        "or set --pipeline-model-parallel-size above 1",
    )


_CHUNKED = ("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank")


@_rule("vp.chunk_layers", f"{_ARGUMENTS}: num_layers_per_virtual_pipeline_stage")
def _chunk_layers(launch: MegatronLaunch) -> Answer:
    """--num-layers-per-virtual-pipeline-stage does not divide the layers of a stage."""
    size, total = launch.get(_CHUNKED[0]), launch.get("num_layers")
    pp = launch.get("pipeline_model_parallel_size")
    if size is None or not total or pp < 2:
        return None
    ends = [f"decoder_{end}_pipeline_num_layers" for end in ("first", "last")]
    if any(launch.get(name) is not None for name in ends):
        return (
            f"{flag_name(_CHUNKED[0])}: stages of their own size take {flag_name(_CHUNKED[1])}",
            {_CHUNKED[0]: None},
        )
    total += _is_on(launch, "account_for_embedding_in_pipeline_split")
    total += _is_on(launch, "account_for_loss_in_pipeline_split")
    if total % pp:
        return None  # `pp.split` says it
    stage = total // pp
    if stage % size == 0:
        return None
    sizes = [each for each in range(1, stage) if stage % each == 0] or [stage]
    nearest = min(sizes, key=lambda each: (abs(each - size), each))
    return (
        f"{flag_name(_CHUNKED[0])} {size} does not divide the {stage} layers of a stage "
        f"({total} / --pipeline-model-parallel-size {pp})",
        {_CHUNKED[0]: nearest},
    )


@_rule("pp.layout", f"{_CONFIG}: pipeline_model_parallel_layout")
def _layout(launch: MegatronLaunch) -> Answer:
    """--pipeline-model-parallel-layout beside another way to place layers."""
    layout = launch.get("pipeline_model_parallel_layout")
    if layout is None:
        return None
    others = (
        *_CHUNKED,
        *(f"decoder_{end}_pipeline_num_layers" for end in ("first", "last")),
        *(f"account_for_{end}_in_pipeline_split" for end in ("embedding", "loss")),
    )
    wrong = [name for name in others if launch.get(name)]
    if wrong:
        flags = " and ".join(map(flag_name, wrong))
        return f"{flags}: --pipeline-model-parallel-layout places all layers", dict.fromkeys(wrong)
    stages = _stages(layout)
    pp, layers = launch.get("pipeline_model_parallel_size"), launch.get("num_layers")
    if stages is None:
        return None
    if len(stages) % pp:
        return (
            f"--pipeline-model-parallel-layout has {len(stages)} stages, no multiple of "
            f"--pipeline-model-parallel-size {pp}",
            {},
            "add or join stages, which | separates",
        )
    n_placed = sum(stage.count("t") for stage in stages)
    if layers and n_placed != layers:
        return (
            f"--pipeline-model-parallel-layout places {n_placed} layers, and --num-layers is "
            f"{layers}",
            {},
            "make them equal",
        )
    return None


_DIGITS = 6
_LONGEST_LAYOUT = 10**6
"""Letters of a layout that is written out, at most."""
_REPEATED = re.compile(r"\(([^()]*)\)\*(\d+)|([A-Za-z|])\*(\d+)")


def _stages(layout: str) -> list[str] | None:
    """Letters of each stage of a layout, `t` for a layer; None: it is written in another way."""
    text = layout.replace(",", "").replace(" ", "")
    while (found := _REPEATED.search(text)) is not None:
        inner, times = (found[1], found[2]) if found[2] else (found[3], found[4])
        if len(times) > _DIGITS or len(text) + len(inner) * int(times) > _LONGEST_LAYOUT:
            return None
        text = text[: found.start()] + inner * int(times) + text[found.end() :]
    return text.split("|") if re.fullmatch(r"[A-Za-z|]+", text) else None


@_rule("pp.uneven_ends", f"{_CONFIG}: account_for_embedding_in_pipeline_split")
def _uneven_ends(launch: MegatronLaunch) -> Answer:
    """Stages of their own size beside embedding or loss that count as layers."""
    sizes = [f"decoder_{end}_pipeline_num_layers" for end in ("first", "last")]
    counts = [f"account_for_{end}_in_pipeline_split" for end in ("embedding", "loss")]
    own = [name for name in sizes if launch.get(name) is not None]
    wrong = [name for name in counts if _is_on(launch, name)]
    if not own or not wrong:
        return None
    flags = " and ".join(map(flag_name, wrong))
    return f"{flags}: stages have {flag_name(own[0])} already", dict.fromkeys(wrong)


@_rule("overlap.step_chunks", f"{_ARGUMENTS}: overlap_param_gather_with_optimizer_step")
def _step_chunks(launch: MegatronLaunch) -> Answer:
    """--overlap-param-gather-with-optimizer-step without what it is built on."""
    name = "overlap_param_gather_with_optimizer_step"
    if not _is_on(launch, name) or not _is_on(launch, "overlap_param_gather"):
        return None
    chunked = any(launch.get(each) for each in (*_CHUNKED, "pipeline_model_parallel_layout"))
    if not _is_on(launch, "use_distributed_optimizer"):
        lacking = "--use-distributed-optimizer"
    elif not chunked:
        lacking = "interleaved chunks, --num-virtual-stages-per-pipeline-rank"
    elif launch.get("ckpt_format") != "torch":
        lacking = "--ckpt-format torch"
    else:
        return None
    return f"{flag_name(name)}: needs {lacking}", {name: None}


@_rule("cp.levels", f"{_ARGUMENTS}: hierarchical_context_parallel_sizes")
def _levels(launch: MegatronLaunch) -> Answer:
    """--cp-comm-type a2a+p2p without sizes of its levels, or sizes of another product."""
    sizes, kinds = launch.get("hierarchical_context_parallel_sizes"), launch.get("cp_comm_type")
    cp = launch.get("context_parallel_size")
    if sizes:
        product = 1
        for size in sizes:
            product *= size
        if product != cp:
            return (
                f"--hierarchical-context-parallel-sizes {as_word(sizes)} make {product}, and "
                f"--context-parallel-size is {cp}",
                {},
                "make them equal",
            )
    elif kinds and "a2a+p2p" in kinds:
        return (
            "--cp-comm-type a2a+p2p: needs --hierarchical-context-parallel-sizes",
            {"cp_comm_type": None},
        )
    return None


@_rule("experts.precision", f"{_ARGUMENTS} of 0.14 and 0.15: moe_grouped_gemm")
def _experts_precision(launch: MegatronLaunch) -> Answer:
    """Before 0.16: --moe-grouped-gemm without --bf16, or expert parallelism with --fp16."""
    if not _is_before(launch.release, "0.16"):
        return None
    if _is_on(launch, "moe_grouped_gemm") and not _is_on(launch, "bf16"):
        change: Patch = {"bf16": True, "fp16": None} if _is_on(launch, "fp16") else {"bf16": True}
        return f"--moe-grouped-gemm: needs --bf16 in Megatron Core {launch.release}", change
    if launch.get("expert_model_parallel_size") > 1 and _is_on(launch, "fp16"):
        return (
            "--expert-model-parallel-size above 1: trains no --fp16 in Megatron Core "
            f"{launch.release}",
            {"fp16": None, "bf16": True},
        )
    return None


@_rule("experts.width_of_dense", f"{_CONFIG}: moe_ffn_hidden_size")
def _width_of_dense(launch: MegatronLaunch) -> Answer:
    """--moe-ffn-hidden-size without --num-experts."""
    if launch.get("num_experts"):
        return None
    if launch.get("moe_ffn_hidden_size") is not None:
        return (
            "--moe-ffn-hidden-size is the width of experts, and --num-experts gives none",
            {"moe_ffn_hidden_size": None},
        )
    return None


@_rule("experts.bias", f"{_CONFIG}: add_bias_linear")
def _experts_bias(launch: MegatronLaunch) -> Answer:
    """Experts with biases that tensor parallel ranks share; in 0.14 with biases at all."""
    if not launch.get("num_experts") or launch.get("add_bias_linear") is False:
        return None
    if _is_before(launch.release, "0.15"):
        return "experts have no biases in Megatron Core 0.14", {"add_bias_linear": False}
    etp = launch.get("expert_tensor_parallel_size")
    if (etp or launch.get("tensor_model_parallel_size")) == 1:
        return None
    return (
        "experts with biases have one tensor parallel rank",
        {"add_bias_linear": False},
        "or set --expert-tensor-parallel-size to 1",
    )


@_rule("experts.router", f"{_CONFIG}: moe_router_topk, moe_router_enable_expert_bias")
def _router(launch: MegatronLaunch) -> Answer:
    """Settings of the router that do not go together."""
    score = launch.get("moe_router_score_function")
    if _is_on(launch, "moe_router_enable_expert_bias") and score != "sigmoid":
        return (
            f"--moe-router-enable-expert-bias: takes no --moe-router-score-function {score}",
            {"moe_router_score_function": "sigmoid"},
        )
    balancing = launch.get("moe_router_load_balancing_type")
    kinds = balancing if isinstance(balancing, list) else [balancing]
    if (
        launch.get("num_experts")
        and launch.get("moe_router_topk") == 1
        and score == "softmax"
        and not _is_on(launch, "moe_router_pre_softmax")
        and kinds != ["sinkhorn"]
    ):
        return "--moe-router-topk 1: needs --moe-router-pre-softmax", {
            "moe_router_pre_softmax": True
        }
    coefficients = launch.get("moe_aux_loss_coeff")
    if len(kinds) > 1 and (not isinstance(coefficients, list) or len(coefficients) != len(kinds)):
        return (
            f"--moe-router-load-balancing-type names {len(kinds)}, and --moe-aux-loss-coeff "
            f"has {len(coefficients) if isinstance(coefficients, list) else 1}",
            {},
            "give a coefficient for each",
        )
    return None


@_rule("experts.groups", f"{_CONFIG}: moe_router_group_topk")
def _router_groups(launch: MegatronLaunch) -> Answer:
    """--moe-router-group-topk without --moe-router-num-groups, or with groups of other sizes."""
    chosen = launch.get("moe_router_group_topk")
    if not chosen:
        return None
    groups, experts = launch.get("moe_router_num_groups"), launch.get("num_experts")
    if not groups:
        return (
            "--moe-router-group-topk: needs --moe-router-num-groups",
            {"moe_router_group_topk": None},
        )
    if experts and experts % groups:
        return (
            f"--num-experts {experts} is no multiple of --moe-router-num-groups {groups}",
            {},
            f"take a number of groups that divides {experts}",
        )
    if chosen > groups:
        return (
            f"--moe-router-group-topk {chosen} is above --moe-router-num-groups {groups}",
            {"moe_router_group_topk": groups},
        )
    return None


@_rule("experts.dispatcher", f"{_CONFIG}: moe_token_dispatcher_type")
def _dispatcher(launch: MegatronLaunch) -> Answer:
    """A --moe-token-dispatcher-type that an option of it does not take."""
    kind = launch.get("moe_token_dispatcher_type")
    if _is_on(launch, "moe_enable_deepep") and kind != "flex":
        return (
            f"--moe-enable-deepep: takes no --moe-token-dispatcher-type {kind}",
            {"moe_token_dispatcher_type": "flex"},
        )
    shares = launch.get("moe_shared_expert_intermediate_size") is not None
    if shares and _is_on(launch, "moe_shared_expert_overlap") and kind != "alltoall":
        return (
            f"--moe-shared-expert-overlap: takes no --moe-token-dispatcher-type {kind}",
            {"moe_token_dispatcher_type": "alltoall"},
        )
    if _is_on(launch, "moe_pad_expert_input_to_capacity") and (
        launch.get("moe_expert_capacity_factor") is None
    ):
        return (
            "--moe-pad-expert-input-to-capacity: needs --moe-expert-capacity-factor",
            {"moe_pad_expert_input_to_capacity": None},
        )
    return None


@_rule("experts.overlap", f"{_CONFIG}: overlap_moe_expert_parallel_comm")
def _experts_overlap(launch: MegatronLaunch) -> Answer:
    """--overlap-moe-expert-parallel-comm without what it overlaps, or beside what forbids it."""
    name = "overlap_moe_expert_parallel_comm"
    if not _is_on(launch, name):
        return None
    if launch.get("expert_model_parallel_size") == 1:
        why = "sends nothing while --expert-model-parallel-size is 1"
    elif launch.get("moe_token_dispatcher_type") not in ("alltoall", "flex"):
        return (
            f"{flag_name(name)}: needs --moe-token-dispatcher-type alltoall or flex",
            {"moe_token_dispatcher_type": "alltoall"},
        )
    elif launch.get("pipeline_model_parallel_size") > 1 and not any(
        launch.get(each) for each in (*_CHUNKED, "pipeline_model_parallel_layout")
    ):
        why = "with a pipeline needs interleaved chunks, --num-virtual-stages-per-pipeline-rank"
    elif launch.get("recompute_granularity") == "full":
        why = "does not go with --recompute-granularity full"
    elif not (_is_on(launch, "bf16") or _is_on(launch, "fp16")):
        why = "needs --bf16 or --fp16"
    elif _is_on(launch, "moe_shared_expert_overlap"):
        why = "does not go with --moe-shared-expert-overlap"
    else:
        return None
    return f"{flag_name(name)}: {why}", {name: None}


@_rule("optimizer.precision_aware", f"{_OPTIMIZER}: use_precision_aware_optimizer")
def _precision_aware(launch: MegatronLaunch) -> Answer:
    """--use-precision-aware-optimizer without Adam and the distributed optimizer."""
    if not _is_on(launch, "use_precision_aware_optimizer"):
        kept = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
        other = [name for name in kept if launch.get(name) not in (None, "fp32")]
        if other:
            flags = " and ".join(map(flag_name, other))
            return (
                f"{flags}: other than fp32 needs --use-precision-aware-optimizer",
                {"use_precision_aware_optimizer": True},
            )
        return None
    if launch.get("optimizer") != "adam":
        return (
            f"--use-precision-aware-optimizer: takes no --optimizer {launch.get('optimizer')}",
            {"use_precision_aware_optimizer": None},
        )
    if not _is_on(launch, "use_distributed_optimizer"):
        return (
            "--use-precision-aware-optimizer: needs --use-distributed-optimizer",
            {"use_distributed_optimizer": True},
        )
    return None


@_rule("optimizer.muon", f"{_ARGUMENTS} of 0.16: optimizer")
def _muon(launch: MegatronLaunch) -> Answer:
    """In 0.16: --optimizer muon beside what shards or overlaps."""
    if launch.release != "0.16" or "muon" not in str(launch.get("optimizer")):
        return None
    names = ("overlap_grad_reduce", "overlap_param_gather", "use_distributed_optimizer")
    wrong = [name for name in names if _is_on(launch, name)]
    if not wrong:
        return None
    flags = " and ".join(map(flag_name, wrong))
    return f"{flags}: --optimizer {launch.get('optimizer')} takes none", dict.fromkeys(wrong)


@_rule("offload.modules", f"{_CONFIG}: offload_modules")
def _offload_modules(launch: MegatronLaunch) -> Answer:
    """--fine-grained-activation-offloading of nothing, or of attn_proj without core_attn."""
    if not _is_on(launch, "fine_grained_activation_offloading"):
        return None
    modules = launch.get("offload_modules")
    if not modules:
        return (
            "--fine-grained-activation-offloading: needs --offload-modules",
            {"offload_modules": ["core_attn"]},
        )
    if "attn_proj" in modules and "core_attn" not in modules:
        return (
            "--offload-modules attn_proj: takes what core_attn hands it, and needs it beside",
            {"offload_modules": [*modules, "core_attn"]},
        )
    return None


@_rule("model.activation", "megatron/training/arguments.py, core_transformer_config_from_args")
def _activation(launch: MegatronLaunch) -> Answer:
    """--squared-relu beside --swiglu, or with the fused bias of another activation."""
    if not _is_on(launch, "squared_relu"):
        return None
    if _is_on(launch, "swiglu"):
        return "--squared-relu and --swiglu: an MLP has one activation", {"squared_relu": None}
    has_bias = launch.get("add_bias_linear") is not False
    if has_bias and launch.get("bias_gelu_fusion") is not False:
        return (
            "--squared-relu: the bias is fused with gelu alone",
            {"bias_gelu_fusion": False},
        )
    return None


@_rule("model.legacy", f"{_ARGUMENTS}: use_legacy_models")
def _legacy(launch: MegatronLaunch) -> Answer:
    """--use-legacy-models without --ckpt-format torch."""
    if _is_on(launch, "use_legacy_models") and launch.get("ckpt_format") != "torch":
        return (
            f"--use-legacy-models: saves no --ckpt-format {launch.get('ckpt_format')}",
            {"ckpt_format": "torch"},
        )
    return None


@_rule("model.attention_backend", f"{_ARGUMENTS}: attention_backend")
def _attention_backend(launch: MegatronLaunch) -> Answer:
    """--attention-backend local without --spec local."""
    kind, spec = launch.get("attention_backend"), launch.get("spec")
    if kind == "local" and (not spec or spec[0] != "local"):
        return "--attention-backend local: needs --spec local", {"spec": ["local"]}
    return None


@_rule("logging.memory", f"{_ARGUMENTS}: log_memory_interval")
def _memory_interval(launch: MegatronLaunch) -> Answer:
    """--log-memory-interval is no multiple of --log-interval."""
    every, lines = launch.get("log_memory_interval"), launch.get("log_interval")
    if not every or not lines or every % lines == 0:
        return None
    return (
        f"--log-memory-interval {every} is no multiple of --log-interval {lines}",
        {"log_memory_interval": -(-every // lines) * lines},
    )


@_rule("checkpoint.gloo", f"{_ARGUMENTS}: enable_gloo_process_groups")
def _gloo(launch: MegatronLaunch) -> Answer:
    """--disable-gloo-process-groups with the distributed optimizer and --ckpt-format torch."""
    if launch.get("enable_gloo_process_groups") is not False:
        return None
    if _is_on(launch, "use_distributed_optimizer") and launch.get("ckpt_format") == "torch":
        return (
            "--disable-gloo-process-groups: --ckpt-format torch gathers the distributed "
            "optimizer through them",
            {"ckpt_format": "torch_dist"},
        )
    return None


@_rule("pp.one_end", f"{_ARGUMENTS}: account_for_embedding_in_pipeline_split")
def _one_end(launch: MegatronLaunch) -> Answer:
    """Layers that do not split evenly with the embedding or the loss as one of them."""
    ends = [f"account_for_{end}_in_pipeline_split" for end in ("embedding", "loss")]
    counted = [name for name in ends if _is_on(launch, name)]
    layers, pp = launch.get("num_layers"), launch.get("pipeline_model_parallel_size")
    sizes = [f"decoder_{end}_pipeline_num_layers" for end in ("first", "last")]
    own = any(launch.get(name) for name in (*sizes, "pipeline_model_parallel_layout"))
    if len(counted) != 1 or not layers or own:
        return None
    chunks = pp * (launch.get(_CHUNKED[1]) or 1)
    if (layers + 1) % chunks == 0:
        return None
    change: Patch = {counted[0]: None}
    if layers % chunks:
        other = next(name for name in ends if name not in counted)
        change = {other: True} if (layers + 2) % chunks == 0 else {}
    return (
        f"{layers} layers and {flag_name(counted[0])} make {layers + 1}, which is no multiple of "
        f"{chunks} chunks",
        change,
        "" if change else "take a pipeline that divides them",
    )


@_rule("pp.embedding_gradient", f"{_PARALLEL}: defer_embedding_wgrad_compute")
def _embedding_gradient(launch: MegatronLaunch) -> Answer:
    """--defer-embedding-wgrad-compute without a pipeline or fused accumulation of gradients."""
    name = "defer_embedding_wgrad_compute"
    if not _is_on(launch, name):
        return None
    if launch.get("pipeline_model_parallel_size") == 1:
        return f"{flag_name(name)}: needs --pipeline-model-parallel-size above 1", {name: None}
    if launch.get("gradient_accumulation_fusion") is False:
        return f"{flag_name(name)}: does not go with --no-gradient-accumulation-fusion", {
            name: None
        }
    return None


@_rule("cp.kinds", f"{_CONFIG}: cp_comm_type")
def _kinds(launch: MegatronLaunch) -> Answer:
    """--cp-comm-type with several kinds, but not one for each layer."""
    kinds, layers = launch.get("cp_comm_type"), launch.get("num_layers")
    if launch.get("context_parallel_size") == 1 or not isinstance(kinds, list) or not layers:
        return None
    if len(kinds) > 1 and len(kinds) != layers:
        return (
            f"--cp-comm-type names {len(kinds)}, and the model has {layers} layers",
            {"cp_comm_type": kinds[:1]},
            "or name one for each layer",
        )
    return None


@_rule("cp.hybrid", f"{_ARGUMENTS}: hybrid_context_parallel")
def _hybrid(launch: MegatronLaunch) -> Answer:
    """--hybrid-context-parallel with a pipeline, or without --calculate-per-token-loss."""
    if not _is_on(launch, "hybrid_context_parallel"):
        return None
    if launch.get("pipeline_model_parallel_size") > 1:
        return "--hybrid-context-parallel: goes with no pipeline", {
            "hybrid_context_parallel": None
        }
    if not _is_on(launch, "calculate_per_token_loss"):
        return "--hybrid-context-parallel: needs --calculate-per-token-loss", {
            "calculate_per_token_loss": True
        }
    return None


@_rule("experts.capacity", f"{_CONFIG}: moe_expert_capacity_factor")
def _capacity(launch: MegatronLaunch) -> Answer:
    """--moe-expert-capacity-factor with a balancing that has none."""
    if launch.get("moe_expert_capacity_factor") is None:
        return None
    balancing = launch.get("moe_router_load_balancing_type")
    kinds = balancing if isinstance(balancing, list) else [balancing]
    allowed = ("aux_loss", "seq_aux_loss", "global_aux_loss", "none")
    wrong = [kind for kind in kinds if kind not in allowed]
    if not wrong:
        return None
    return (
        f"--moe-expert-capacity-factor: takes no --moe-router-load-balancing-type {wrong[0]}",
        {"moe_expert_capacity_factor": None},
    )


@_rule("recompute.experts", f"{_CONFIG}: moe_layer_recompute")
def _experts_recompute(launch: MegatronLaunch) -> Answer:
    """--moe-layer-recompute with --recompute-granularity full."""
    if _is_on(launch, "moe_layer_recompute") and launch.get("recompute_granularity") == "full":
        return (
            "--moe-layer-recompute: --recompute-granularity full recomputes experts already",
            {"moe_layer_recompute": None},
        )
    return None


@_rule("graphs.one_way", f"{_ARGUMENTS}: enable_cuda_graph")
def _graphs(launch: MegatronLaunch) -> Answer:
    """Two ways to ask for CUDA graphs, or graphs beside what moves or recomputes layers."""
    impl = launch.get("cuda_graph_impl")
    old = [each for each in ("enable_cuda_graph", "external_cuda_graph") if _is_on(launch, each)]
    is_new = impl not in (None, "none")
    if old and is_new:
        return f"{flag_name(old[0])} and --cuda-graph-impl: give one", {old[0]: None}
    if len(old) > 1:
        return "--enable-cuda-graph and --external-cuda-graph: give one", {old[1]: None}
    if not old and not is_new:
        return None
    if launch.get("cpu_offloading_num_layers"):
        return "CUDA graphs: do not go with --cpu-offloading-num-layers", {
            "cpu_offloading_num_layers": None
        }
    scope = launch.get("cuda_graph_scope")
    whole = scope is not None and "full_iteration" in scope
    if launch.get("recompute_granularity") == "full" and not whole:
        return (
            "CUDA graphs of layers: do not go with --recompute-granularity full",
            {name: None for name in _FULL if launch.get(name) is not None},
            "or take a graph of the full iteration",
        )
    return None


_FULL = ("recompute_granularity", "recompute_method", "recompute_num_layers")


@_rule("deterministic.kernels", f"{_ARGUMENTS}: deterministic_mode")
def _deterministic(launch: MegatronLaunch) -> Answer:
    """--deterministic-mode with --use-flash-attn, or an NCCL_ALGO that is not fixed."""
    if not _is_on(launch, "deterministic_mode"):
        return None
    if _is_on(launch, "use_flash_attn"):
        return "--deterministic-mode: does not go with --use-flash-attn", {"use_flash_attn": None}
    fixed = ("Tree", "Ring", "CollnetDirect", "CollnetChain", "^NVLS")
    algorithm = launch.variables.get("NCCL_ALGO")
    if algorithm is not None and algorithm not in fixed and "$" not in algorithm:
        return (
            f"--deterministic-mode: NCCL_ALGO is {algorithm}",
            {},
            f"set it to one of {', '.join(fixed)}",
        )
    return None


@_rule("environment.connections", f"{_ARGUMENTS}: CUDA_DEVICE_MAX_CONNECTIONS")
def _connections(launch: MegatronLaunch) -> Answer:
    """CUDA_DEVICE_MAX_CONNECTIONS that the file sets to another value than Megatron asks for."""
    value = launch.variables.get(CONNECTIONS)
    if value is None or "$" in value:
        return None
    for name in ("use_megatron_fsdp", "use_torch_fsdp2"):
        if _is_on(launch, name):
            if value != "1":
                return None
            return (
                f"{flag_name(name)}: asks for a {CONNECTIONS} other than 1, and it is set to 1",
                {},
                f"set {CONNECTIONS} to 8, or leave it out",
            )
    if _is_on(launch, "overlap_moe_expert_parallel_comm") or value == "1":
        return None
    if asks_for_connections(launch):
        return (
            f"tensor and context parallel ranks ask for {CONNECTIONS}=1 on GPUs before "
            f"Blackwell, and it is set to {value}",
            {},
            f"set {CONNECTIONS} to 1",
        )
    return None


CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


def asks_for_connections(launch: MegatronLaunch) -> bool:
    """Whether Megatron asks for CUDA_DEVICE_MAX_CONNECTIONS=1 on GPUs before Blackwell."""
    sharded = ("use_megatron_fsdp", "use_torch_fsdp2", "overlap_moe_expert_parallel_comm")
    try:
        splits = ("tensor_model_parallel_size", "context_parallel_size")
        is_split = any(launch.get(name) > 1 for name in splits)
        return is_split and not any(_is_on(launch, each) for each in sharded)
    except UnknownFactError:
        return False


@_rule("fp8.device", "Transformer Engine: FP8 needs compute capability 8.9")
def _fp8_device(launch: MegatronLaunch) -> Answer:
    """--fp8-format on a GPU that computes nothing in fp8."""
    if launch.get("fp8") and launch.gpu and "fp8" not in launch.gpu_precisions:
        return (
            f"--fp8-format: the {launch.gpu} computes nothing in fp8",
            {name: None for name in _FP8_FLAGS if name in launch.given},
        )
    return None


@_rule("fsdp.fusion", f"{_ARGUMENTS}: use_torch_fsdp2")
def _fsdp_fusion(launch: MegatronLaunch) -> Answer:
    """--use-torch-fsdp2 without --no-gradient-accumulation-fusion."""
    if _is_on(launch, "use_torch_fsdp2") and _is_on(launch, "gradient_accumulation_fusion"):
        return (
            "--use-torch-fsdp2: needs --no-gradient-accumulation-fusion",
            {"gradient_accumulation_fusion": False},
        )
    return None


@_rule("fsdp.experts", f"{_ARGUMENTS}: use_torch_fsdp2")
def _fsdp_experts(launch: MegatronLaunch) -> Answer:
    """--use-torch-fsdp2 with expert parallelism."""
    if _is_on(launch, "use_torch_fsdp2") and launch.get("expert_model_parallel_size") > 1:
        return "--use-torch-fsdp2: spreads no experts", {"expert_model_parallel_size": None}
    return None


_FP8_FLAGS = (
    *("fp8", "fp8_recipe", "fp8_param_gather", "fp8_margin", "fp8_interval"),
    *("fp8_amax_history_len", "fp8_amax_compute_algo"),
)

_SWITCHES: tuple[Rule[MegatronLaunch], ...] = (
    _needs("precision.cross_entropy", "fp16_lm_cross_entropy", ("fp16",), removes=True),
    _needs("checkpoint.main_params", "load_main_params_from_ckpt", ("no_load_optim",)),
    _needs(
        "overlap.delayed_wgrad",
        "delay_wgrad_compute",
        ("overlap_moe_expert_parallel_comm",),
        _CONFIG,
        removes=True,
    ),
    _needs("checkpoint.replication", "replication", ("replication_jump",), removes=True),
    _needs("checkpoint.upcycling", "moe_use_upcycling", ("save",), removes=True),
    _needs("fsdp.untied", "use_torch_fsdp2", ("untie_embeddings_and_output_weights",)),
    _excludes("fsdp.precision", "use_torch_fsdp2", "fp16", "it trains in bf16"),
    _excludes("precision.fp4", "fp4", "fp8", "a run has one of them"),
    _excludes(
        "deterministic.cross_entropy",
        "deterministic_mode",
        "cross_entropy_loss_fusion",
        "its result depends on the order of sums",
    ),
)

ARGUMENT_RULES: tuple[Rule[MegatronLaunch], ...] = (
    *(each for each in dict(globals()).values() if isinstance(each, Rule)),
    *_SWITCHES,
)
"""Rules of arguments, in the order in which they are asked. Where the first one refuses, no other
can be: they divide by what it asks about."""
