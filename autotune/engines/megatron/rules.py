"""Which Megatron layouts are legal: each rule on whole columns, with what it says of one layout.

rules.json has them in the order in which they are asked; `layout_rule` describes the entries. One
without `when` has its condition in `CONDITIONS`. One with `each` is a rule for each of some knobs:
`{knob}` stands for the knob, `{value}` for what `each` has for it.

A rule is Megatron's own where its source names a file of NVIDIA/Megatron-LM (its main branch at
Megatron Core 0.20), and ours where it keeps two layouts from meaning the same run.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from autotune.base.data import table_beside
from autotune.cost.plans import Recompute
from autotune.engines.megatron import stage_rules
from autotune.engines.megatron.choices import (
    CP_KINDS,
    GRAPHS,
    OFFLOADED,
    RECOMPUTED,
    has,
)
from autotune.engines.megatron.layout_rule import layout_rule
from autotune.engines.megatron.layout_task import Counts, LayoutRows, Truth, middle_layers
from autotune.space.rule import Rule

_ROWS: list[dict[str, Any]] = table_beside(__file__, "rules.json")
_EACH = {row["name"]: row["each"] for row in _ROWS if "each" in row}
ON_GPU_ALONE: list[str] = _EACH["{knob}.gpu"]
"""Knobs that have to stay at their default on CPU ranks."""
OF_TRANSFORMER_ENGINE: Mapping[str, str] = _EACH["{knob}.transformer_engine"]
"""Knobs that have to stay at their default on a GPU without Transformer Engine, and the source."""
OF_SOME_RELEASES: Mapping[str, str] = _EACH["{knob}.release"]
"""Knob -> its flag, where not every release has it that is known."""
_A2A = CP_KINDS.index("a2a")


def _splits_unevenly(
    n_layers: int, pp: Counts, vp: Counts, first_stage_layers: Counts, last_stage_layers: Counts
) -> Truth:
    first, last = first_stage_layers, last_stage_layers
    rest, stages = middle_layers(n_layers, pp, first, last)
    is_even = (first == 0) & (last == 0)
    chunks = np.maximum(1, stages * vp)
    middle = np.where(stages > 0, (rest > 0) & (rest % chunks == 0), rest == 0)
    split: Truth = is_even | (pp == 1) | middle & (first % vp == 0) & (last % vp == 0)
    return split


def _fills_groups(grad_accum: Counts, group: int, pp: Counts) -> Truth:
    rest = grad_accum % max(1, group)
    fills: Truth = (pp <= group) & (group <= grad_accum) & ((rest == 0) | (rest >= pp))
    return fills


def _splits_evenly(
    n_layers: int,
    pp: Counts,
    vp: Counts,
    ends_as_layers: Counts,
    first_stage_layers: Counts,
    last_stage_layers: Counts,
    stages: Counts,
) -> Truth:
    found: Truth = (
        ((n_layers + 2 * ends_as_layers) % (pp * vp) == 0)
        | (stages > 0)
        | (first_stage_layers > 0)
        | (last_stage_layers > 0)
    )
    return found


CONDITIONS: Mapping[str, Callable[..., Any]] = {
    **stage_rules.CONDITIONS,
    "tp.heads": lambda n_heads, tp: n_heads % tp == 0,
    "tp.kv_heads": lambda n_kv_heads, tp, shares_kv_heads: (
        (n_kv_heads % tp == 0) | (shares_kv_heads & (tp % n_kv_heads == 0))
    ),
    "tp.ffn": lambda ffn_hidden, n_experts, dense_ffn_hidden, shared_expert_hidden, tp: (
        (dense_ffn_hidden % tp == 0) & (shared_expert_hidden % tp == 0)
        if n_experts > 1
        else ffn_hidden % tp == 0
    ),
    "world.product": lambda world, tp, pp, cp: world % (tp * pp * cp) == 0,
    "cp.sequence": lambda cp, seq_len: (cp == 1) | (seq_len % (2 * cp) == 0),
    "ep.experts": lambda ep, n_experts: (ep == 1) | (max(1, n_experts) % ep == 0),
    "ep.ranks": lambda world, tp, etp, pp, ep: world % (np.where(etp > 0, etp, tp) * pp * ep) == 0,
    "sequence_parallel.sequence": lambda seq_len, tp, cp, sequence_parallel: (
        (sequence_parallel == 0) | (seq_len // cp % tp == 0)
    ),
    "vp.layers": lambda pp, vp, ends_as_layers, n_layers, stages: (
        (pp * vp <= n_layers + 2 * ends_as_layers * (vp > 1)) | (stages > 0)
    ),
    "pp.split": _splits_evenly,
    "pp.ends": lambda n_layers, pp, vp, ends_as_layers: (
        (ends_as_layers == 0) | (n_layers % (pp * vp) != 0)
    ),
    "batch.product": lambda global_batch, dp, micro_batch: global_batch % (micro_batch * dp) == 0,
    "vp.micro_batches": lambda pp, vp, grad_accum, vp_group: (
        (vp == 1) | (grad_accum % pp == 0) | np.full(pp.shape, vp_group > 0)
    ),
    "vp.groups": lambda pp, vp, grad_accum, vp_group: (
        (vp == 1) | np.full(pp.shape, vp_group < 1) | _fills_groups(grad_accum, vp_group, pp)
    ),
    "recompute.block": lambda n_layers, pp, vp, ends_as_layers, recompute, recompute_layers: (
        (recompute_layers == 0)
        | (recompute_layers > 0)
        & (recompute_layers < (n_layers + 2 * ends_as_layers) // (pp * vp))
        & (recompute == Recompute.FULL)
    ),
    "uneven.split": _splits_unevenly,
    "uneven.same": lambda n_layers, pp, first_stage_layers, last_stage_layers: (
        ((first_stage_layers == 0) & (last_stage_layers == 0))
        | (n_layers % pp != 0)
        | ((first_stage_layers != n_layers // pp) & (first_stage_layers > 0))
        | ((last_stage_layers != n_layers // pp) & (last_stage_layers > 0))
    ),
    "uneven.block": lambda recompute_layers, first_stage_layers, last_stage_layers, stages: (
        (recompute_layers == 0)
        | ((first_stage_layers == 0) & (last_stage_layers == 0) & (stages == 0))
    ),
    "etp.experts": lambda etp, tp, n_experts, ffn_hidden: np.where(
        etp == 0,
        (n_experts < 2) | (ffn_hidden % tp == 0),
        (n_experts > 1) & (ffn_hidden % np.maximum(1, etp) == 0),
    ),
    "order.experts": lambda order, world, tp, pp, cp, ep, etp: (
        (order == 0) | (pp == 1) | (np.where(etp > 0, etp, tp) * ep == tp * cp)
    ),
    "offload_modules.recompute": lambda offload_modules, recompute, recompute_modules: (
        (offload_modules == 0)
        | (recompute != Recompute.FULL)
        & (
            (recompute != Recompute.SELECTIVE)
            | ~(
                has("core_attn", OFFLOADED, offload_modules)
                & has("core_attn", RECOMPUTED, recompute_modules)
            )
        )
    ),
    "cp_kind.heads": lambda cp_kind, cp, tp, n_kv_heads: (
        (cp_kind != _A2A) | (n_kv_heads % np.maximum(1, tp * cp) == 0)
    ),
    "cuda_graphs.experts": lambda cuda_graphs, n_experts, n_dense_layers: (
        (~has("moe_router", GRAPHS, cuda_graphs) | (n_experts > 1))
        & (~has("mlp", GRAPHS, cuda_graphs) | (n_experts < 2) | (n_dense_layers > 0))
    ),
}
"""Rule -> the layouts that it allows; parameters are columns, and facts of the task."""


def _rules() -> Iterator[Rule[LayoutRows]]:
    for row in _ROWS:
        each = row.get("each", {"": ""})
        for knob in each:
            value = each[knob] if isinstance(each, Mapping) else ""
            entries = {
                entry: text.replace("{knob}", knob).replace("{value}", value)
                for entry, text in row.items()
                if entry != "each"
            }
            yield layout_rule(**entries, allows=CONDITIONS.get(row["name"]))


RULES = tuple(_rules())
