"""What a row of a table says of its kernels, loss, attention and optimizer, as columns of `Plans`.

A word that is not known changes nothing: what the framework does is assumed instead, and said.
"""

import re
from collections.abc import Mapping

from autotune.cost.cells import Cells
from autotune.cost.traits import Traits

_CHUNK_TOKENS = 1024.0
"""Tokens of a chunk where a row does not say: what loss functions in chunks take by default."""
_FUSED_LOGIT_BYTES = 4.0
_EAGER_LOGIT_BYTES = 12.0
_CAST_LOGIT_BYTES = 8.0
"""Bytes per logit of a fused loss behind a model of Hugging Face, which has cast its logits to 32
bits: both, and the 16-bit gradient. Source: transformers, models/llama/modeling_llama.py."""
HUGGING_FACE = re.compile(
    r"\bhf\b|hugging|transformers|accelerate|trainer|\btrl\b|lightning|axolotl|llama.?factory"
    r"|\bswift\b"
)
"""Names of what trains Hugging Face's modules."""
_PATTERNS: Mapping[str, tuple[tuple[str, Mapping[str, float]], ...]] = {
    "loss": (
        # A product with the head inside, so that no logits are kept: Liger's, cut cross entropy.
        (r"chunk|linear|liger|cut|tiled", {"loss_chunk_tokens": _CHUNK_TOKENS}),
        # 16-bit logits, and their gradients in their place or beside them.
        (
            r"\bno\b|unfused|not fused|eager|plain|torch|none",
            {"logit_bytes": _EAGER_LOGIT_BYTES, "loss_chunk_tokens": 0.0},
        ),
        (
            r"fused|inplace|in-place|compile|triton|parallel",
            {"logit_bytes": _FUSED_LOGIT_BYTES, "loss_chunk_tokens": 0.0},
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
_TILED_MLP = re.compile(r"tiled?[ -_]?mlp|mlp tiles")
"""Words of `kernels` and `loss`: an MLP works on as many tokens as the model is wide. Source:
DeepSpeed, runtime/sequence_parallel/ulysses_sp.py (TiledMLP), as ArcticTraining calls it."""
_WRITTEN_SCORES = re.compile(r"attention[- ]backend[= ]unfused|transformer[- ]impl[= ]local")
"""Words of `notes`: flags of Megatron."""
_MOMENT_BYTES = (
    (r"8.?bit|int8|fp8", 2.0),
    (r"adafactor|galore", 0.5),
    (r"momentum|lion|muon|adagrad|signum", 4.0),
    (r"sgd", 0.0),
    (r"adam|lamb", 8.0),
)
"""Optimizer -> bytes per parameter of what it keeps beside the master copy."""
_ADAM_BYTES = 8.0
_EIGHT_BIT_BYTES = 2.0


def choice_columns(
    cells: Cells, columns: Mapping[str, float], *, is_hopper: bool, traits: Traits
) -> dict[str, float]:
    """Columns that the cells `loss`, `attention`, `kernels` and `optimizer` change.

    `columns` are those of the row without them; `is_hopper` says whether its device has fp8.
    """
    framework = traits.name
    found = {
        **_said(cells, "kernels", framework),
        **_said(cells, "loss", framework),
        **_attention(cells, framework, is_hopper=is_hopper),
    }
    if found.get("logit_bytes") == _EAGER_LOGIT_BYTES:
        found["logit_bytes"] = traits.eager_logit_bytes
    elif "logit_bytes" in found and HUGGING_FACE.search(cells.text("framework").lower()):
        found["logit_bytes"] = _CAST_LOGIT_BYTES
    if found.get("loss_chunk_tokens"):
        if chunk := re.search(r"(\d+)", cells.text("loss")):
            found["loss_chunk_tokens"] = max(1.0, min(float(chunk[1]), 1e9))
        found |= traits.chunked_loss
    if _TILED_MLP.search(f"{cells.text('kernels')} {cells.text('loss')}".lower()):
        found["mlp_tile_tokens"] = columns["hidden"]
    moments = _moments(cells, framework)
    if moments is not None:
        usual = columns.get("optimizer_bytes", 12.0)
        # Where all is in 16 bits, Adam's moments are half as large and there is no master copy.
        adam = min(_ADAM_BYTES, usual)
        if moments > _EIGHT_BIT_BYTES:
            moments *= adam / _ADAM_BYTES
        found["optimizer_bytes"] = usual - adam + moments
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


def _attention(cells: Cells, framework: str, *, is_hopper: bool) -> dict[str, float]:
    if _WRITTEN_SCORES.search(cells.text("notes").lower()):
        return {"flash_attention": 0.0}
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
