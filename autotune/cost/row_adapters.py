"""Adapters beside frozen weights (LoRA) in a table's row, as columns of `Plans`."""

from collections.abc import Mapping

from autotune.cost.cells import Cells
from autotune.cost.problem import packed_columns
from autotune.cost.row_model import count_params, embedding_params
from autotune.cost.traits import Traits

_TASKS = ("full", "lora", "qlora")
_USUAL_RANK = 16.0
"""Rank of adapters, where a row does not say it."""


def adapter_columns(
    cells: Cells, traits: Traits, columns: Mapping[str, float], precision: str
) -> dict[str, float]:
    """Columns of the adapters, and of the frozen weights beside them; empty without any.

    Raises:
        RowError: A word is not known.
    """
    task = "full" if cells.is_blank("task") else cells.choice("task", _TASKS, "full")
    if task == "full":
        return {}
    rank = cells.count("lora_rank", _USUAL_RANK, "of the adapters", most=100_000)
    adapts_mlp = cells.within("adapts_mlp", 0, 1)
    if adapts_mlp is None:
        adapts_mlp = 1.0
        cells.assume("adapters", "on all linear layers")
    adapted = rank * columns["n_layers"] * _widths(columns, adapts_mlp)
    share = min(1.0, adapted / count_params(columns))
    frozen = columns.get("activation_bytes", 2.0)
    if precision in ("fp8", "fp4"):
        frozen = 1.0
        cells.assume("weight_bytes", 1, "frozen weights lie in fp8")
    packed: dict[str, float] = {}
    if task == "qlora":
        packed = packed_columns(embedding_params(columns) / count_params(columns), frozen)
        frozen = packed["weight_bytes"]
    return {
        "adapters": traits.adapters,
        "adapts_mlp": adapts_mlp,
        "trained_share": share,
        **packed,
        "weight_bytes": min(frozen, columns.get("weight_bytes", frozen)),
        **traits.adapter_columns,
    }


def _widths(columns: Mapping[str, float], adapts_mlp: float) -> float:
    """Inputs and results of a layer's adapted projections: rank r adds r (n + m) to a matrix.

    Source: Hu et al., LoRA (arXiv:2106.09685), section 4.1.
    """
    hidden, width = columns["hidden"], columns["n_heads"] * columns["head_dim"]
    kv_width = columns["n_kv_heads"] * columns["head_dim"]
    matrices = (2.0 + columns["gated_mlp"]) * max(1.0, columns["n_experts"])
    mlp = matrices * (hidden + columns["ffn_hidden"])
    return 4.0 * hidden + 2.0 * width + 2.0 * kv_width + adapts_mlp * mlp
