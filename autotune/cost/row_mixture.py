"""What a row of a table says of its mixture of experts, as columns of `Plans`.

The cell `recompute` is read, and words of `kernels`, `settings` and `notes` that name
a setting: most tables have no columns for a dispatcher or for CUDA graphs. Of `notes` nothing else
is read, and nothing of a clause that compares with another run.
"""

import re
from collections.abc import Mapping

from autotune.cost.cells import Cells, RowError
from autotune.cost.traits import CAPTURED_SHARES, RECOMPUTED_MODULES

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
_NO_GRAPHS = re.compile(r"cuda[ _-]graphs? (off|differ)|cuda_graph=none|\beager\b")


def recomputed_modules(cells: Cells) -> dict[str, float]:
    """Columns of the modules that a `recompute` cell lists: `selective: [mla_up_proj, mlp]`.

    Empty where it lists none: `selective` alone is the attention's core.

    Raises:
        RowError: A list in brackets has something else.
    """
    text = cells.text("recompute").lower()
    listed = re.search(r"\[(.*)\]", text)
    unknown = _words(listed[1]) - set(RECOMPUTED_MODULES) if listed else set()
    if unknown:
        raise RowError(
            f"recompute={text!r}: {', '.join(sorted(unknown))} is none of "
            f"{', '.join(RECOMPUTED_MODULES)}"
        )
    named = _words(text) & set(RECOMPUTED_MODULES)
    return (
        {column: float(module in named) for module, column in RECOMPUTED_MODULES.items()}
        if named
        else {}
    )


def lists_modules(text: str) -> bool:
    """Whether a `recompute` cell names modules and nothing else: `mla_up_proj, mlp`."""
    words = _words(text)
    return bool(words) and words <= set(RECOMPUTED_MODULES)


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z_]+", text.lower()))


def mixture_columns(
    cells: Cells, layout: Mapping[str, float], usual: Mapping[str, float]
) -> dict[str, float]:
    """Columns of experts: what the framework usually does, changed by what the row says."""
    found = dict(usual)
    text = _settings_text(cells)
    release = _RELEASE.search(text)
    is_micro_scaled = re.search("mx|fp4", cells.text("precision").lower())
    is_newest = release and float(release[1]) >= _FUSED_SINCE and is_micro_scaled
    can_overlap = float(layout["pp"] == 1 or layout["vp"] > 1)
    if is_newest:
        # Recipes overlap from there on, where chunks of the pipeline allow it.
        found["overlap_experts"] = can_overlap
    elif release and "flex_dispatch" in usual:
        found |= _older_dispatch(cells, can_overlap)
    for pattern, columns in _SETTINGS:
        if re.search(pattern, text):
            found |= columns
    if "flex_dispatch" in usual and not re.search(r"dispatch|hybrid-?ep|deep-?ep", text):
        cells.assume("dispatcher", "flex" if found["flex_dispatch"] else "alltoall")
    if not {"expert_imbalance", "forced_balance"} & set(found):
        cells.assume("expert_imbalance", 1, "as if forced; else steps are up to 1.5 times slower")
    if _GRAPHS.search(text):
        captured = 0.0 if _NO_GRAPHS.search(text) else _captured(text)
        found |= {"launch_free": captured, "graph_share": captured}
    if is_newest:
        found |= _NEWEST
    return found


def scaling_of(cells: Cells) -> str:
    """How a row's fp8 or fp4 chooses its scales, as `SCALINGS` names it."""
    text = f"{cells.text('precision')}; {cells.text('notes')}".lower()
    precision = cells.text("precision").lower()
    for words, name in _RECIPES:
        if words.search(precision) or (name == "tensorwise" and words.search(text)):
            return name
    return "delayed"


def _older_dispatch(cells: Cells, can_overlap: float) -> dict[str, float]:
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


def _settings_text(cells: Cells) -> str:
    clauses = [clause for name in _TEXTS for clause in cells.text(name).split(";")]
    return "; ".join(clause.lower() for clause in clauses if not _OTHER_RUN.search(clause))


def _captured(text: str) -> float:
    # `mlp` beside graphs is mostly what is computed again.
    parts = [name for name in CAPTURED_SHARES if name != "mlp" and re.search(rf"\b{name}\b", text)]
    return sum(CAPTURED_SHARES[name] for name in parts) if parts else 1.0
