"""Mixtures of experts: which models AutoEP spreads, and what AutoTP splits of them beside it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # its shapes are pydantic's, and rules ask for names alone
    from autotune.job.model_shape import ModelShape

AUTOEP_PRESETS: Mapping[str, str] = {
    **dict.fromkeys(("mixtral", "qwen2_moe", "qwen3_moe", "qwen3_5_moe_text"), ""),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "minimax_m3_vl_text"), ""),
    "glm4_moe": "deepseek_v3",
    "olmoe": "qwen3_moe",
}
"""transformers' model_type -> `expert_parallel.preset_model`; empty: AutoEP finds it by the type.

Each was compared with the same model without AutoEP on CPU ranks. Of a type that DeepSpeed does
not know it tries every preset, and either raises that several match (most types) or warns and
spreads nothing (GPT-OSS).
Source: module_inject/auto_ep_presets/registry.py, resolve_preset_candidates.
"""

SPLIT_BESIDE_AUTOEP = frozenset(
    {"mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3"}
)
"""Those whose other layers AutoTP was seen to split right beside AutoEP, by `partition_config`."""

_ROWS = (r".*\.mlp(\.shared_experts?)?\.down_proj\.weight$",)
_COLUMNS = (r".*\.mlp(\.shared_experts?)?\.(gate|up)_proj\.weight$",)
_ATTENTION_ROWS = (r".*\.self_attn\.o_proj\.weight$",)
_ATTENTION_COLUMNS = (r".*\.self_attn\.[qkv]_proj\.weight$",)
_HEAD_NORMS = (r".*\.self_attn\.[qk]_norm\.weight$",)


def partition_config(shape: "ModelShape") -> dict[str, Any]:
    """What AutoTP splits of a mixture whose experts AutoEP spreads: attention and whole MLPs.

    transformers' own plan has styles for packed experts that AutoTP refuses. Norms of queries and
    keys see a part of the heads on each rank: their gradients are summed. Latent attention stays
    whole: each rank would have a part of the gradient of the rotary key, which all heads share,
    and AutoTP sums no part of a weight's gradient (seen: a norm of 1.618768 for 1.618647).
    """
    is_latent = shape.latent_kv_rank > 0
    specs = [
        _spec("row", (*_ROWS, *(() if is_latent else _ATTENTION_ROWS))),
        _spec("column", (*_COLUMNS, *(() if is_latent else _ATTENTION_COLUMNS))),
    ]
    if not is_latent:
        specs.append({**_spec("skip", _HEAD_NORMS), "grad_allreduce": True})
    return {"use_default_specs": False, "layer_specs": specs}


def _spec(kind: str, patterns: tuple[str, ...]) -> dict[str, Any]:
    return {"partition_type": kind, "patterns": list(patterns)}


def experts_elsewhere(shape: "ModelShape", ep: int) -> int:
    """Parameters of the experts that other ranks have."""
    if ep == 1:
        return 0
    n_elsewhere = shape.n_experts - shape.n_experts // ep
    return shape.n_expert_layers * n_elsewhere * shape.expert_weights
