"""The arguments of a model: which flags make Megatron's GPT model a Hugging Face one.

A model that Megatron would train as another one is refused.

Source: NVIDIA/Megatron-LM, megatron/training/arguments.py (Megatron Core 0.14 to 0.16).
"""

from collections.abc import Mapping
from typing import Any

from autotune.base.errors import JobError
from autotune.job.model import Model
from autotune.trial.transformer_shape import NoPipelineError, shape_of

Arguments = dict[str, int | float | str | bool | list[str]]

_LLAMA_3_SCALING = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""What Megatron's `--use-rope-scaling` is fixed to.

Source: NVIDIA/Megatron-LM, megatron/core/models/common/embeddings/rotary_pos_embedding.py."""


def model_arguments(model: Model, seq_len: int) -> Arguments:
    """The model's sizes; `vocab_size` is the number of its token ids, before any padding.

    Raises:
        JobError: Megatron's GPT model cannot be this one.
    """
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
    return found | _experts(model)


def has_layer_norm(model: Model, seq_len: int) -> bool:
    """Whether the norms of a model are LayerNorm, and none of RMS.

    Raises:
        JobError: Megatron's GPT model cannot be this one.
    """
    return bool(_shape(model, seq_len)["norm"] != "rms")


def _shape(model: Model, seq_len: int) -> dict[str, Any]:
    """Sizes as of `shape_of`; a mixture of experts has those of the dense model beside them."""
    config = model.source.get("config", {})
    source = dict(model.source)
    if config.get("model_type") == "mixtral":
        source["config"] = {**config, "model_type": "mistral"}
    try:
        return shape_of(source, seq_len)
    except NoPipelineError as error:
        raise _cannot_be(model, str(error)) from error


def _positions(model: Model, shape: Mapping[str, Any]) -> Arguments:
    if "rotary" not in shape:
        return {"position_embedding_type": "learned_absolute"}
    rotary = shape["rotary"]
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


def _experts(model: Model) -> Arguments:
    if model.shape.n_experts < 2:
        return {}
    return {
        "num_experts": model.shape.n_experts,
        "moe_router_topk": model.shape.experts_per_token,
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": 0.0,
    }


def _cannot_be(model: Model, why: str) -> JobError:
    return JobError(
        f"engine megatron: model {model.name!r}: {why}",
        "name a GPT-2, Llama, Mistral, Mixtral or Qwen model, or use --engine deepspeed",
    )
