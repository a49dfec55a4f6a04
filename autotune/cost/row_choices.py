"""What a row of a table says of its kernels, loss, attention and optimizer, as columns of `Plans`.

A word that is not known changes nothing: what the framework does is assumed instead, and said.
"""

import re
from collections.abc import Mapping

from autotune.cost.cells import Cells
from autotune.cost.plans import Recompute

_CHUNK_TOKENS = 1024.0
"""Tokens of a chunk where a row does not say: what loss functions in chunks take by default."""
_FUSED_LOGIT_BYTES = 4.0
_SAYS_MORE = ("kernels", "settings", "notes", "framework")
_TILED_MLP = re.compile(r"(?<!no )(?<!without )\b(tiled.?mlps?|alst)\b", re.I)
_ALST = re.compile(r"(?<!no )(?<!without )\balst\b", re.I)
"""Arctic Long Sequence Training: loss and MLPs in tiles, and the inputs of recomputed layers on
the host. Source: Bekman et al. (arXiv:2506.13996), sections 3.1 and 3.3; a tile of an MLP has as
many tokens as the model is wide: DeepSpeed, runtime/sequence_parallel/ulysses_sp.py, TiledMLP."""
_PATTERNS: Mapping[str, tuple[tuple[str, Mapping[str, float]], ...]] = {
    "loss": (
        # A product with the head inside, so that no logits are kept: Liger's, cut cross entropy.
        (r"chunk|linear|liger|cut|tiled", {"loss_chunk_tokens": _CHUNK_TOKENS}),
        # 16-bit logits, and their gradients in their place or beside them.
        (r"\bno\b|unfused|not fused|eager|plain|torch|none", {"logit_bytes": 12.0}),
        (
            r"fused|inplace|in-place|compile|triton|parallel",
            {"logit_bytes": _FUSED_LOGIT_BYTES},
        ),
    ),
    "attention": (
        (
            r"\bno\b|unfused|not fused|eager|naive|math|none|core|written",
            {"flash_attention": 0.0},
        ),
        (r"flash.?(attn|attention)?.?3|fa.?3|cudnn|te\b|transformer.?engine", {"flash": 1.0}),
        (r"flash.?(attn|attention)?.?1|fa.?1|triton|xformers|efficient", {"first": 1.0}),
        (r"flash|fa.?2|sdpa|fused|flex|torch|ring|yes", {"second": 1.0}),
    ),
    "kernels": (
        (r"compile|inductor", {"fused_kernels": 0.7, "launch_free": 0.5}),
        (
            r"\bno\b|unfused|not fused|eager|plain|torch|none|\bhf\b",
            {"fused_kernels": 0.0},
        ),
        (r"graph", {"fused_kernels": 1.0, "launch_free": 1.0}),
        (r"fused|liger|te\b|transformer.?engine|apex|megatron|triton", {"fused_kernels": 1.0}),
    ),
}
"""Column -> regular expressions, of which the first that is found decides. Sources: Dao-AILab/
flash-attention, flash_attn/ops/triton/cross_entropy.py (the gradient overwrites the logits);
linkedin/Liger-Kernel, ops/fused_linear_cross_entropy.py; Shah et al., FlashAttention-3
(arXiv:2407.08608) for the speeds on Hopper; Dao (arXiv:2307.08691), section 4.1, for the first."""
_ATTENTION_SPEED = {"flash": (1.0, 1.0), "second": (1.0, 0.65), "first": (0.55, 0.4)}
"""Kernel -> its speed beside FlashAttention-2's on an A100, before Hopper and from then on."""
_MOMENT_BYTES = (
    (r"8.?bit|int8|fp8", 2.0),
    (r"adafactor|galore", 0.5),
    (r"momentum|lion|muon|adagrad|signum", 4.0),
    (r"sgd", 0.0),
    (r"adam|lamb", 8.0),
)
"""Optimizer -> bytes per parameter of what it keeps beside the master copy."""
_ADAM_BYTES = 8.0


def choice_columns(
    cells: Cells, columns: Mapping[str, float], *, is_hopper: bool, framework: str
) -> dict[str, float]:
    """Columns that the cells `loss`, `attention`, `kernels` and `optimizer` change.

    `columns` are those of the row without them; `is_hopper` says whether its device has fp8.
    """
    found = {
        **_said(cells, "kernels", framework),
        **_said(cells, "loss", framework),
        **_attention(cells, framework, is_hopper=is_hopper),
    }
    if (chunk := re.search(r"(\d+)", cells.text("loss"))) and "loss_chunk_tokens" in found:
        found["loss_chunk_tokens"] = max(1.0, min(float(chunk[1]), 1e9))
    found |= _tiles(cells, columns)
    moments = _moments(cells, framework)
    if moments is not None:
        found["optimizer_bytes"] = columns.get("optimizer_bytes", 12.0) - _ADAM_BYTES + moments
    return found


def fewest_logit_bytes(cells: Cells, taken: float) -> float:
    """Bytes per logit that a run holds at least, where it is predicted with `taken`.

    Fewer where the row does not say how the loss is computed: it may be compiled or fused.
    """
    if not cells.is_blank("loss") or taken <= _FUSED_LOGIT_BYTES:
        return taken
    cells.assume("loss", "not fused", "fused at the low end of memory")
    return _FUSED_LOGIT_BYTES


def _said(cells: Cells, name: str, framework: str) -> dict[str, float]:
    text = cells.text(name).lower()
    if cells.is_blank(name):
        return {}
    for pattern, columns in _PATTERNS[name]:
        if re.search(pattern, text):
            return dict(columns)
    cells.assume(name, f"as {framework}", f"{text} is not known")
    return {}


def _tiles(cells: Cells, columns: Mapping[str, float]) -> dict[str, float]:
    """Columns of what is computed over chunks of tokens, as the cells in words say."""
    words = "; ".join(cells.text(name) for name in _SAYS_MORE)
    if not _TILED_MLP.search(words):
        return {}
    found = {"mlp_chunk_tokens": columns["hidden"]}
    if not _ALST.search(words):
        return found
    meant = {
        "loss": ("loss_chunk_tokens", _CHUNK_TOKENS),
        "recompute": ("recompute", float(Recompute.FULL)),
        "offload": ("offloaded_activations", 1.0),
    }
    for name, (column, value) in meant.items():
        if not cells.text(name):
            cells.assume(column, value, "ALST")
            found[column] = value
    return found


def _attention(cells: Cells, framework: str, *, is_hopper: bool) -> dict[str, float]:
    said = _said(cells, "attention", framework)
    kernel = next((name for name in said if name in _ATTENTION_SPEED), None)
    if kernel is None:
        return said
    return {"flash_attention": 1.0, "attention_speed": _ATTENTION_SPEED[kernel][is_hopper]}


def _moments(cells: Cells, framework: str) -> float | None:
    text = cells.text("optimizer").lower()
    if cells.is_blank("optimizer"):
        return None
    for pattern, size in _MOMENT_BYTES:
        if re.search(pattern, text):
            return size
    cells.assume("optimizer", f"as {framework}", f"{text} is not known")
    return None
