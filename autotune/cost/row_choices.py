"""Words of a table's row for its kernels, loss, attention and optimizer, as columns of `Plans`."""

import re
from collections.abc import Mapping

from autotune.cost.cells import Cells
from autotune.cost.traits import RECOMPUTED_MODULES, SCALINGS, Traits

_CHUNK_TOKENS = 1024.0
"""Tokens of a chunk where a row does not say: what loss functions in chunks take by default."""
_FUSED_LOGIT_BYTES = 4.0
_EAGER_LOGIT_BYTES = 12.0
_CAST_LOGIT_BYTES = 8.0
"""Bytes per logit of a fused loss behind a model of Hugging Face, which has cast its logits to 32
bits: both, and the 16-bit gradient. Source: transformers, models/llama/modeling_llama.py."""
CHOICES: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "loss": {
        # 16-bit logits, 32-bit ones, and their gradients in their place or beside them.
        "eager": {"logit_bytes": _EAGER_LOGIT_BYTES, "loss_chunk_tokens": 0.0},
        "fused": {"logit_bytes": _FUSED_LOGIT_BYTES, "loss_chunk_tokens": 0.0},
        "fused after a cast": {"logit_bytes": _CAST_LOGIT_BYTES, "loss_chunk_tokens": 0.0},
        # A product with the head inside, so that no logits are kept: Liger's, cut cross entropy.
        "chunked": {"loss_chunk_tokens": _CHUNK_TOKENS},
    },
    "attention": {
        "eager": {"flash_attention": 0.0},
        "flash 1": {"flash_attention": 1.0},
        "flash": {"flash_attention": 1.0},
        "flash 3": {"flash_attention": 1.0},
    },
    "kernels": {
        "eager": {"fused_kernels": 0.0},
        "compiled": {"fused_kernels": 0.7, "launch_free": 0.5},
        "fused": {"fused_kernels": 1.0},
        "graphs": {"fused_kernels": 1.0, "launch_free": 1.0, "graph_share": 1.0},
    },
    # How fp8 and fp4 choose their scales.
    "scaling": SCALINGS,
}
"""Column -> word -> columns of `Plans`. Sources: Dao-AILab/flash-attention,
flash_attn/ops/triton/cross_entropy.py (the gradient overwrites the logits); linkedin/Liger-Kernel,
ops/fused_linear_cross_entropy.py."""
_ATTENTION_SPEED = {"flash 3": (1.0, 1.0), "flash": (1.0, 0.65), "flash 1": (0.55, 0.4)}
"""Word -> its speed beside FlashAttention-2's on an A100, before Hopper and from then on. Sources:
Shah et al., FlashAttention-3 (arXiv:2407.08608); Dao (arXiv:2307.08691), section 4.1."""
MOMENT_BYTES = {
    "adamw": 8.0,
    "adamw 8-bit": 2.0,
    "adafactor": 0.5,
    "lion": 4.0,
    "muon": 4.0,
    "sgd momentum": 4.0,
    "sgd": 0.0,
}
"""Optimizer -> bytes per parameter of what it keeps beside the master copy."""
_ADAM_BYTES = 8.0
_EIGHT_BIT_BYTES = 2.0

SETTINGS: Mapping[str, tuple[float, float]] = {
    "shard_group": (0, 1e6),
    "trained_share": (1e-6, 1),
    "grad_bytes": (0, 8),
    "has_dropout": (0, 1),
    "mlp_tile_tokens": (0, 1e9),
    "watched_stage": (0, 2),
    "adapts_mlp": (0, 1),
    "dequantized_bytes": (0, 100),
    "n_mtp_layers": (0, 100),
    "offloaded_activations": (0, 1),
    "optimizer_host_share": (0, 1),
    "launch_free": (0, 1),
    "graph_share": (0, 1),
    "attention_speed": (0.01, 100),
    "overlap_reduce": (0, 1),
    "overlap_gather": (0, 1),
    "overlap_sends": (0, 1),
    "overlap_tp": (0, 1),
    # Mixtures of experts.
    "expert_imbalance": (1, 1000),
    "forced_balance": (0, 1),
    "grouped_experts": (0, 1),
    "fused_experts": (0, 1),
    "fused_routing": (0, 1),
    "flex_dispatch": (0, 1),
    "overlap_experts": (0, 1),
    "overlap_shared_experts": (0, 1),
    "delays_weight_grads": (0, 1),
}
"""Columns of `Plans` that a table may have under the same name, with the numbers that they take.
They come before what the framework usually does."""


def choice_columns(
    cells: Cells, columns: Mapping[str, float], *, is_hopper: bool, traits: Traits
) -> dict[str, float]:
    """Columns that the cells `scaling`, `kernels`, `loss`, `attention` and `optimizer` change.

    `columns` are those of the row without them; `is_hopper` says whether its device has fp8.

    Raises:
        RowError: A word is not known.
    """
    found = {
        **_word(cells, "scaling"),
        **_word(cells, "kernels"),
        **_loss(cells, traits),
        **_word(cells, "attention"),
    }
    if (kernel := cells.text("attention")) in _ATTENTION_SPEED:
        found["attention_speed"] = _ATTENTION_SPEED[kernel][is_hopper]
    if not cells.is_blank("optimizer"):
        moments = MOMENT_BYTES[cells.choice("optimizer", MOMENT_BYTES, "")]
        usual = columns.get("optimizer_bytes", 12.0)
        # Where all is in 16 bits, Adam's moments are half as large and there is no master copy.
        adam = min(_ADAM_BYTES, usual)
        if moments > _EIGHT_BIT_BYTES:
            moments *= adam / _ADAM_BYTES
        found["optimizer_bytes"] = usual - adam + moments
    return found


def setting_columns(cells: Cells) -> dict[str, float]:
    """Columns of `SETTINGS` that the row has.

    Raises:
        RowError: A cell is no number within its bounds.
    """
    found = {name: cells.within(name, *bounds) for name, bounds in SETTINGS.items()}
    return {name: value for name, value in found.items() if value is not None}


def fewest_logit_bytes(cells: Cells, taken: float) -> float:
    """Bytes per logit that a run holds at least, where it is predicted with `taken`.

    Fewer where the row does not say how the loss is computed: it may be compiled or fused.
    """
    if not cells.is_blank("loss") or taken <= _FUSED_LOGIT_BYTES:
        return taken
    cells.assume("loss", "not fused", "fused at the low end of memory")
    return _FUSED_LOGIT_BYTES


def recomputed_modules(cells: Cells) -> dict[str, float]:
    """Columns of the modules that a `recompute` cell lists: `selective: [mla_up_proj, mlp]`.

    Empty where it lists none: `selective` alone is the attention's core.

    Raises:
        RowError: A list has something else.
    """
    listed = re.fullmatch(r"selective: \[(.+)\]", cells.text("recompute"))
    if listed is None:
        return {}
    named = {name.strip() for name in listed[1].split(",")}
    if unknown := named - set(RECOMPUTED_MODULES):
        raise cells.wrong(
            "recompute",
            f"has {', '.join(sorted(unknown))}, which is none of {', '.join(RECOMPUTED_MODULES)}",
        )
    return {column: float(module in named) for module, column in RECOMPUTED_MODULES.items()}


def _word(cells: Cells, key: str) -> dict[str, float]:
    if cells.is_blank(key):
        return {}
    return dict(CHOICES[key][cells.choice(key, CHOICES[key], "")])


def _loss(cells: Cells, traits: Traits) -> dict[str, float]:
    chunk = re.fullmatch(r"chunked (\d{1,9})", cells.text("loss"))
    if chunk or cells.text("loss") == "chunked":
        tokens = max(1.0, float(chunk[1])) if chunk else _CHUNK_TOKENS
        return {"loss_chunk_tokens": tokens, **traits.chunked_loss}
    found = _word(cells, "loss")
    if cells.text("loss") == "eager":
        found["logit_bytes"] = traits.eager_logit_bytes
    return found
