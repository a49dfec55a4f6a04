"""The legal Megatron layouts of a job on a fleet, in columns: the lattice of `--engine megatron`.

It is made one axis at a time. Each axis multiplies the rows that are left. Then the rules that can
be judged so far remove illegal rows, so that only legal layouts are ever multiplied.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from autotune.base.errors import JobError
from autotune.cost.plans import Recompute
from autotune.engines.megatron.knobs import (
    LATTICE_KNOBS,
    MORE_KNOBS,
    RECOMPUTE,
    at_default,
    columns_of,
    knobs_of,
)
from autotune.engines.megatron.rules import (
    RULES,
    Columns,
    Counts,
    LayoutRows,
    LayoutTask,
    chunk_layers,
)
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
        """The index of a candidate; arguments and errors as of any sequence."""
        found = [n for n in self._find(candidate) if start <= n and (stop is None or n < stop)]
        if not found:
            raise ValueError(f"{candidate} is none of the layouts")
        return int(found[0])

    def _find(self, candidate: Candidate) -> NDArray[np.intp]:
        wanted = columns_of(self.task, [candidate])
        same = [self.columns[name] == column[0] for name, column in wanted.items()]
        return np.flatnonzero(np.logical_and.reduce(same))


def lay_out(task: LayoutTask) -> Layouts:
    """Every legal layout.

    Raises:
        NothingFeasibleError: There is none; names the rule that refuses the last ones.
        JobError: There are more than fit into memory.
    """
    axes: tuple[tuple[str, Sequence[int]], ...] = (
        ("tp", _divisors(task.world)),
        ("pp", _divisors(task.world)),
        ("cp", _divisors(task.world)),
        ("ep", _divisors(max(1, task.n_experts))),
        ("sequence_parallel", (0, 1)),
        ("vp", sorted({*_divisors(task.n_layers), *_divisors(task.n_layers + 2)})),
        ("ends_as_layers", (0, 1)),
        ("micro_batch", _micro_batches(task.global_batch)),
        ("distributed_optimizer", (0, 1)),
        ("recompute", (*RECOMPUTE.values(), *range(-1, -QUARTERS, -1))),
    )
    rows: dict[str, Counts] = {}
    judged: set[str] = set()
    for name, values in axes:
        rows = _crossed(rows, name, np.array(values, dtype=np.int64))
        rows = _derived(task, rows, name)
        ready = [
            rule
            for rule in RULES
            if rule.name not in judged and set(rule.reads) <= {*rows, *MORE_KNOBS}
        ]
        rows = _kept(task, rows, ready)
        judged |= {rule.name for rule in ready}
    return Layouts(task=task, columns={**rows, **at_default(len(rows["tp"]))})


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
        raise JobError(
            f"engine megatron: {n * len(values)} layouts to judge at once, at most {_MOST_ROWS}",
            "a world, a global batch or a number of layers with fewer divisors has fewer",
        )
    crossed = {key: np.repeat(column, len(values)) for key, column in rows.items()}
    return {**crossed, name: np.tile(values, n)}


def _derived(task: LayoutTask, rows: dict[str, Counts], name: str) -> dict[str, Counts]:
    """Columns that follow from the others once `name` is there."""
    if name == "cp":
        split = rows["tp"] * rows["pp"] * rows["cp"]
        return {**rows, "dp": np.maximum(1, task.world // split)}
    if name == "micro_batch":
        per_step = rows["dp"] * rows["micro_batch"]
        return {**rows, "grad_accum": np.maximum(1, task.global_batch // per_step)}
    if name == "recompute":
        # Below zero it counts the quarters of a chunk's layers; odd parts are left out.
        quarters = np.maximum(0, -rows["recompute"])
        parts = quarters * chunk_layers(task, rows)
        rows["recompute"] = np.where(quarters > 0, int(Recompute.FULL), rows["recompute"])
        rows["recompute_layers"] = parts // QUARTERS
        whole = parts % QUARTERS == 0
        return {key: column[whole] for key, column in rows.items()}
    return rows


def _kept(
    task: LayoutTask, columns: dict[str, Counts], rules: Sequence[Rule[LayoutRows]]
) -> dict[str, Counts]:
    """The rows that all of some rules allow.

    Raises:
        NothingFeasibleError: There is none.
    """
    count = len(next(iter(columns.values())))
    rows = LayoutRows(task=task, columns={**at_default(count), **columns})
    held = {rule.name: rule.holds(rows) for rule in rules if rule.holds is not None}
    if not held:
        return columns
    keep: NDArray[np.bool_] = np.logical_and.reduce(list(held.values()))
    if keep.all():
        return columns
    if keep.any():
        return {name: column[keep] for name, column in columns.items()}
    broken = np.sum([~truth for truth in held.values()], axis=0)
    # Among the nearest, show the one that splits most: it asks the least of the batch.
    nearest = int(np.lexsort((columns.get("dp", columns["tp"]), broken))[0])
    layout = {name: column[nearest : nearest + 1] for name, column in rows.columns.items()}
    raise nothing_legal(
        "no Megatron layout is legal for this job; the last ones are refused by",
        Counter({name: int((~truth).sum()) for name, truth in held.items()}),
        {name: str(layout[name][0]) for name in LATTICE_KNOBS if name in layout},
        judge_by(rules, LayoutRows(task=task, columns=layout)),
    )
