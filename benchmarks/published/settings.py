"""Settings that a published row names in `settings`, `kernels` or `notes`, as columns.

Most tables have no columns for a dispatcher or for CUDA graphs. Of `notes` nothing else is read,
and nothing of a clause that compares with another run. A new setting is a line of `_SETTINGS`.
"""

import re
from collections.abc import Mapping

from autotune.cost.traits import CAPTURED_SHARES

from .cells import PublishedCells

_TEXTS = ("settings", "kernels", "notes")
_OTHER_RUN = re.compile(r"\bthe same layout\b|\bpredicts\b|\bother commits\b", re.I)
_NATURAL_IMBALANCE = 1.3
"""Rows of the rank that gets most, over the mean, where the router decides alone. Runs that were
published with and without forced balance differ by 1.2 to 1.5 in time."""
_SETTINGS: tuple[tuple[str, Mapping[str, float]], ...] = (
    # Later lines win where several are found.
    (r"all-?to-?all|allgather", {"flex_dispatch": 0.0}),
    (r"\bflex\b|hybrid-?ep|deep-?ep", {"flex_dispatch": 1.0}),
    (r"(permute|router)[ -_]fusion", {"fused_routing": 1.0}),
    (r"permute[ -_]fusion off", {"fused_routing": 0.0}),
    (r"grouped[ -_]gemm", {"grouped_experts": 1.0}),
    (r"scattermoe", {"grouped_experts": 1.0}),
    (r"grouped[ -_]gemm (off|false)|loop over experts", {"grouped_experts": 0.0}),
    (r"\b(ep|a2a) overlap|overlap[-_]moe[-_]expert", {"overlap_experts": 1.0}),
    (r"\b(ep|a2a) overlap (off|not stated|differs)", {"overlap_experts": 0.0}),
    (r"\b(ep|a2a) overlap on\b", {"overlap_experts": 1.0}),
    (r"delay(ed)?[ -_]wgrad", {"delays_weight_grads": 1.0}),
    (r"shared[ -_]expert[ -_]overlap", {"overlap_shared_experts": 1.0}),
    (r"balanced (routing|fake gate)|forced.balance|capacity", {"forced_balance": 1.0}),
    (r"natural routing", {"expert_imbalance": _NATURAL_IMBALANCE}),
    (r"no tp_comm_overlap|\btp-comm off", {"overlap_tp": 0.0}),
    (
        r"no overlap of any kind",
        {"overlap_reduce": 0.0, "overlap_gather": 0.0, "overlap_sends": 0.0},
    ),
)
"""Words -> columns."""
_RELEASE = re.compile(r"(?:nemo|container) (\d\d\.\d\d)")
_FUSED_SINCE = 26.05
"""NeMo's release from which recipes in mxfp8 compute experts by one kernel with their activation
and casts, capture whole iterations by CUDA graphs and compute attention in fp8. Source:
NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/perf_recipes (NVTE_CUTEDSL_FUSED_GROUPED_MLP,
_enable_hybridep_full_iteration_mxfp8)."""
_NEWEST = {
    "fused_experts": 1.0,
    "launch_free": 1.0,
    "graph_share": 1.0,
    # Its forward pass gains half as much again in fp8, and its backward pass less.
    "attention_speed": 1.25,
}
_BY_ALL_TO_ALL = (re.compile(r"gpt.?oss", re.I), re.compile(r"qwen", re.I))
"""Models whose recipes in Megatron-Bridge send rows by an all-to-all before that release: on every
GPU, and on Hopper alone, where layers of another micro-batch hide it. Source: the same,
scripts/performance/configs (26.02, 26.04)."""
_HOPPER = re.compile(r"\bH[12]00\b", re.I)
_RECIPES = (
    (re.compile(r"mx"), "mxfp8"),
    (re.compile(r"fp4"), "nvfp4"),
    (re.compile(r"fp8[-_ ]?cs|current|tensor-?wise"), "tensorwise"),
    (re.compile(r"fp8[-_ ]?sc|block"), "blockwise"),
)
"""Words of a precision -> how it chooses its scales; none: by those of steps before."""
_GRAPHS = re.compile(r"cuda[ _-]graphs?")
_NO_GRAPHS = re.compile(r"cuda[ _-]graphs? (off|differ)|\beager\b")
_UNSET_GRAPHS = re.compile(r"cuda_graph=none")
"""A recipe's setting of parts to capture; the newest capture whole iterations by another one."""


def mixture_cells(cells: PublishedCells, *, chunks_overlap: bool) -> dict[str, str]:
    """Columns of `autotune` for a mixture of experts.

    Args:
        cells: The row.
        chunks_overlap: Whether the pipeline has one stage, or several chunks in each.
    """
    found: dict[str, float] = {}
    text = _settings_text(cells)
    release = _RELEASE.search(text)
    is_micro_scaled = re.search("mx|fp4", cells.words("precision"))
    is_newest = release and float(release[1]) >= _FUSED_SINCE and is_micro_scaled
    if is_newest:
        # Recipes overlap from there on, where chunks of the pipeline allow it.
        found |= {**_NEWEST, "overlap_experts": float(chunks_overlap)}
    elif release and "bridge" in cells.words("framework"):
        found |= _older_dispatch(cells, float(chunks_overlap))
    for pattern, columns in _SETTINGS:
        if re.search(pattern, text):
            found |= columns
    is_unset = _UNSET_GRAPHS.search(text)
    if _GRAPHS.search(text) and not (is_newest and is_unset):
        captured = 0.0 if is_unset or _NO_GRAPHS.search(text) else _captured(text)
        found |= {"launch_free": captured, "graph_share": captured}
    return {name: f"{value:g}" for name, value in found.items()}


def scaling_of(cells: PublishedCells) -> str:
    """How a row's fp8 or fp4 chooses its scales, as its precision or notes name it."""
    precision, notes = cells.words("precision"), cells.text("notes").lower()
    if not re.search("fp8|float8|fp4", precision):
        return ""
    for words, name in _RECIPES:
        if words.search(precision) or (name == "tensorwise" and words.search(notes)):
            return name
    return ""


def _older_dispatch(cells: PublishedCells, can_overlap: float) -> dict[str, float]:
    everywhere, on_hopper = _BY_ALL_TO_ALL
    name = f"{cells.text('model')} {cells.text('model_name')}"
    if everywhere.search(name):
        return {"flex_dispatch": 0.0}
    if on_hopper.search(name) and _HOPPER.search(cells.text("gpu_type")):
        return {
            "flex_dispatch": 0.0,
            "overlap_experts": can_overlap,
            "delays_weight_grads": can_overlap,
        }
    return {}


def _settings_text(cells: PublishedCells) -> str:
    clauses = [clause for name in _TEXTS for clause in cells.text(name).split(";")]
    return "; ".join(clause.lower() for clause in clauses if not _OTHER_RUN.search(clause))


def _captured(text: str) -> float:
    # `mlp` beside graphs is mostly what is computed again.
    parts = [name for name in CAPTURED_SHARES if name != "mlp" and re.search(rf"\b{name}\b", text)]
    return sum(CAPTURED_SHARES[name] for name in parts) if parts else 1.0
