"""The legal Megatron layouts of a job on a fleet, in columns: the lattice of `--engine megatron`.

It is made one axis at a time. Each axis multiplies the rows that are left, and the rules that can
be judged by then take out what is not legal, so that only legal layouts are ever multiplied.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.base.errors import JobError, NothingFeasibleError
from autotune.contract import KnobValue
from autotune.cost.plans import Plans, Recompute
from autotune.cost.problem import accelerator_of, fleet_columns, model_columns
from autotune.cost.traits import FRAMEWORKS
from autotune.devices.accelerators import Accelerator, shipped_accelerators
from autotune.devices.hardware import Environment
from autotune.engines.megatron.knobs import KNOBS, QUARTERS, RECOMPUTE, choices_of, knobs_of
from autotune.engines.megatron.rules import (
    RULES,
    Columns,
    Counts,
    LayoutRule,
    LayoutTask,
    chunk_layers,
)
from autotune.job.job import Job
from autotune.space.candidate import format_value
from autotune.space.rule import Violation

PADDED_TO = 128
"""Megatron pads the vocabulary to a multiple of this times tp."""
_ALL_UP_TO = 64
"""Micro-batches: every divisor of the global batch up to this, and beyond it powers of two."""
_MOST_ROWS = 20_000_000
"""At a time: a few gigabytes. Worlds, batches and models that people train have far fewer."""
_MEGATRON = next(traits.columns for traits in FRAMEWORKS if traits.name == "megatron")
_FP16 = {"grad_bytes": 2.0, "reduce_bytes": 2.0, "optimizer_bytes": 16.0}
"""Gradients stay in 16 bits, and the optimizer copies its share of them to 32: 20 bytes a
parameter. Source: NVIDIA/Megatron-LM, docs/user-guide/features/dist_optimizer.md."""
_FP32 = {
    **{name: 4.0 for name in ("weight_bytes", "grad_bytes", "reduce_bytes", "gather_bytes")},
    **{"optimizer_bytes": 8.0, "activation_bytes": 4.0, "product_input_bytes": 4.0},
}
_DTYPES: Mapping[str, Mapping[str, float]] = {"bf16": {}, "fp16": _FP16, "fp32": _FP32}


@dataclass(frozen=True, kw_only=True, eq=False)
class Layouts:
    """Layouts in columns."""

    task: LayoutTask
    columns: Columns
    """Of the knobs, where `recompute` is a `Recompute` and `recompute_layers` says how many layers
    of a chunk (0: all of them); and `dp` and `grad_accum`."""

    def __len__(self) -> int:
        return len(self.columns["tp"])

    def knobs(self, index: int) -> dict[str, KnobValue]:
        """What one layout chooses."""
        return knobs_of(self.row(index))

    def describe(self, index: int) -> str:
        """`tp=8 pp=4 micro_batch=2 recompute=full dp=512`: what is not left at its default."""
        choices = choices_of(self.knobs(index))
        words = [f"{name}={format_value(value)}" for name, value in choices.items()]
        return " ".join([*words, f"dp={self.row(index)['dp']}"])

    def row(self, index: int) -> dict[str, int]:
        """The columns of one layout."""
        return {name: int(column[index]) for name, column in self.columns.items()}

    def find(self, layout: Mapping[str, int]) -> int | None:
        """Index of the layout with these columns; None if it is not one of them."""
        same = np.logical_and.reduce([self.columns[name] == layout[name] for name in layout])
        found = np.flatnonzero(same)
        return int(found[0]) if len(found) else None

    def joined(self, other: "Layouts") -> "Layouts":
        """These, and those of another set behind them."""
        columns = {
            name: np.concatenate([column, other.columns[name]])
            for name, column in self.columns.items()
        }
        return Layouts(task=self.task, columns=columns)

    def plans(
        self,
        job: Job,
        environment: Environment,
        *,
        accelerators: Sequence[Accelerator] | None = None,
    ) -> Plans:
        """The layouts in the cost model's columns, in their order.

        Args:
            job: What is trained.
            environment: Where. Its accelerators are one node's.
            accelerators: The table to look its device up in; the shipped one by default.

        Raises:
            FleetError: The accelerator is in no table, or lacks the precision.
            JobError: The model's sizes cannot be seen (a factory's).
        """
        rows = self.columns
        chunk = chunk_layers(self.task, rows)
        is_block = rows["recompute_layers"] > 0
        model = model_columns(job)
        columns: dict[str, Any] = {
            **model,
            **fleet_columns(job, environment, accelerators or shipped_accelerators()),
            **_MEGATRON,
            **_DTYPES[job.precision],
            "flash_attention": float(self.task.fused_attention),
            "vocab": padded_vocab(int(model["vocab"]), rows["tp"]),
            "zero_stage": rows["distributed_optimizer"],
            "recompute_every": np.where(
                is_block, chunk / np.maximum(1, rows["recompute_layers"]), 1.0
            ),
            "overlap_sends": _MEGATRON["overlap_sends"] * (rows["vp"] > 1),
        }
        for name in ("tp", "pp", "vp", "cp", "ep", "dp", "micro_batch", "grad_accum"):
            columns[name] = rows[name]
        columns["sequence_parallel"] = rows["sequence_parallel"]
        columns["recompute"] = rows["recompute"]
        return Plans(
            **{
                name: value.astype(np.float64) if isinstance(value, np.ndarray) else float(value)
                for name, value in columns.items()
            }
        )

    def violations(self, index: int) -> list[Violation]:
        """The rules that one layout breaks; those of `lay_out` break none."""
        row = {name: column[index : index + 1] for name, column in self.columns.items()}
        said = self.row(index)
        return [
            Violation(
                rule=rule.name,
                message=rule.said(rule.message, self.task, said),
                fix=rule.said(rule.fix, self.task, said),
            )
            for rule in RULES
            if not rule.holds(self.task, row)[0]
        ]


def padded_vocab(vocab: int, tp: Counts) -> Counts:
    """Token ids with those that Megatron adds: a multiple of 128 tp.

    Source: NVIDIA/Megatron-LM, megatron/training/vocab_utils.py.
    """
    multiple = PADDED_TO * tp
    return -(-vocab // multiple) * multiple


def task_of(
    job: Job, environment: Environment, *, accelerators: Sequence[Accelerator] | None = None
) -> LayoutTask:
    """What is laid out, and on what.

    Raises:
        FleetError: The accelerator is in no table.
        JobError: The job is not one that Megatron-LM trains, or its sizes cannot be seen.
    """
    _check_trained(job, environment)
    table = accelerators or shipped_accelerators()
    device = fleet_columns(job, environment, table)
    model_columns(job)
    found = accelerator_of(environment, table)
    shape = job.model.shape
    return LayoutTask(
        n_layers=shape.n_layers,
        n_heads=shape.n_heads,
        n_kv_heads=shape.n_kv_heads,
        ffn_hidden=shape.ffn_hidden,
        n_experts=shape.n_experts,
        seq_len=job.seq_len,
        max_seq_len=shape.max_seq_len or 0,
        global_batch=job.global_batch,
        world=job.world,
        domain=int(device["nvlink_domain"]),
        # FlashAttention-2 and Transformer Engine start with the devices that have bf16.
        fused_attention=job.precision != "fp32" and "bf16" in found.peak_flops,
    )


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
            rule for rule in RULES if rule.name not in judged and set(rule.reads) <= set(rows)
        ]
        rows = _kept(task, rows, ready)
        judged |= {rule.name for rule in ready}
    return Layouts(task=task, columns=rows)


def _check_trained(job: Job, environment: Environment) -> None:
    if environment.accelerator == "cpu":
        raise JobError(
            "engine megatron: it trains on CUDA devices only, and this fleet is CPU ranks",
            "name the accelerators of the fleet with --gpu, such as --gpu H100",
        )
    if job.finetune is not None:
        raise JobError(
            "engine megatron: finetune: Megatron-LM trains every weight",
            "leave finetune out, or plan for DeepSpeed",
        )
    kind = str(job.optimizer.get("type", "AdamW"))
    if kind.lower() not in {"adam", "adamw", "fusedadam"}:
        raise JobError(
            f"engine megatron: optimizer {kind!r}: its layouts are predicted with Adam",
            "name AdamW, or leave the optimizer out",
        )


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
    """What follows from the columns once `name` is there."""
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
    task: LayoutTask, rows: dict[str, Counts], rules: Sequence[LayoutRule]
) -> dict[str, Counts]:
    """The rows that all of some rules allow.

    Raises:
        NothingFeasibleError: There is none.
    """
    if not rules:
        return rows
    held = {rule.name: rule.holds(task, rows) for rule in rules}
    keep: NDArray[np.bool_] = np.logical_and.reduce(list(held.values()))
    if keep.all():
        return rows
    if not keep.any():
        raise _nothing_legal(task, rows, rules, held)
    return {name: column[keep] for name, column in rows.items()}


def _nothing_legal(
    task: LayoutTask,
    rows: Columns,
    rules: Sequence[LayoutRule],
    held: Mapping[str, NDArray[np.bool_]],
) -> NothingFeasibleError:
    counts = Counter({name: int((~truth).sum()) for name, truth in held.items()})
    refused = ", ".join(f"{name} ({count})" for name, count in counts.most_common(3) if count)
    broken = np.sum([~truth for truth in held.values()], axis=0)
    # Of the nearest ones the one that splits most: it asks the least of the batch.
    splits = np.lexsort((rows.get("dp", rows["tp"]), broken))
    nearest = int(splits[0])
    layout = {name: int(column[nearest]) for name, column in rows.items()}
    wrong = [rule for rule in rules if not held[rule.name][nearest]]
    shown = " ".join(f"{name}={layout[name]}" for name in KNOBS if name in layout)
    messages = "; ".join(rule.said(rule.message, task, layout) for rule in wrong)
    fixes = "; ".join(rule.said(rule.fix, task, layout) for rule in wrong)
    return NothingFeasibleError(
        f"no Megatron layout is legal for this job; the last ones are refused by {refused}",
        f"the nearest is [{shown}]: {messages}. {fixes}",
    )
