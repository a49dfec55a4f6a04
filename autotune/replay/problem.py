"""A group of a table as a job: its model, its devices, and its configurations as candidates.

A configuration becomes a candidate of the knobs that there are: `tp`, `pp`, `micro_batch`,
`zero.stage`, `recompute`, and `sp` for context parallelism: ranks that share a sample. What no
knob says (chunks of a pipeline, Megatron's sequence parallelism, offload as tables word it) is
part of the problem: rows that differ there are other groups. The rows are the lattice, whatever
DeepSpeed's rules would say of them: they ran.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from autotune.base.errors import JobError
from autotune.base.flags import flag
from autotune.base.units import format_bytes
from autotune.contract import METER_SLACK, KnobValue, Outcome, is_count
from autotune.cost.constants import Constants
from autotune.cost.forecast import Forecast, forecast
from autotune.cost.plans import Plans
from autotune.cost.table import rows_to_plans
from autotune.devices.accelerators import shipped_accelerators
from autotune.replay.groups import Configuration, Group, group_rows
from autotune.replay.rows import MeasuredRow, read_rows
from autotune.space.candidate import Candidate

_FIXED = ("vp", "ep", "sp", "offload")
_KNOB_OF = {
    "tp": "tp",
    "pp": "pp",
    "cp": "sp",
    "micro_batch": "micro_batch",
    "zero": "zero.stage",
    "recompute": "recompute",
}
_BLANK: Mapping[str, KnobValue] = {"tp": 1, "pp": 1, "cp": 1}
_MOST_LISTED = 20
_LEAST = 2
"""Configurations of a group that can be searched."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplayProblem:
    """A group with what a job needs of it."""

    group: Group
    plans: Plans
    """Columns of its first row: how the model reads its sizes and its devices."""

    @property
    def world(self) -> int:
        return self._count("n_gpus")

    @property
    def global_batch(self) -> int:
        return self._count("global_batch")

    @property
    def seq_len(self) -> int:
        return self._count("seq_len")

    @property
    def precision(self) -> str:
        """In a job's words; bf16 where the table does not say, or says what no job can."""
        name = self.group.problem["precision"]
        return name if name in ("bf16", "fp16", "fp32") else "bf16"

    @property
    def device_name(self) -> str:
        return self.group.problem["gpu_type"]

    @property
    def device_memory_bytes(self) -> int:
        return int(_first(self.plans.memory_bytes))

    @property
    def devices_per_node(self) -> int:
        return min(self.world, int(_first(self.plans.devices_per_node)))

    @cached_property
    def configurations(self) -> Mapping[Candidate, Configuration]:
        """The group's as candidates, in their order; no two are one candidate."""
        found = {}
        for configuration in self.group.configurations:
            knobs = {_KNOB_OF[column]: value for column, value in configuration.knobs.items()}
            if "zero.stage" in knobs:
                knobs["zero.stage"] = int(knobs["zero.stage"])
            candidate = Candidate.of(knobs, world=self.world, global_batch=self.global_batch)
            found[candidate] = configuration
        return found

    @property
    def model_config(self) -> dict[str, Any]:
        """A Hugging Face config with the sizes of the table's model."""
        names = ("n_layers", "hidden", "ffn_hidden", "n_heads", "n_kv_heads", "head_dim", "vocab")
        size = {name: int(_first(getattr(self.plans, name))) for name in (*names, "seq_len")}
        if not _first(self.plans.gated_mlp):
            return {
                "model_type": "gpt2",
                "n_layer": size["n_layers"],
                "n_embd": size["hidden"],
                "n_inner": size["ffn_hidden"],
                "n_head": size["n_heads"],
                "vocab_size": size["vocab"],
                "n_positions": size["seq_len"],
            }
        experts: dict[str, Any] = {"model_type": "llama"}
        if _first(self.plans.n_experts) > 1:
            experts = {
                "model_type": "mixtral",
                "num_local_experts": int(_first(self.plans.n_experts)),
                "num_experts_per_tok": int(_first(self.plans.experts_per_token)),
            }
        return {
            **experts,
            "num_hidden_layers": size["n_layers"],
            "hidden_size": size["hidden"],
            "intermediate_size": size["ffn_hidden"],
            "num_attention_heads": size["n_heads"],
            "num_key_value_heads": size["n_kv_heads"],
            "head_dim": size["head_dim"],
            "vocab_size": size["vocab"],
            "tie_word_embeddings": bool(_first(self.plans.tied_embeddings)),
        }

    def _count(self, column: str) -> int:
        found = self.group.configurations[0].rows[0].count(column)
        assert found is not None, "a group's rows have it"
        return found


def read_problem(path: Path, wanted: str) -> ReplayProblem:
    """The group of a table that is to be searched.

    Raises:
        JobError: The table cannot be read, has no such group or several, or a group that nothing
            can be predicted of.
    """
    groups = _searchable(read_rows(path))
    if not groups:
        raise JobError.of("replay.no_group", path=path, least=_LEAST)
    group = _chosen(path, groups, wanted)
    first = group.configurations[0].rows[0]
    read = rows_to_plans([first.cells], shipped_accelerators())
    if read.plans is None:
        raise JobError.of("replay.no_problem", where=first.where, reason=read.reasons[0])
    problem = ReplayProblem(group=group, plans=read.plans)
    _check_peaks(problem)
    return problem


def _check_peaks(problem: ReplayProblem) -> None:
    """Check that nothing ran in more memory than its devices have.

    Raises:
        JobError: A row says so.
    """
    most_bytes = problem.device_memory_bytes * (1 + METER_SLACK)
    for row in (row for choice in problem.group.configurations for row in choice.rows):
        peak_bytes = row.peak_memory_bytes
        if peak_bytes is not None and peak_bytes > most_bytes and row.outcome is Outcome.OK:
            known = {"peak": format_bytes(peak_bytes), "device": problem.device_name}
            most = format_bytes(problem.device_memory_bytes)
            raise JobError.of("replay.above_device", row=row, most=most, **known)


def forecast_of(group: Group, constants: Constants | None = None) -> Forecast:
    """Predict every configuration of a group, each by the first of its rows.

    Raises:
        JobError: The model cannot predict one of them; the hint says why.
    """
    first: list[Mapping[str, str]] = [c.rows[0].cells for c in group.configurations]
    read = rows_to_plans(first, shipped_accelerators())
    if read.plans is None or len(read.positions) < len(first):
        position, reason = next((i, why) for i, why in enumerate(read.reasons) if why)
        where = group.configurations[position].rows[0].where
        raise JobError.of("replay.not_predicted", where=where, reason=reason)
    return forecast(read.plans, constants)


def _searchable(rows: Sequence[MeasuredRow]) -> list[Group]:
    needed = ("n_gpus", "global_batch", "seq_len", "micro_batch")
    complete = [row for row in rows if all(map(row.text, needed))]
    # A degree that is blank in one row and 1 in another makes them runs of one configuration.
    groups = group_rows(complete, fixed=_fixed_columns(complete), blank=_BLANK)
    return [group for group in groups if len(group.configurations) >= _LEAST]


def _fixed_columns(rows: Sequence[MeasuredRow]) -> tuple[str, ...]:
    """Columns that no knob says, and those of which some row says what no knob can."""
    fixed = list(_FIXED)
    stages = {row.text("zero_equiv") or row.text("zero_stage") for row in rows}
    if not {stage.removesuffix(".0") for stage in stages} <= {"0", "1", "2", "3", ""}:
        fixed.append("zero")
    if not {row.text("recompute") for row in rows} <= {"none", "full", ""}:
        fixed.append("recompute")
    return tuple(fixed)


def _chosen(path: Path, groups: Sequence[Group], wanted: str) -> Group:
    listed = [
        f"{n}: {group.name} ({len(group.configurations)} configurations)"
        for n, group in enumerate(groups, start=1)
    ]
    if is_count(wanted) and 1 <= int(wanted) <= len(groups):
        return groups[int(wanted) - 1]
    found = [g for g in groups if wanted.lower() in g.name.lower()] if wanted else list(groups)
    if len(found) == 1:
        return found[0]
    count = f"{len(found)} groups are named {wanted!r}" if wanted else f"{len(groups)} groups"
    shown = [text for g, text in zip(groups, listed, strict=True) if g in (found or groups)]
    more = f"\n  and {len(shown) - _MOST_LISTED} more" if len(shown) > _MOST_LISTED else ""
    raise JobError(
        f"{path}: {count if found else f'no group is named {wanted!r}'}:\n  "
        + "\n  ".join(shown[:_MOST_LISTED])
        + more,
        f"choose one by its number or a part of its name: {flag('fleet')} replay:{path}#1",
    )


def _first(column: Any) -> float:
    return float(column if isinstance(column, int | float) else column[0])
