"""The arguments of a model: which flags make Megatron's GPT model a Hugging Face one.

A model that Megatron would train as another one is refused.

Source: NVIDIA/Megatron-LM, megatron/training/arguments.py (Megatron Core 0.14 to 0.16).
"""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from autotune.base.data import table_beside
from autotune.base.errors import JobError
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

_TABLES = table_beside(__file__, "model_arguments.json")
_LLAMA_3_SCALING: Mapping[str, float] = _TABLES["llama_3_scaling"]
"""What Megatron's `--use-rope-scaling` is fixed to.

Source: NVIDIA/Megatron-LM, megatron/core/models/common/embeddings/rotary_pos_embedding.py."""
_MIXTURES: Mapping[str, Mapping[str, Any]] = _TABLES["mixtures"]
"""Mixtures of experts that Megatron's GPT model can be -> what their configs leave unsaid."""
_GROUPED_BY_SUM_OF = 2
"""Scores of its best experts that are a group's, in DeepSeek-V3 and what follows it."""
_BALANCE_OF_BIASED = 1e-4
"""DeepSeek-AI, DeepSeek-V3 Technical Report (arXiv:2412.19437), section 4.2: of the loss that
balances experts within a sequence."""
_SWIGLU_LIMIT = 7.0
"""GPT-OSS: what the inputs of its activation are held to where the config does not say."""
_YARN_OF_LATENT: Mapping[str, int] = _TABLES["yarn_of_latent"]
"""What YaRN of latent attention is where nothing is said: fields of `MLATransformerConfig`
(megatron/core/transformer/transformer_config.py) that no flag of Megatron-LM's scripts sets."""


def model_arguments(model: Model, seq_len: int) -> Arguments:
    """The model's sizes; `vocab_size` is the number of its token ids, before any padding.

    A row of the table names the fact that an argument is, or `is` its value with the fact `when`
    it is set; what is None, False or not known of a model is left out.

    Raises:
        JobError: Megatron's GPT model cannot be this one.
    """
    facts = (_mixture if _family(model) in _MIXTURES else _dense)(model, seq_len)
    found: Arguments = {}
    for argument, row in _TABLES["arguments"].items():
        if isinstance(row, str):
            value = facts.get(row)
        else:
            value = row["is"] if facts.get(row["when"]) else None
        if value is not None and value is not False:
            found[argument] = value
    found |= facts["more"]
    return found


def balance_advice(model: Model) -> str:
    """The loss that balances the experts in a training of its own; empty for a dense model.

    Trials train without one: layouts are told apart by their losses, and that of `aux_loss`
    depends on the micro-batch.
    """
    if model.shape.n_experts < 2:
        return ""
    config = model.source["config"]
    is_biased = _is_sigmoid(model)
    of_config = config.get("router_aux_loss_coef") or config.get("aux_loss_alpha") or 1e-3
    kind, coefficient = ("seq_", _BALANCE_OF_BIASED) if is_biased else ("", of_config)
    flags = f"--moe-router-load-balancing-type {kind}aux_loss"
    return f"{flags} --moe-aux-loss-coeff {coefficient:g}"


def check_release(model: Model, release: str, *, by_script: bool) -> None:
    """Refuse a model that a release of Megatron Core, such as `0.16`, cannot be.

    Raises:
        JobError: It cannot.
    """
    if not release:
        return
    rope = rope_settings(model.source.get("config", {}))
    other: list[str] = []
    if has_sinks(model):
        if not is_at_least(release, _HAS_SINKS):
            raise JobError.of("engines.megatron.no_sinks", model=model, release=release)
        has_flags = rope["rope_type"] != "yarn" or is_at_least(release, _HAS_YARN_FLAGS)
        if by_script and not has_flags:
            raise JobError.of("engines.megatron.no_yarn_flags", model=model, release=release)
    elif "is_latent" in _of_mixture(model) and by_script and rope["rope_type"] == "yarn":
        other = [name for name in _YARN_OF_LATENT if name in _yarn_of_latent(rope)]
    if other:
        names = ", ".join(other)
        raise JobError.of("engines.megatron.other_yarn", model=model, release=release, names=names)


_HAS_SINKS, _HAS_YARN_FLAGS = "0.15", "0.19"


def has_layer_norm(model: Model, seq_len: int) -> bool:
    """True if the norms of a model are LayerNorm, and none of RMS.

    Raises:
        JobError: Megatron's GPT model cannot be this one.
    """
    return _family(model) not in _MIXTURES and _shape(model, seq_len)["norm"] != "rms"


def has_sinks(model: Model) -> bool:
    """True if the model's attention has sinks, and windows in some layers."""
    return _family(model) == "gpt_oss"


def has_attention_biases(model: Model) -> bool:
    """True if projections of a mixture's attention have biases."""
    key, default = _of_mixture(model).get("biases", ("", False))
    return has_sinks(model) or bool(model.source.get("config", {}).get(key, default))


def _of_mixture(model: Model) -> Mapping[str, Any]:
    return _MIXTURES.get(_family(model), {})


def _family(model: Model) -> str:
    return str(model.source.get("config", {}).get("model_type", ""))


_WHY: Mapping[str, str] = _TABLES["not"]
"""Why Megatron's GPT model is none of a family, by megatron/core/models/gpt/gpt_layer_specs.py and
megatron/training/arguments.py up to 0.19, and Megatron-Bridge's models/minimax_m2; or not one
whose config says something."""


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


def _dense(model: Model, seq_len: int) -> dict[str, Any]:
    shape = _shape(model, seq_len)
    if shape["gated_mlp"] and shape["activation"] != "silu":
        raise _cannot_be(model, f"its gated MLP has {shape['activation']}, Megatron's silu")
    if not shape["gated_mlp"] and not shape["activation"].startswith("gelu"):
        raise _cannot_be(model, f"its MLP has {shape['activation']}, Megatron's gelu")
    if shape["output_bias"] != shape["mlp_bias"]:
        raise _cannot_be(model, "its attention has biases where its MLP has none")
    learned: Arguments = {"position_embedding_type": "learned_absolute"}
    return {
        **shape,
        **_heads(shape["n_heads"], shape["n_kv_heads"], shape["head_dim"], shape["hidden"]),
        "n_positions": shape["n_positions"] or seq_len,
        "norm": "RMSNorm" if shape["norm"] == "rms" else "LayerNorm",
        "has_no_bias": not shape["mlp_bias"],
        "has_qkv_bias": shape["qkv_bias"] and not shape["mlp_bias"],
        "is_untied": not shape["tied_embeddings"],
        "residual_dropout": shape.get("residual_dropout", 0.0),
        "more": _rotary(model, shape["rotary"]) if "rotary" in shape else learned,
    }


def _heads(n_heads: int, n_kv_heads: int, head_dim: int | None, hidden: int) -> dict[str, Any]:
    is_grouped = n_kv_heads != n_heads
    return {
        "is_grouped": is_grouped,
        "kv_groups": n_kv_heads if is_grouped else None,
        "kv_channels": head_dim if head_dim and head_dim * n_heads != hidden else None,
    }


# ---------------------------------------------------------------- mixtures of experts


def _mixture(model: Model, seq_len: int) -> dict[str, Any]:
    shape, config, has = model.shape, model.source["config"], _of_mixture(model)
    _refuse_mixture(model, seq_len)
    is_latent, is_sigmoid, dense = "is_latent" in has, _is_sigmoid(model), dense_layers(model)
    groups, taken = _groups(model) or (None, None)
    pattern = [int(layer not in dense) for layer in range(shape.n_layers)]
    is_normalized = config.get("norm_topk_prob", has.get("normalizes", True))
    # What the weights of a token's experts are multiplied by.
    scale = float(config.get("routed_scaling_factor", has["scale"])) if "scale" in has else 1.0
    heads = _heads(shape.n_heads, shape.n_kv_heads, shape.head_dim, shape.hidden)
    return {
        **{name: value or None for name, value in vars(shape).items()},
        **({"kv_channels": shape.latent_value_dim} if is_latent else heads),
        "is_latent": is_latent,
        "ffn_hidden": shape.dense_ffn_hidden or shape.ffn_hidden,
        "expert_ffn_hidden": shape.ffn_hidden,
        "n_positions": seq_len,
        "norm": "RMSNorm",
        "norm_eps": float(config.get("rms_norm_eps", 1e-6)),
        "attention_dropout": float(config.get("attention_dropout") or 0.0),
        "residual_dropout": 0.0,
        "init_std": float(config.get("initializer_range", 0.02)),
        "is_untied": not shape.tied_embeddings,
        "gated_mlp": not has_sinks(model),
        "has_no_bias": not has_sinks(model),
        "has_qkv_bias": not has_sinks(model) and has_attention_biases(model),
        "qk_norm": has.get("has_qk_norm", config.get("use_qk_norm", False)),
        "has_sinks": has_sinks(model),
        "limit": float(config.get("swiglu_limit") or _SWIGLU_LIMIT) if has_sinks(model) else None,
        "is_mixture": True,
        "balance": "seq_aux_loss" if is_sigmoid else "aux_loss",
        "expert_layers": pattern_text(pattern) if dense else None,
        "has_shared_gate": bool(shape.shared_expert_hidden) and "shared_gate" in has,
        "groups": groups,
        "taken_groups": taken,
        "is_sigmoid": is_sigmoid,
        "is_softmax_first": not is_sigmoid and ("is_plain" in has or not is_normalized),
        "scale": scale if scale != 1.0 else None,
        "more": (_latent_positions if is_latent else _positions)(model)
        | (_windows(model) if has_sinks(model) else {}),
    }


def _refuse_mixture(model: Model, seq_len: int) -> None:
    family, config = _family(model), model.source["config"]
    if "lora" in model.source:
        raise _cannot_be(model, "LoRA: Megatron-LM trains every weight")
    if family != "gpt_oss" and config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise _cannot_be(model, f"its experts have {config['hidden_act']}, Megatron's silu")
    window = model.shape.window if model.shape.n_windowed_layers else 0
    if "has_windows" in _of_mixture(model) and 0 < window < seq_len:
        raise _cannot_be(model, _WHY["window"].format(window=window, seq_len=seq_len))
    has_biases = bool(config.get("attention_bias", family == "gpt_oss"))
    if has_biases != (family == "gpt_oss") and family != "glm4_moe":
        raise _cannot_be(model, _WHY["biases"].format(value=str(has_biases).lower()))
    is_normalized = config.get("norm_topk_prob", _of_mixture(model).get("normalizes", True))
    if _is_sigmoid(model) and not is_normalized:
        raise _cannot_be(model, _WHY["normalized"])
    _refuse_groups(model)


def _refuse_groups(model: Model) -> None:
    """Megatron scores a group of experts by its best `topk // topk_group`, whatever the model."""
    if (groups := _groups(model)) is None:
        return
    n, taken = model.shape.experts_per_token, groups[1]
    best = _GROUPED_BY_SUM_OF if _is_sigmoid(model) else 1
    if (counted := n // taken) != best:
        why = _WHY["groups"].format(best=best, counted=counted, n=n, taken=taken)
        raise _cannot_be(model, why)


def _groups(model: Model) -> tuple[int, int] | None:
    """Groups of experts and those that a token may take from; None where it takes from all."""
    config, has = model.source["config"], _of_mixture(model)
    is_greedy = "is_plain" in has and config.get("topk_method", "greedy") == "greedy"
    if "groups" not in has or is_greedy:
        return None
    keys = zip(("n_group", "topk_group"), has["groups"], strict=True)
    groups, taken = (int(config.get(key) or default) for key, default in keys)
    return None if groups <= 1 or taken >= groups else (groups, taken)


def _is_sigmoid(model: Model) -> bool:
    """True if a sigmoid scores experts, and a bias without a gradient balances them."""
    return "is_sigmoid" in _of_mixture(model)


def _latent_positions(model: Model) -> Arguments:
    rope = rope_settings(model.source["config"])
    found: Arguments = {"position_embedding_type": "rope", "rotary_base": _theta(model, rope)}
    if rope["rope_type"] == "yarn":
        return found | {"rope_type": "yarn"} | _yarn_of_latent(rope)
    if rope["rope_type"] != "default":
        raise _cannot_be(model, f"rotary positions of type {rope['rope_type']}")
    return found | {"rope_type": "rope", "no_rope_fusion": True}  # the kernel knows YaRN alone


def _scaling(rope: Mapping[str, Any]) -> Arguments:
    return {
        "rotary_scaling_factor": float(rope["factor"]),
        "mscale": float(rope.get("mscale") or 1.0),
        "mscale_all_dim": float(rope.get("mscale_all_dim") or 0.0),
    }


def _yarn_of_latent(rope: Mapping[str, Any]) -> Arguments:
    stated = {name: rope[name] for name in _YARN_OF_LATENT if rope.get(name) is not None}
    other = {name: value for name, value in stated.items() if value != _YARN_OF_LATENT[name]}
    return {**_scaling(rope), **other}


def _positions(model: Model) -> Arguments:
    config, family = dict(model.source["config"]), _family(model)
    rope = rope_settings(config)
    if rope["rope_type"] == "yarn":
        longest = rope.get("original_max_position_embeddings") or 4096
        return {
            "position_embedding_type": "yarn",
            "rotary_base": _theta(model, rope),
            "yarn_original_max_position_embeddings": int(longest),
            "yarn_beta_fast": float(rope.get("beta_fast") or 32.0),
            "yarn_beta_slow": float(rope.get("beta_slow") or 1.0),
            **_scaling(rope),
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
    return JobError.of("engines.megatron.no_gpt_model", model=model, why=why)
