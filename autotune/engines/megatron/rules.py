"""Which Megatron layouts are legal: each rule on whole columns, with what it says of one layout.

A rule is a row of rules.json, the arguments of `layout_rule`; one that calculates names a function
of this file under `allows`. A row with `each` is a rule for each of some knobs: `{knob}` stands
for the knob, `{value}` for what `each` has for it.

A rule is Megatron's own where its source names a file of NVIDIA/Megatron-LM (its main branch at
Megatron Core 0.20), and ours where it keeps two layouts from meaning the same run.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from autotune.base.data import table_beside
from autotune.engines.megatron.choices import BALANCED, GRAPHS, has
from autotune.engines.megatron.layout_rule import layout_rule
from autotune.engines.megatron.layout_task import (
    Counts,
    LayoutRows,
    Truth,
    middle_layers,
    of_splits,
    written_stages,
)
from autotune.engines.megatron.stages import Stages, StageWork, balanced_layers, even_layers
from autotune.space.rule import Rule


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


def _fills_groups(pp: Counts, vp: Counts, grad_accum: Counts, vp_group: int) -> Truth:
    rest = grad_accum % max(1, vp_group)
    fills = (pp <= vp_group) & (vp_group <= grad_accum) & ((rest == 0) | (rest >= pp))
    found: Truth = fills | (vp == 1) | (vp_group < 1)
    return found


def _captures_what_is_there(cuda_graphs: Counts, n_experts: int, n_dense_layers: int) -> Truth:
    routes, computes = (has(part, GRAPHS, cuda_graphs) for part in ("moe_router", "mlp"))
    has_experts, has_dense = n_experts > 1, n_experts < 2 or n_dense_layers > 0
    found: Truth = (~routes | has_experts) & (~computes | has_dense)
    return found


def _of_each_written(holds: Callable[..., bool], stages: Counts, *others: Counts | int) -> Truth:
    """Whether the stages of each layout that somebody wrote, and other values, hold together.

    Columns have one value for each layout, facts of the task one for all.
    """
    found = np.ones(len(stages), dtype=np.bool_)
    for at in np.flatnonzero(stages > BALANCED):
        values = (int(other if np.ndim(other) == 0 else np.ravel(other)[at]) for other in others)
        found[at] = holds(written_stages(int(stages[at])), *values)
    return found


def _fills_ranks(stages: Counts, pp: Counts) -> Truth:
    return _of_each_written(lambda written, pp: len(written) % pp == 0, stages, pp)


def _fills_chunks(stages: Counts, pp: Counts, vp: Counts) -> Truth:
    return _of_each_written(lambda written, pp, vp: len(written) == pp * vp, stages, pp, vp)


def _has_all_layers(stages: Counts, n_layers: int) -> Truth:
    return _of_each_written(lambda written, n: "".join(written).count("t") == n, stages, n_layers)


def _has_ends(stages: Counts) -> Truth:
    return _of_each_written(_begins_and_ends, stages)


def _has_mtp_last(stages: Counts, n_mtp_layers: int, pp: Counts) -> Truth:
    return _of_each_written(_places_mtp_last, stages, n_mtp_layers, pp)


def _has_no_mtp_first(stages: Counts, pp: Counts) -> Truth:
    return _of_each_written(
        lambda written, pp: pp == 1 or "m" not in "".join(written[::pp]), stages, pp
    )


def _begins_and_ends(stages: Stages) -> bool:
    letters = "".join(stages)
    counts = letters.count("E"), letters.count("L")
    return (letters[:1], letters[-1:], *counts) == ("E", "L", 1, 1)


def _places_mtp_last(stages: Stages, n_mtp_layers: int, pp: int) -> bool:
    letters = "".join(stages)
    mtp_stages = [at for at, stage in enumerate(stages) if "m" in stage]
    if letters.count("m") != n_mtp_layers or len(mtp_stages) > 1:
        return False
    return not mtp_stages or (
        "t" not in letters[letters.index("m") :] and mtp_stages[0] >= len(stages) - pp
    )


def _differs_from_even(
    stages: Counts, pp: Counts, vp: Counts, n_layers: int, work: StageWork | None
) -> Truth:
    found = np.ones(len(stages), dtype=np.bool_)
    where = np.flatnonzero((stages == BALANCED) & (pp > 1))
    differs = partial(_is_uneven_split, work or StageWork(n_layers=n_layers))
    found[where] = of_splits(differs, pp[where], vp[where])
    return found


def _is_uneven_split(work: StageWork, pp: int, vp: int) -> bool:
    """True for balanced stages that no other knobs make."""
    if work.n_layers % (pp * vp) and (work.n_layers + 2) % (pp * vp):
        return True
    counts = balanced_layers(work, pp, vp)
    if counts == even_layers(work.n_layers, pp, vp):
        return False
    first, *middle, last = counts
    ends = (work.n_layers + 2) // (pp * vp)
    return bool(
        first != ends - 1 or last != ends - 1 or any(n_middle != ends for n_middle in middle)
    )


def _has_experts_on_each_rank(counts: list[int], pp: int, n_dense_layers: int) -> bool:
    ends = np.cumsum(counts)
    experts = np.minimum(np.array(counts), np.maximum(0, ends - n_dense_layers))
    return all(int(experts[rank::pp].sum()) > 0 for rank in range(pp))


def _tracks_each_rank(
    stages: Counts,
    pp: Counts,
    vp: Counts,
    first_stage_layers: Counts,
    n_layers: int,
    n_dense_layers: int,
    n_mtp_layers: int,
    tracks_aux_loss: bool,
    work: StageWork | None,
) -> Truth:
    if not (tracks_aux_loss and n_mtp_layers and n_dense_layers):
        return np.ones(len(stages), dtype=np.bool_)
    model = work or StageWork(n_layers=n_layers)
    has_experts = partial(_rank_has_experts, model, n_layers, n_dense_layers)
    return of_splits(has_experts, stages, pp, vp, first_stage_layers)


def _rank_has_experts(
    work: StageWork, n_layers: int, n_dense: int, stages: int, pp: int, vp: int, first: int
) -> bool:
    if stages > BALANCED:
        counts = [stage.count("t") for stage in written_stages(stages)]
        return _has_experts_on_each_rank(counts, pp, n_dense)
    if stages:
        return _has_experts_on_each_rank(list(balanced_layers(work, pp, vp)), pp, n_dense)
    # Even stages: the first rank's chunks are the first ones.
    return (first or n_layers // pp) > n_dense or (vp > 1 and n_layers > n_dense + n_layers // vp)


_ROWS: list[dict[str, Any]] = table_beside(__file__, "rules.json")
_EACH = {row["name"]: row["each"] for row in _ROWS if "each" in row}
ON_GPU_ALONE: list[str] = _EACH["{knob}.gpu"]
"""Knobs that have to stay at their default on CPU ranks."""
OF_TRANSFORMER_ENGINE: Mapping[str, str] = _EACH["{knob}.transformer_engine"]
"""Knobs that have to stay at their default on a GPU without Transformer Engine, and the source."""
OF_SOME_RELEASES: Mapping[str, str] = _EACH["{knob}.release"]
"""Knob -> its flag, where not every release has it that is known."""


def _rules() -> Iterator[Rule[LayoutRows]]:
    for row in _ROWS:
        knobs = row.get("each", {"": ""})
        for knob in knobs:
            value = knobs[knob] if isinstance(knobs, Mapping) else ""
            entries: dict[str, Any] = {
                entry: text.replace("{knob}", knob).replace("{value}", value)
                for entry, text in row.items()
                if entry != "each"
            }
            if "allows" in entries:
                entries["allows"] = globals()[f"_{entries['allows']}"]
            yield layout_rule(**entries)


RULES = tuple(_rules())
