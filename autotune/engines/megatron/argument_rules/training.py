"""Rules of the training: schedule, batch, data, optimizer, checkpoints and logs."""

from collections.abc import Sequence

from autotune.engines.megatron.argument_rules.making import (
    ARGUMENTS,
    OPTIMIZER,
    Answer,
    argument_rule,
    flag_name,
    is_before,
    is_on,
    needs,
    rules_in,
)
from autotune.engines.megatron.launched import MegatronLaunch


@argument_rule("optimizer_offload.precision_aware", f"{ARGUMENTS}: optimizer_cpu_offload")
def _offload(launch: MegatronLaunch) -> Answer:
    """--optimizer-cpu-offload without --use-precision-aware-optimizer."""
    if launch.get("optimizer_cpu_offload") and not launch.get("use_precision_aware_optimizer"):
        return (
            "--optimizer-cpu-offload: needs --use-precision-aware-optimizer",
            {"use_precision_aware_optimizer": True},
        )
    return None


_BY_ITERS = ("lr_decay_iters", "lr_warmup_iters")
_BY_SAMPLES = ("lr_decay_samples", "lr_warmup_samples", "rampup_batch_size")


@argument_rule("schedule.iters", f"{ARGUMENTS}: train_iters")
def _iterations(launch: MegatronLaunch) -> Answer:
    """--train-iters with --train-samples, or with a schedule that is counted in samples."""
    if not launch.get("train_iters"):
        return None
    if launch.get("train_samples") is not None:
        return "--train-iters and --train-samples: a run has one length", {"train_samples": None}
    return _other_count(launch, "train_iters", _BY_SAMPLES)


@argument_rule("schedule.samples", f"{ARGUMENTS}: train_samples")
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


@argument_rule("schedule.warmup", f"{ARGUMENTS}: lr_warmup_fraction")
def _warmup(launch: MegatronLaunch) -> Answer:
    """--lr-warmup-fraction with --lr-warmup-iters or --lr-warmup-samples."""
    if launch.get("lr_warmup_fraction") is None:
        return None
    other = "lr_warmup_samples" if launch.get("train_samples") else "lr_warmup_iters"
    if launch.get(other):
        return f"--lr-warmup-fraction and {flag_name(other)}: give one", {other: None}
    return None


@argument_rule("schedule.lr", f"{ARGUMENTS}: min_lr")
def _learning_rate(launch: MegatronLaunch) -> Answer:
    """--min-lr above --lr."""
    rate, least = launch.get("lr"), launch.get("min_lr") or 0.0
    if rate is not None and least > rate:
        return f"--min-lr {least} is above --lr {rate}", {"min_lr": rate}
    return None


@argument_rule("schedule.weight_decay", f"{ARGUMENTS}: weight_decay_incr_style")
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


@argument_rule("checkpoint.interval", f"{ARGUMENTS}: save_interval")
def _save_interval(launch: MegatronLaunch) -> Answer:
    """--save without --save-interval."""
    if launch.get("save") is not None and not launch.get("save_interval"):
        return "--save: needs --save-interval", {"save_interval": 1000}, "or another number"
    return None


@argument_rule("checkpoint.format", f"{ARGUMENTS}: ckpt_format")
def _format(launch: MegatronLaunch) -> Answer:
    """A --ckpt-format that belongs to another way of sharding."""
    kind = launch.get("ckpt_format")
    if is_on(launch, "use_megatron_fsdp") and kind != "fsdp_dtensor":
        return (
            f"--use-megatron-fsdp: saves no --ckpt-format {kind}",
            {"ckpt_format": "fsdp_dtensor"},
        )
    if is_on(launch, "use_torch_fsdp2") and kind not in ("torch_dist", "torch_dcp"):
        return f"--use-torch-fsdp2: saves no --ckpt-format {kind}", {"ckpt_format": "torch_dist"}
    owners = {"fsdp_dtensor": "use_megatron_fsdp", "torch_dcp": "use_torch_fsdp2"}
    owner = owners.get(str(kind))
    if owner is not None and not is_on(launch, owner):
        return f"--ckpt-format {kind}: is that of {flag_name(owner)}", {"ckpt_format": None}
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


_FILES_OF = {
    "BertWordPieceLowerCase": ("vocab_file",),
    "BertWordPieceCase": ("vocab_file",),
    "GPT2BPETokenizer": ("vocab_file", "merge_file"),
    "SentencePieceTokenizer": ("tokenizer_model",),
    "GPTSentencePieceTokenizer": ("tokenizer_model",),
    "Llama2Tokenizer": ("tokenizer_model",),
    "TikTokenizer": ("tokenizer_model", "tiktoken_pattern"),
    "NullTokenizer": ("vocab_size",),
    "NullMultimodalTokenizer": ("vocab_size",),
}
"""Tokenizer -> the arguments without which it is not built."""
_OF_SCRIPT = {"pretrain_gpt.py": "GPT2BPETokenizer"}
"""Script -> its tokenizer without --tokenizer-type: its `args_defaults`."""


@argument_rule("data.tokenizer", "megatron/training/tokenizer/tokenizer.py, build_tokenizer")
def _tokenizer(launch: MegatronLaunch) -> Answer:
    """A tokenizer without its files or its size, before Megatron Core 0.17, which fetches some."""
    if not launch.script or not is_before(launch.release, "0.17"):
        return None
    if is_on(launch, "use_checkpoint_args"):
        return None  # the checkpoint may say it
    given = launch.get("tokenizer_type")
    kind = given or _OF_SCRIPT.get(launch.script)
    # What a file is called may be the shell's to know; that it is named counts.
    missing = [
        name
        for name in _FILES_OF.get(str(kind), ())
        if name not in launch.unknown and launch.get(name) is None
    ]
    if not missing:
        return None
    flags = " and ".join(map(flag_name, missing))
    verb = "is" if len(missing) == 1 else "are"
    which = f"--tokenizer-type {kind}" if given else f"{kind}, which is {launch.script}'s own"
    other = "" if given else ", or another tokenizer with --tokenizer-type"
    return f"{flags} {verb} missing for {which}", {}, f"give {flags}{other}"


@argument_rule("batch.micro", f"{ARGUMENTS}: micro_batch_size")
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


@argument_rule("optimizer.precision_aware", f"{OPTIMIZER}: use_precision_aware_optimizer")
def _precision_aware(launch: MegatronLaunch) -> Answer:
    """--use-precision-aware-optimizer without Adam and the distributed optimizer."""
    if not is_on(launch, "use_precision_aware_optimizer"):
        dtypes = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
        other = [name for name in dtypes if launch.get(name) not in (None, "fp32")]
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
    if not is_on(launch, "use_distributed_optimizer"):
        return (
            "--use-precision-aware-optimizer: needs --use-distributed-optimizer",
            {"use_distributed_optimizer": True},
        )
    return None


@argument_rule("optimizer.muon", f"{ARGUMENTS} of 0.16: optimizer")
def _muon(launch: MegatronLaunch) -> Answer:
    """In 0.16: --optimizer muon beside what shards or overlaps."""
    if launch.release != "0.16" or "muon" not in str(launch.get("optimizer")):
        return None
    names = ("overlap_grad_reduce", "overlap_param_gather", "use_distributed_optimizer")
    wrong = [name for name in names if is_on(launch, name)]
    if not wrong:
        return None
    flags = " and ".join(map(flag_name, wrong))
    return f"{flags}: --optimizer {launch.get('optimizer')} takes none", dict.fromkeys(wrong)


@argument_rule("logging.memory", f"{ARGUMENTS}: log_memory_interval")
def _memory_interval(launch: MegatronLaunch) -> Answer:
    """--log-memory-interval is no multiple of --log-interval."""
    every, lines = launch.get("log_memory_interval"), launch.get("log_interval")
    if not every or not lines or every % lines == 0:
        return None
    return (
        f"--log-memory-interval {every} is no multiple of --log-interval {lines}",
        {"log_memory_interval": -(-every // lines) * lines},
    )


@argument_rule("checkpoint.gloo", f"{ARGUMENTS}: enable_gloo_process_groups")
def _gloo(launch: MegatronLaunch) -> Answer:
    """--disable-gloo-process-groups with the distributed optimizer and --ckpt-format torch."""
    # The second is its name since 0.17.
    names = ("enable_gloo_process_groups", "use_gloo_process_groups")
    if all(launch.get(name) is not False for name in names):
        return None
    if is_on(launch, "use_distributed_optimizer") and launch.get("ckpt_format") == "torch":
        return (
            "--disable-gloo-process-groups: --ckpt-format torch gathers the distributed "
            "optimizer through them",
            {"ckpt_format": "torch_dist"},
        )
    return None


_SWITCHES = (
    needs("checkpoint.main_params", "load_main_params_from_ckpt", ("no_load_optim",)),
    needs("checkpoint.replication", "replication", ("replication_jump",), removes=True),
    needs("checkpoint.upcycling", "moe_use_upcycling", ("save",), removes=True),
)

RULES = (*rules_in(globals()), *_SWITCHES)
