"""Rules of the model: its sizes, its layers, and flags that have another name now."""

from autotune.engines.megatron.argument_rules.making import (
    ARGUMENTS,
    Answer,
    argument_rule,
    flag_name,
    is_before,
    is_on,
    rules_in,
)
from autotune.engines.megatron.launched import MegatronLaunch
from autotune.space.rule import Patch

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


@argument_rule("sequence.positions", f"{ARGUMENTS}: max_position_embeddings")
def _positions(launch: MegatronLaunch) -> Answer:
    """No --max-position-embeddings, or one below --seq-length."""
    length = launch.get("seq_length") or launch.get("encoder_seq_length")
    positions = launch.get("max_position_embeddings")
    is_missing = positions is None and not launch.is_yaml
    if length is None or not (is_missing or (positions or length) < length):
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
    given = "num_query_groups" in launch.given and not launch.is_yaml
    is_latent = is_on(launch, "multi_latent_attention")
    if given and not is_latent and launch.get("group_query_attention") is False:
        return (
            "--num-query-groups counts only with --group-query-attention",
            {"group_query_attention": True},
        )
    return None


@argument_rule("model.latent_attention", f"{ARGUMENTS}: multi_latent_attention")
def _latent(launch: MegatronLaunch) -> Answer:
    """From 0.16 on: --multi-latent-attention with --group-query-attention."""
    if is_before(launch.release, "0.16"):
        return None
    if is_on(launch, "multi_latent_attention") and is_on(launch, "group_query_attention"):
        return (
            "--multi-latent-attention has no groups of queries: --group-query-attention",
            {"group_query_attention": None},
        )
    return None


@argument_rule("model.position_embedding", f"{ARGUMENTS}: add_position_embedding")
def _position_embedding(launch: MegatronLaunch) -> Answer:
    """--no-position-embedding with another position embedding than rope."""
    kind = launch.get("position_embedding_type")
    if is_on(launch, "use_rotary_position_embeddings"):
        kind = "rope"
    if launch.get("add_position_embedding") is False and kind != "rope":
        return (
            "--no-position-embedding: says what --position-embedding-type says now",
            {"add_position_embedding": None},
            "and set --position-embedding-type to none, if that is meant",
        )
    return None


@argument_rule("model.more_tokens", f"{ARGUMENTS}: mtp_num_layers")
def _multi_token(launch: MegatronLaunch) -> Answer:
    """--mtp-num-layers with another position embedding than rope or none."""
    kind = launch.get("position_embedding_type")
    if is_on(launch, "mtp_num_layers") and kind not in ("rope", "none"):
        if is_on(launch, "use_rotary_position_embeddings"):
            return None
        return (
            f"--mtp-num-layers: takes no --position-embedding-type {kind}",
            {"position_embedding_type": "rope"},
        )
    return None


@argument_rule(
    "model.activation", "megatron/training/arguments.py, core_transformer_config_from_args"
)
def _activation(launch: MegatronLaunch) -> Answer:
    """--squared-relu beside --swiglu, or with the fused bias of another activation."""
    if not is_on(launch, "squared_relu"):
        return None
    if is_on(launch, "swiglu"):
        return "--squared-relu and --swiglu: an MLP has one activation", {"squared_relu": None}
    has_bias = launch.get("add_bias_linear") is not False
    if has_bias and launch.get("bias_gelu_fusion") is not False:
        return (
            "--squared-relu: the bias is fused with gelu alone",
            {"bias_gelu_fusion": False},
        )
    return None


@argument_rule("model.legacy", f"{ARGUMENTS}: use_legacy_models")
def _legacy(launch: MegatronLaunch) -> Answer:
    """--use-legacy-models without --ckpt-format torch."""
    if is_on(launch, "use_legacy_models") and launch.get("ckpt_format") != "torch":
        return (
            f"--use-legacy-models: saves no --ckpt-format {launch.get('ckpt_format')}",
            {"ckpt_format": "torch"},
        )
    return None


@argument_rule("model.attention_backend", f"{ARGUMENTS}: attention_backend")
def _attention_backend(launch: MegatronLaunch) -> Answer:
    """--attention-backend local without --spec local."""
    kind, spec = launch.get("attention_backend"), launch.get("spec")
    if kind == "local" and (not spec or spec[0] != "local"):
        return "--attention-backend local: needs --spec local", {"spec": ["local"]}
    return None


RULES = rules_in(globals())
