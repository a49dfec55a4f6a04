"""Adapters beside frozen weights (LoRA) in a table's row, as columns of `Plans`."""

from collections.abc import Mapping

from autotune.cost.cells import Cells
from autotune.cost.problem import WITHOUT_DROPOUT, packed_columns
from autotune.cost.row_model import count_params
from autotune.cost.traits import DROPPED_BYTES, Traits

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
    drops = cells.within("lora_dropout", 0, 1)
    if drops is None:
        cells.assume("lora_dropout", drops := 0.0)
    hidden, head_dim = columns["hidden"], columns["head_dim"]
    matrices = adapts_mlp * (2.0 + columns["gated_mlp"]) * max(1.0, columns["n_experts"])
    width, kv_width = columns["n_heads"] * head_dim, columns["n_kv_heads"] * head_dim
    mlps = matrices * (hidden + columns["ffn_hidden"])
    # Rank r adds r (n + m) to a matrix: Hu et al., LoRA (arXiv:2106.09685), section 4.1.
    adapted = rank * columns["n_layers"] * (4 * hidden + 2 * (width + kv_width) + mlps)
    share = min(1.0, adapted / count_params(columns))
    frozen = columns.get("activation_bytes", 2.0)
    if precision in ("fp8", "fp4"):
        frozen = 1.0
        cells.assume("weight_bytes", 1, "frozen weights lie in fp8")
    packed: dict[str, float] = {}
    if task == "qlora":
        packed = packed_columns(columns, count_params(columns), frozen)
        frozen = packed["weight_bytes"]
    found = {
        "adapters": traits.adapters if drops else min(traits.adapters, WITHOUT_DROPOUT),
        "adapts_mlp": adapts_mlp,
        "trained_share": share,
        **packed,
        "weight_bytes": min(frozen, columns.get("weight_bytes", frozen)),
        **traits.adapter_columns,
    }
    if not drops and "adapter_bytes" in found:
        found["adapter_bytes"] -= DROPPED_BYTES
    return found
