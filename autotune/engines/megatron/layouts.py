"""The legal Megatron layouts of a job on a fleet, in columns: the lattice of `--engine megatron`.

It is made one axis at a time. Each axis multiplies the rows that are left. Then the rules that can
be judged so far remove illegal rows, so that only legal layouts are ever multiplied.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from autotune.base.data import table_beside
from autotune.base.errors import JobError
from autotune.cost.plans import Recompute
from autotune.engines.megatron.arguments import applies
from autotune.engines.megatron.choices import BALANCED, MOMENTS, RECOMPUTED, has
from autotune.engines.megatron.knobs import (
    LATTICE_KNOBS,
    MORE_KNOBS,
    RECOMPUTE,
    SHARE,
    at_default,
    columns_of,
    knobs_of,
)
from autotune.engines.megatron.layout_rule import holds
from autotune.engines.megatron.layout_task import (
    Columns,
    Counts,
    LayoutRows,
    LayoutTask,
    Truth,
    chunk_layers,
    expert_tp,
)
from autotune.engines.megatron.rules import RULES
from autotune.space.candidate import Candidate
from autotune.space.rule import Rule, judge_by, nothing_legal

QUARTERS = 4
"""Block recomputation is offered in quarters of a chunk's layers."""
_ALL_UP_TO = 64
"""Micro-batches: every divisor of the global batch up to this, and beyond it powers of two."""
_MOST_ROWS = 20_000_000
"""Rows at a time: a few gigabytes. Worlds, batches and models that people train have far fewer."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Layouts(LayoutRows, Sequence[Candidate]):
    """Layouts in columns, which are candidates once somebody looks at one.

    The columns are those of the knobs, with 0 for all that a space alone names. `recompute` is a
    `Recompute`, and `recompute_layers` says how many layers of a chunk (0: all of them). Besides
    there are `dp` and `grad_accum`.
    """

    def __len__(self) -> int:
        return len(self.columns["tp"])

    @overload
    def __getitem__(self, index: int) -> Candidate: ...

    @overload
    def __getitem__(self, index: slice) -> "Layouts": ...

    def __getitem__(self, index: int | slice) -> "Candidate | Layouts":
        if isinstance(index, slice):
            return Layouts(
                task=self.task, columns={name: c[index] for name, c in self.columns.items()}
            )
        return Candidate.of(
            knobs_of(self.row(index)), world=self.task.world, global_batch=self.task.global_batch
        )

    def __contains__(self, candidate: object) -> bool:
        return isinstance(candidate, Candidate) and len(self._find(candidate)) > 0

    def index(self, candidate: Candidate, start: int = 0, stop: int | None = None) -> int:
        found = [n for n in self._find(candidate) if start <= n and (stop is None or n < stop)]
        if not found:
            raise ValueError(f"{candidate} is none of the layouts")
        return int(found[0])

    def _find(self, candidate: Candidate) -> NDArray[np.intp]:
        wanted = columns_of([candidate])
        same = [self.columns[name] == column[0] for name, column in wanted.items()]
        return np.flatnonzero(np.logical_and.reduce(same))


PLANNED_ALONE = ("fp8", "main_grads", "cuda_graphs", "adam_moments", "optimizer_offload")
"""Knobs that the layouts of a plan have off their default, and those of a search have not: the
first two change what is trained, trials without a checkout's training loop capture no graph, and
the last two are for what fits no other way."""


def lay_out(task: LayoutTask, *, for_plan: bool = False, saves_memory: bool = False) -> Layouts:
    """Every legal layout that is worth a look.

    Args:
        task: What is laid out.
        for_plan: Whether those with `PLANNED_ALONE` are among them: fp8 and CUDA graphs where the
            device has them, and for experts gradients in 16 bits.
        saves_memory: Whether those with less of the optimizer's states on the device are, too.

    Raises:
        NothingFeasibleError: There is none; names the rule that refuses the last ones.
        JobError: There are more than fit into memory.
    """
    axes: dict[str, Sequence[int]] = {
        "tp": _divisors(task.world),
        "pp": _divisors(task.world),
        "cp": _divisors(task.world),
        "ep": _divisors(max(1, task.n_experts)),
        "etp": (0, 1) if task.n_experts > 1 else (0,),
        "sequence_parallel": (0, 1),
        "vp": sorted({*_divisors(task.n_layers), *_divisors(task.n_layers + 2), *_CHUNKS}),
        "ends_as_layers": (0, 1, _BALANCED),
        "micro_batch": _micro_batches(task.global_batch),
        "distributed_optimizer": (0, 1),
        "recompute": range(len(_recomputed(task))),
        "fp8": (0, 1) if task.fp8_here[0] else (0,),
        "main_grads": (0, 1) if task.n_experts > 1 and task.in_bf16 else (0,),
        "dispatcher": (0, task.flex_here) if task.flex_here else (0,),
        "overlap_experts": (0, 1) if task.flex_here else (0,),
        "cuda_graphs": (0, task.graphs_here) if task.graphs_here else (0,),
    }
    if saves_memory:
        axes |= {"adam_moments": (0, MOMENTS.index("bf16")), "optimizer_offload": (0, SHARE)}
    if not for_plan:
        axes |= dict.fromkeys(PLANNED_ALONE, (0,))
    rows: dict[str, Counts] = {}
    judged: set[str] = set()
    later = {*axes, *(following for knobs in _FOLLOWING.values() for following in knobs)}
    for name, values in axes.items():
        later -= {name, *_FOLLOWING.get(name, ())}
        rows = _crossed(rows, name, np.array(values, dtype=np.int64))
        rows = _derived(task, rows, name)
        known = {*rows, *MORE_KNOBS} - later
        ready = [rule for rule in RULES if rule.name not in judged and set(rule.reads) <= known]
        rows = _offered(task, _legal(task, rows, ready), name)
        judged |= {rule.name for rule in ready}
    return Layouts(task=task, columns={**at_default(len(rows["tp"])), **rows})


_BALANCED = 2
"""Stages that are balanced by their work, among the ways to count the ends as layers."""
_FOLLOWING = {
    "ends_as_layers": ("stages",),
    "recompute": ("recompute_modules",),
    "fp8": ("fp8_recipe", "fused_experts"),
    "overlap_experts": ("delay_weight_grads", "overlap_shared_experts"),
}
"""Axis -> knobs that follow from it."""
_CHUNKS = (1, 2, 4, 8, 16)
"""Chunks of a rank where stages are placed by their work, which need not divide the layers."""


def _recomputed(task: LayoutTask) -> list[tuple[int, int, int]]:
    """What recomputation is offered: its kind, its modules, and quarters of a chunk's layers."""
    selective = int(Recompute.SELECTIVE)
    modules = [(selective, RECOMPUTED.index(module), 0) for module in modules_of(task)]
    quarters = [(int(Recompute.FULL), 0, part) for part in range(1, QUARTERS)]
    return [*((int(kind), 0, 0) for kind in RECOMPUTE.values()), *modules, *quarters]


def modules_of(task: LayoutTask) -> list[str]:
    """Modules of a mixture that are worth their time, the cheapest first."""
    rows = table_beside(__file__, "recomputed.json")
    return [row["modules"] for row in rows if applies(row, vars(task))]


_OFFERED: Mapping[str, Sequence[Mapping[str, str]]] = table_beside(__file__, "offered.json")
"""Axis -> conditions (`layout_rule.holds`) `when` its rows are legal, and not worth a look."""


def _offered(task: LayoutTask, rows: dict[str, Counts], name: str) -> dict[str, Counts]:
    """Rows that the lattice offers once `name` is there: not all that is legal is worth a look."""
    known: dict[str, Any] = {**vars(task), **rows}
    if name == "etp":
        known["outweighs"] = _held_bytes(task, rows) > (task.memory_bytes or np.inf)
    elif name == "main_grads":
        known["is_heavy"] = _held_bytes(task, rows) > _HEAVY_SHARE * task.memory_bytes
    elif name == "ends_as_layers":
        is_many = rows["pp"] * rows["vp"] > task.n_layers + 1
        known["has_no_place"] = is_many | ~np.isin(rows["vp"], _CHUNKS)
    refused = np.zeros(len(rows["tp"]), dtype=np.bool_)
    for row in _OFFERED.get(name, ()):
        refused |= reduce(np.logical_and, [holds(term, known) for term in row["when"].split()])
    if refused.all() or not refused.any():
        return rows
    return {key: column[~refused] for key, column in rows.items()}


def _may_fuse_experts(task: LayoutTask, rows: Columns) -> Truth:
    """True where the experts of a row in fp8 are one kernel."""
    is_whole = expert_tp(rows["etp"], rows["tp"]) == 1
    recomputes = rows["recompute"] == Recompute.SELECTIVE
    recomputes &= has("moe_act", RECOMPUTED, rows["recompute_modules"])
    found: Truth = is_whole & ~recomputes & np.full(is_whole.shape, task.fuses_experts)
    return found


def _held_bytes(task: LayoutTask, rows: Columns) -> NDArray[np.float64]:
    split = rows["ep"] * expert_tp(rows["etp"], rows["tp"]) * rows["pp"]
    experts = task.expert_bytes / split
    held_bytes: NDArray[np.float64] = task.other_bytes / (rows["tp"] * rows["pp"]) + experts
    return held_bytes


_HEAVY_SHARE = 0.2
"""Part of the memory that weights and gradients take where it is worth to halve gradients."""


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _micro_batches(global_batch: int) -> list[int]:
    powers = [2**n for n in range(global_batch.bit_length())]
    return sorted(n for n in {*range(1, _ALL_UP_TO + 1), *powers} if global_batch % n == 0)


def _crossed(rows: Columns, name: str, values: Counts) -> dict[str, Counts]:
    """Every row with every value.

    Raises:
        JobError: There are more than fit into memory.
    """
    n = len(next(iter(rows.values()))) if rows else 1
    if n * len(values) > _MOST_ROWS:
        raise JobError.of("engines.megatron.too_many_layouts", n=n * len(values), most=_MOST_ROWS)
    crossed = {key: np.repeat(column, len(values)) for key, column in rows.items()}
    return {**crossed, name: np.tile(values, n)}


def _derived(task: LayoutTask, rows: dict[str, Counts], name: str) -> dict[str, Counts]:
    """Columns that follow from the others once `name` is there."""
    if name == "cp":
        split = rows["tp"] * rows["pp"] * rows["cp"]
        return {**rows, "dp": np.maximum(1, task.world // split)}
    if name == "ends_as_layers":
        ways = rows["ends_as_layers"]
        stages = np.where(ways == _BALANCED, BALANCED, 0)
        return {**rows, "ends_as_layers": ways % _BALANCED, "stages": stages}
    if name == "micro_batch":
        per_step = rows["dp"] * rows["micro_batch"]
        return {**rows, "grad_accum": np.maximum(1, task.global_batch // per_step)}
    if name == "recompute":
        offered = np.array(_recomputed(task), dtype=np.int64)
        kind, modules, quarters = offered[rows["recompute"]].T
        # Odd parts of a chunk's layers are left out.
        parts = quarters * chunk_layers(task, rows)
        found = {
            **rows,
            "recompute": kind,
            "recompute_modules": modules,
            "recompute_layers": parts // QUARTERS,
        }
        whole = (quarters == 0) | ((parts > 0) & (parts % QUARTERS == 0))
        return {key: column[whole] for key, column in found.items()}
    if name == "fp8":
        kind, recipe = task.fp8_here
        return {
            **rows,
            "fp8": rows["fp8"] * kind,
            "fp8_recipe": rows["fp8"] * recipe,
            "fused_experts": rows["fp8"] * _may_fuse_experts(task, rows),
        }
    if name == "overlap_experts":
        # Gradients of weights hide more where they are computed apart.
        shares = rows["overlap_experts"] == 0
        shares &= (
            (rows["dispatcher"] == 0)
            & (rows["ep"] > 1)
            & np.full(shares.shape, task.flex_here > 0 and task.shared_expert_hidden > 0)
        )
        return {
            **rows,
            "delay_weight_grads": rows["overlap_experts"],
            "overlap_shared_experts": shares.astype(np.int64),
        }
    if name == "cuda_graphs" and task.has_attention_biases and task.from_0_17:
        return {**rows, "delay_weight_grads": rows["delay_weight_grads"] * (rows[name] == 0)}
    return rows


def _legal(
    task: LayoutTask, columns: dict[str, Counts], rules: Sequence[Rule[LayoutRows]]
) -> dict[str, Counts]:
    """The rows that all of some rules allow.

    Raises:
        NothingFeasibleError: There is none.
    """
    count = len(next(iter(columns.values())))
    rows = LayoutRows(task=task, columns={**at_default(count), **columns})
    allowed = {rule.name: rule.holds(rows) for rule in rules if rule.holds is not None}
    if not allowed:
        return columns
    keep: NDArray[np.bool_] = np.logical_and.reduce(list(allowed.values()))
    if keep.all():
        return columns
    if keep.any():
        return {name: column[keep] for name, column in columns.items()}
    broken = np.sum([~truth for truth in allowed.values()], axis=0)
    # Among the nearest, show the one that splits most: it asks the least of the batch.
    nearest = int(np.lexsort((columns.get("dp", columns["tp"]), broken))[0])
    layout = {name: column[nearest : nearest + 1] for name, column in rows.columns.items()}
    raise nothing_legal(
        "no Megatron layout is legal for this job; the last ones are refused by",
        Counter({name: int((~truth).sum()) for name, truth in allowed.items()}),
        {name: str(layout[name][0]) for name in LATTICE_KNOBS if name in layout},
        judge_by(rules, LayoutRows(task=task, columns=layout)),
    )
