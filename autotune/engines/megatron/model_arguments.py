"""The arguments of a model: which flags make Megatron's GPT model a Hugging Face one.

A model that Megatron would train as another one is refused.

Source: NVIDIA/Megatron-LM, megatron/training/arguments.py (Megatron Core 0.14 to 0.16).
"""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from autotune.base.errors import JobError
from autotune.base.flags import flag
from autotune.engines.releases import is_at_least
from autotune.job.model import Model
from autotune.trial.transformer_shape import (
    FAMILIES,
    NoPipelineError,
    rope_settings,
    rotary_of,
    shape_of,
)

Arguments = dict[str, int | float | str | bool | list[str]]

_LLAMA_3_SCALING = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""What Megatron's `--use-rope-scaling` is fixed to.

Source: NVIDIA/Megatron-LM, megatron/core/models/common/embeddings/rotary_pos_embedding.py."""


_LATENT = ("deepseek_v2", "deepseek_v3")
MIXTURES = (*_LATENT, "glm4_moe", "gpt_oss", "mixtral", "qwen2_moe", "qwen3_moe")
"""Mixtures of experts that Megatron's GPT model can be."""
_GROUPED_BY_SUM_OF = 2
"""Scores of its best experts that are a group's, in DeepSeek-V3 and what follows it."""
_NORMALIZED = {"deepseek_v3": True, "glm4_moe": True, "qwen2_moe": False, "qwen3_moe": False}
"""True for mixtures whose weights of a token's experts add up to 1 unless the config says."""
_BIAS_UPDATE_RATE = 1e-3
"""DeepSeek-AI, DeepSeek-V3 Technical Report (arXiv:2412.19437), section 4.2."""
_BALANCE_OF_BIASED = 1e-4
"""The same report's, of the loss that balances experts within a sequence."""
_MTP_LOSS_SHARE = 0.1
"""The same report's, in the last third of its training, and Megatron's default."""
_SWIGLU_LIMIT = 7.0
"""GPT-OSS: what the inputs of its activation are held to where the config does not say."""
_YARN_OF_LATENT = {
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
}
"""What YaRN of latent attention is where nothing is said: fields of `MLATransformerConfig`
(megatron/core/transformer/transformer_config.py) that no flag of Megatron-LM's scripts sets."""


def model_arguments(model: Model, seq_len: int) -> Arguments:
    """The model's sizes; `vocab_size` is the number of its token ids, before any padding.

    Raises:
        JobError: Megatron's GPT model cannot be this one.
    """
    if _family(model) in MIXTURES:
        return _mixture(model, seq_len)
    shape = _shape(model, seq_len)
    found: Arguments = {
        "num_layers": shape["n_layers"],
        "hidden_size": shape["hidden"],
        "ffn_hidden_size": shape["ffn_hidden"],
        "num_attention_heads": shape["n_heads"],
    }
    if shape["n_kv_heads"] != shape["n_heads"]:
        found["group_query_attention"] = True
        found["num_query_groups"] = shape["n_kv_heads"]
    if shape["head_dim"] * shape["n_heads"] != shape["hidden"]:
        found["kv_channels"] = shape["head_dim"]
    found["max_position_embeddings"] = shape["n_positions"] or seq_len
    found |= _positions(model, shape)
    found["normalization"] = "RMSNorm" if shape["norm"] == "rms" else "LayerNorm"
    found["norm_epsilon"] = shape["norm_eps"]
    found |= _layers(model, shape)
    if not shape["tied_embeddings"]:
        found["untie_embeddings_and_output_weights"] = True
    found["vocab_size"] = shape["vocab"]
    found["attention_dropout"] = shape["attention_dropout"]
    found["hidden_dropout"] = shape.get("residual_dropout", 0.0)
    found["init_method_std"] = shape["init_std"]
    return found


def balance_advice(model: Model) -> str:
    """The loss that balances the experts in a training of its own; empty for a dense model.

    Trials train without one: layouts are told apart by their losses, and that of `aux_loss`
    depends on the micro-batch.
    """
    if model.shape.n_experts < 2:
        return ""
    config = model.source["config"]
    if _is_sigmoid(model):
        return (
            f"--moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff "
            f"{_BALANCE_OF_BIASED:g}"
        )
    coefficient = config.get("router_aux_loss_coef") or config.get("aux_loss_alpha") or 1e-3
    return f"--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff {coefficient:g}"


def check_release(model: Model, release: str, *, by_script: bool) -> None:
    """Refuse a model that a release of Megatron Core, such as `0.16`, cannot be.

    Raises:
        JobError: It cannot.
    """
    if not release:
        return
    rope = rope_settings(model.source.get("config", {}))
    if has_sinks(model):
        if not is_at_least(release, _HAS_SINKS):
            raise _not_in(model, release, "it has no attention sinks", "0.15 or a later one")
        has_flags = rope["rope_type"] != "yarn" or is_at_least(release, _HAS_YARN_FLAGS)
        if by_script and not has_flags:
            raise _not_in(
                model,
                release,
                "its pretrain_gpt.py has no flags for the model's YaRN positions",
                "0.19 or a later one; the trials' own script (--to megatron-core) sets them",
            )
    elif _family(model) in _LATENT and by_script and rope["rope_type"] == "yarn":
        other = {name: rope[name] for name in _YARN_OF_LATENT if name in _yarn_of_latent(rope)}
        if other:
            raise _not_in(
                model,
                release,
                f"its pretrain_gpt.py has no flags for {', '.join(other)} of YaRN, which differ "
                "from what it assumes",
                "the trials' own script (--to megatron-core), or Megatron-Bridge",
            )


_HAS_SINKS, _HAS_YARN_FLAGS = "0.15", "0.19"


def _not_in(model: Model, release: str, why: str, others: str) -> JobError:
    return JobError(
        f"engine megatron: model {model.name!r} under Megatron Core {release}: {why}",
        f"take {others}",
    )


def has_layer_norm(model: Model, seq_len: int) -> bool:
    """True if the norms of a model are LayerNorm, and none of RMS.

    Raises:
        JobError: Megatron's GPT model cannot be this one.
    """
    if _family(model) in MIXTURES:
        return False
    return bool(_shape(model, seq_len)["norm"] != "rms")


def has_sinks(model: Model) -> bool:
    """True if the model's attention has sinks, and windows in some layers."""
    return _family(model) == "gpt_oss"


def has_attention_biases(model: Model) -> bool:
    """True if projections of a mixture's attention have biases."""
    names = {"qwen2_moe": ("qkv_bias", True), "glm4_moe": ("attention_bias", False)}
    family = _family(model)
    return has_sinks(model) or bool(family in names and model.source["config"].get(*names[family]))


def _family(model: Model) -> str:
    return str(model.source.get("config", {}).get("model_type", ""))


_WHY = {
    "llama4_text": "Megatron Core has no attention in chunks, and pretrain_gpt.py no flags for "
    "Llama 4's norm of queries and keys and for router weights on the inputs of experts",
    "minimax_m2": "it norms the queries of all heads together, and Megatron those of each head; "
    "Megatron-Bridge converts it with layers of its own, which no file here names",
}
"""Family -> why Megatron's GPT model is none, by megatron/core/models/gpt/gpt_layer_specs.py and
megatron/training/arguments.py up to 0.19, and Megatron-Bridge's models/minimax_m2."""


def _shape(model: Model, seq_len: int) -> dict[str, Any]:
    """Sizes of a dense model, as of `shape_of`."""
    family = _family(model)
    if family and family not in FAMILIES:
        why = f"no arguments are known that make Megatron's GPT model a {family}"
        raise _cannot_be(model, _WHY.get(family, why))
    try:
        return shape_of(model.source, seq_len)
    except NoPipelineError as error:
        raise _cannot_be(model, str(error)) from error


def _positions(model: Model, shape: Mapping[str, Any]) -> Arguments:
    if "rotary" not in shape:
        return {"position_embedding_type": "learned_absolute"}
    return _rotary(model, shape["rotary"])


def _rotary(model: Model, rotary: Mapping[str, Any]) -> Arguments:
    """Rotary positions as of `rotary_of`."""
    theta = int(rotary["theta"])
    found: Arguments = {"position_embedding_type": "rope", "rotary_base": theta}
    if rotary["kind"] == "linear":
        found["rotary_seq_len_interpolation_factor"] = int(rotary["factor"])
    elif rotary["kind"] == "llama3":
        other = {k: rotary[k] for k, v in _LLAMA_3_SCALING.items() if rotary[k] != v}
        if other:
            raise _cannot_be(model, f"its rotary scaling has {other}, Megatron's is fixed")
        found["use_rope_scaling"] = True
        found["rope_scaling_factor"] = rotary["factor"]
    return found


def _layers(model: Model, shape: Mapping[str, Any]) -> Arguments:
    """Activation, biases and the norms of queries and keys."""
    found: Arguments = {}
    if shape["gated_mlp"]:
        if shape["activation"] != "silu":
            raise _cannot_be(model, f"its gated MLP has {shape['activation']}, Megatron's silu")
        found["swiglu"] = True
    elif not shape["activation"].startswith("gelu"):
        raise _cannot_be(model, f"its MLP has {shape['activation']}, Megatron's gelu")
    biases = {shape["output_bias"], shape["mlp_bias"]}
    if len(biases) > 1:
        raise _cannot_be(model, "its attention has biases where its MLP has none")
    if biases == {False}:
        found["disable_bias_linear"] = True
        if shape["qkv_bias"]:
            found["add_qkv_bias"] = True
    if shape["qk_norm"]:
        found["qk_layernorm"] = True
    return found


# ---------------------------------------------------------------- mixtures of experts


def _mixture(model: Model, seq_len: int) -> Arguments:
    shape, config = model.shape, model.source["config"]
    _refuse_mixture(model, seq_len)
    found: Arguments = {
        "num_layers": shape.n_layers,
        "hidden_size": shape.hidden,
        "ffn_hidden_size": shape.dense_ffn_hidden or shape.ffn_hidden,
        "num_attention_heads": shape.n_heads,
        "max_position_embeddings": seq_len,
        "normalization": "RMSNorm",
        "norm_epsilon": float(config.get("rms_norm_eps", 1e-6)),
        "vocab_size": shape.vocab,
        "attention_dropout": float(config.get("attention_dropout") or 0.0),
        "hidden_dropout": 0.0,
        "init_method_std": float(config.get("initializer_range", 0.02)),
    }
    if not shape.tied_embeddings:
        found["untie_embeddings_and_output_weights"] = True
    found |= _latent_attention(model) if _family(model) in _LATENT else _grouped_attention(model)
    found |= _activation_of_mixture(model)
    found |= _experts(model)
    if shape.n_mtp_layers:
        found["mtp_num_layers"] = shape.n_mtp_layers
        found["mtp_loss_scaling_factor"] = _MTP_LOSS_SHARE
    return found


def _refuse_mixture(model: Model, seq_len: int) -> None:
    family, config = _family(model), model.source["config"]
    if "lora" in model.source:
        raise _cannot_be(model, "LoRA: Megatron-LM trains every weight")
    if family != "gpt_oss" and config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise _cannot_be(model, f"its experts have {config['hidden_act']}, Megatron's silu")
    window = model.shape.window if model.shape.n_windowed_layers else 0
    if family in ("mixtral", "qwen2_moe", "qwen3_moe") and 0 < window < seq_len:
        raise _cannot_be(
            model, f"it attends to a window of {window} tokens, and samples have {seq_len}"
        )
    has_biases = bool(config.get("attention_bias", family == "gpt_oss"))
    if has_biases != (family == "gpt_oss") and family != "glm4_moe":
        raise _cannot_be(
            model,
            f"attention_bias {str(has_biases).lower()}: Megatron's attention has biases where its "
            "experts have them",
        )
    if _is_sigmoid(model) and not config.get("norm_topk_prob", _NORMALIZED.get(family, True)):
        raise _cannot_be(
            model,
            "norm_topk_prob false: Megatron makes sigmoid weights of a token's experts add up to "
            "1, always",
        )
    _refuse_groups(model)


def _refuse_groups(model: Model) -> None:
    """Megatron scores a group of experts by its best `topk // topk_group`, whatever the model."""
    groups = _groups(model)
    if groups is None:
        return
    _, taken = groups
    counted = model.shape.experts_per_token // taken
    best = _GROUPED_BY_SUM_OF if _is_sigmoid(model) else 1
    if counted != best:
        raise _cannot_be(
            model,
            f"a group of experts is scored by its best {best}, and Megatron would score it by its "
            f"best {counted}: num_experts_per_tok {model.shape.experts_per_token} // topk_group "
            f"{taken}",
        )


def _groups(model: Model) -> tuple[int, int] | None:
    """Groups of experts and those that a token may take from; None where it takes from all."""
    config, family = model.source["config"], _family(model)
    if family not in (*_LATENT, "glm4_moe"):
        return None
    if family == "deepseek_v2" and config.get("topk_method", "greedy") == "greedy":
        return None
    default = (8, 4) if family == "deepseek_v3" else (1, 1)
    groups = int(config.get("n_group") or default[0])
    taken = int(config.get("topk_group") or default[1])
    return None if groups <= 1 or taken >= groups else (groups, taken)


def _is_sigmoid(model: Model) -> bool:
    """True if a sigmoid scores experts, and a bias without a gradient balances them."""
    return _family(model) in ("deepseek_v3", "glm4_moe")


def _latent_attention(model: Model) -> Arguments:
    shape = model.shape
    found: Arguments = {
        "multi_latent_attention": True,
        "kv_lora_rank": shape.latent_kv_rank,
        "qk_head_dim": shape.latent_nope_dim,
        "qk_pos_emb_head_dim": shape.latent_rope_dim,
        "v_head_dim": shape.latent_value_dim,
        "kv_channels": shape.latent_value_dim,
        "qk_layernorm": True,
        "disable_bias_linear": True,
        "position_embedding_type": "rope",
    }
    if shape.latent_q_rank:
        found["q_lora_rank"] = shape.latent_q_rank
    rope = rope_settings(model.source["config"])
    found["rotary_base"] = _theta(model, rope)
    if rope["rope_type"] == "yarn":
        return found | {"rope_type": "yarn"} | _yarn_of_latent(rope)
    if rope["rope_type"] != "default":
        raise _cannot_be(model, f"rotary positions of type {rope['rope_type']}")
    return found | {"rope_type": "rope", "no_rope_fusion": True}  # the kernel knows YaRN alone


def _yarn_of_latent(rope: Mapping[str, Any]) -> Arguments:
    found: Arguments = {
        "rotary_scaling_factor": float(rope["factor"]),
        "mscale": float(rope.get("mscale") or 1.0),
        "mscale_all_dim": float(rope.get("mscale_all_dim") or 0.0),
    }
    for name, usual in _YARN_OF_LATENT.items():
        value = rope.get(name)
        if value is not None and value != usual:
            found[name] = value
    return found


def _grouped_attention(model: Model) -> Arguments:
    shape, config, family = model.shape, model.source["config"], _family(model)
    found: Arguments = {}
    if shape.n_kv_heads != shape.n_heads:
        found["group_query_attention"] = True
        found["num_query_groups"] = shape.n_kv_heads
    if shape.head_dim and shape.head_dim * shape.n_heads != shape.hidden:
        found["kv_channels"] = shape.head_dim
    if not has_sinks(model):
        found["disable_bias_linear"] = True
        if has_attention_biases(model):
            found["add_qkv_bias"] = True
    if family == "qwen3_moe" or (family == "glm4_moe" and config.get("use_qk_norm", False)):
        found["qk_layernorm"] = True
    found |= _positions_of_mixture(model)
    if has_sinks(model):
        found["softmax_type"] = "learnable"
        found |= _windows(model)
    return found


def _positions_of_mixture(model: Model) -> Arguments:
    config, family = dict(model.source["config"]), _family(model)
    rope = rope_settings(config)
    if rope["rope_type"] == "yarn":
        return {
            "position_embedding_type": "yarn",
            "rotary_base": _theta(model, rope),
            "rotary_scaling_factor": float(rope["factor"]),
            "yarn_original_max_position_embeddings": int(
                rope.get("original_max_position_embeddings") or 4096
            ),
            "yarn_beta_fast": float(rope.get("beta_fast") or 32.0),
            "yarn_beta_slow": float(rope.get("beta_slow") or 1.0),
            "mscale": float(rope.get("mscale") or 1.0),
            "mscale_all_dim": float(rope.get("mscale_all_dim") or 0.0),
            **({} if rope.get("truncate", True) else {_UNROUNDED: True}),
        }
    found: Arguments = {}
    if family == "glm4_moe":
        share = rope.get("partial_rotary_factor") or config.pop("partial_rotary_factor", 0.5)
        found["rotary_percent"] = float(share)
        for key in ("rope_scaling", "rope_parameters"):
            if config.get(key):
                config[key] = {**config[key], "partial_rotary_factor": None}
    try:
        return _rotary(model, rotary_of(config)) | found
    except NoPipelineError as error:
        raise _cannot_be(model, str(error)) from error


_UNROUNDED = "no_yarn_correction_range_round_to_int"


def _theta(model: Model, rope: Mapping[str, Any]) -> int:
    return int(rope.get("rope_theta") or model.source["config"].get("rope_theta") or 10_000)


def _windows(model: Model) -> Arguments:
    """Megatron counts the tokens before a token, and Hugging Face that one, too."""
    shape = model.shape
    if not shape.n_windowed_layers:
        return {}
    config = model.source["config"]
    found: Arguments = {"window_size": f"{shape.window - 1},0"}
    every_other = [int(layer % 2 == 0) for layer in range(shape.n_layers)]
    kinds = config.get("layer_types")
    pattern = [int(kind == "sliding_attention") for kind in kinds] if kinds else every_other
    if pattern == every_other:
        found["window_attn_skip_freq"] = 2
    elif not all(pattern):
        found["window_attn_skip_freq"] = pattern_text(pattern)
    return found


def _activation_of_mixture(model: Model) -> Arguments:
    if _family(model) != "gpt_oss":
        return {"swiglu": True}
    return {
        "quick_geglu": True,
        "glu_linear_offset": 1.0,
        "activation_func_clamp_value": float(
            model.source["config"].get("swiglu_limit") or _SWIGLU_LIMIT
        ),
    }


def _experts(model: Model) -> Arguments:
    shape, config, family = model.shape, model.source["config"], _family(model)
    found: Arguments = {
        "num_experts": shape.n_experts,
        "moe_router_topk": shape.experts_per_token,
        "moe_ffn_hidden_size": shape.ffn_hidden,
        "moe_router_dtype": "fp32",
        "moe_router_load_balancing_type": "seq_aux_loss" if _is_sigmoid(model) else "aux_loss",
        "moe_aux_loss_coeff": 0.0,
    }
    if dense := dense_layers(model):
        pattern = [int(layer not in dense) for layer in range(shape.n_layers)]
        found["moe_layer_freq"] = pattern_text(pattern)
    if shape.shared_expert_hidden:
        found["moe_shared_expert_intermediate_size"] = shape.shared_expert_hidden
        if family == "qwen2_moe":
            found["moe_shared_expert_gate"] = True
    if groups := _groups(model):
        found["moe_router_num_groups"], found["moe_router_group_topk"] = groups
    if _is_sigmoid(model):
        found["moe_router_score_function"] = "sigmoid"
        found["moe_router_enable_expert_bias"] = True
        found["moe_router_bias_update_rate"] = _BIAS_UPDATE_RATE
    is_plain = family == "deepseek_v2" or not config.get(
        "norm_topk_prob", _NORMALIZED.get(family, True)
    )
    if is_plain and not _is_sigmoid(model):
        found["moe_router_pre_softmax"] = True
    scale = _scale(model)
    if scale != 1.0:
        found["moe_router_topk_scaling_factor"] = scale
    return found


def _scale(model: Model) -> float:
    """What the weights of a token's experts are multiplied by."""
    default = {"deepseek_v3": 2.5}.get(_family(model), 1.0)
    has_one = _family(model) in (*_LATENT, "glm4_moe")
    return float(model.source["config"].get("routed_scaling_factor", default)) if has_one else 1.0


def dense_layers(model: Model) -> tuple[int, ...]:
    """Layers of a mixture that have one MLP in place of experts, numbered from 0."""
    shape = model.shape
    is_mixture = shape.n_experts > 1
    return tuple(n for n in range(shape.n_layers) if is_mixture and not shape.has_experts(n))


def pattern_text(pattern: Sequence[int]) -> str:
    """The 0 or 1 of each layer as Megatron writes it: `([0]*3+[1]*58)` or `([0,1]*24)`.

    Source: NVIDIA/Megatron-LM, megatron/training/arguments.py, moe_freq_type.
    """
    count = len(pattern)
    for period in range(1, count // 2 + 1):
        part = list(pattern[:period])
        if count % period == 0 and part * (count // period) == list(pattern):
            return f"([{','.join(map(str, part))}]*{count // period})"
    runs = ((kind, len(list(run))) for kind, run in groupby(pattern))
    return f"({'+'.join(f'[{kind}]*{length}' for kind, length in runs)})"


def pattern_of(text: str) -> list[int]:
    """The layers of a text of `pattern_text`."""
    parts = re.findall(r"\[([\d,]+)\]\*(\d{1,5})", text)
    return [int(flag) for part, count in parts for flag in part.split(",") * int(count)]


def _cannot_be(model: Model, why: str) -> JobError:
    return JobError(
        f"engine megatron: model {model.name!r}: {why}",
        "name a GPT-2, Llama, Mistral or Qwen model, or a mixture such as Mixtral, Qwen3-MoE, "
        f"DeepSeek-V3, GLM-4.5 or GPT-OSS; or use {flag('engine')} deepspeed",
    )
