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
    (r"balanced routing|forced.balance|capacity", {"forced_balance": 1.0}),
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
"""NeMo's release from which experts in mxfp8 are one kernel with their activation and casts.
Source: NVIDIA-NeMo/Megatron-Bridge, scripts/performance/configs, cutedsl_fused_grouped_mlp."""
_GRAPHS = re.compile(r"cuda[ _-]graphs?")
_NO_GRAPHS = re.compile(r"cuda[ _-]graphs? (off|differ)|cuda_graph=none|\beager\b")


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
    if release and float(release[1]) >= _FUSED_SINCE and is_micro_scaled:
        # Recipes overlap from there on, where chunks of the pipeline allow it.
        found |= {"fused_experts": 1.0, "overlap_experts": float(chunks_overlap)}
    for pattern, columns in _SETTINGS:
        if re.search(pattern, text):
            found |= columns
    if _GRAPHS.search(text):
        found["launch_free"] = 0.0 if _NO_GRAPHS.search(text) else _captured(text)
    return {name: f"{value:g}" for name, value in found.items()}


def _settings_text(cells: PublishedCells) -> str:
    clauses = [clause for name in _TEXTS for clause in cells.text(name).split(";")]
    return "; ".join(clause.lower() for clause in clauses if not _OTHER_RUN.search(clause))


def _captured(text: str) -> float:
    # `mlp` beside graphs is mostly what is computed again.
    parts = [name for name in CAPTURED_SHARES if name != "mlp" and re.search(rf"\b{name}\b", text)]
    return sum(CAPTURED_SHARES[name] for name in parts) if parts else 1.0
