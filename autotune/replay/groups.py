"""The rows of one problem: the same model, devices and global batch, in many configurations."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from autotune.contract import KnobValue, Outcome
from autotune.replay.rows import DEVICE_COLUMNS, LAYOUT_COLUMNS, MODEL_COLUMNS, MeasuredRow

PROBLEM_COLUMNS = (*MODEL_COLUMNS, *DEVICE_COLUMNS, "global_batch", "framework", "precision")
"""What is given. Precision is: a search that changed it would change what is trained."""
_COUNTS = ("tp", "pp", "vp", "cp", "ep", "micro_batch")
_USABLE_BASES = ("published", "published+HEAD recipe", "")
"""How a row's configuration may be known; a table that does not say is its owner's."""

Problem = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One configuration with what its rows measured."""

    knobs: Mapping[str, KnobValue]
    """Values by column, `zero` for the ZeRO stage; blank cells are left out."""
    rows: tuple[MeasuredRow, ...]
    """A table may have it more than once; at least one."""

    @property
    def outcome(self) -> Outcome:
        """`ok` if any of its rows ran."""
        return Outcome.OK if self._measured else Outcome.OOM

    @cached_property
    def step_time_s(self) -> float | None:
        """Median of its rows; None where all ran out of memory."""
        return statistics.median(self._measured) if self._measured else None

    @property
    def peak_memory_bytes(self) -> int | None:
        """The highest that its rows state."""
        return max((p for row in self.rows if (p := row.peak_memory_bytes)), default=None)

    @cached_property
    def _measured(self) -> list[float]:
        ran = (row.step_time_s for row in self.rows if row.outcome is Outcome.OK)
        return [seconds for seconds in ran if seconds is not None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """One problem with the configurations that were measured for it."""

    problem: Mapping[str, str]
    """Cells by column of `PROBLEM_COLUMNS` as the table writes them, and `source`."""
    configurations: tuple[Configuration, ...]

    @property
    def name(self) -> str:
        """In a few words: model, devices, global batch, sequence length."""
        model = self.problem["model_name"] or (
            f"{_plain(self.problem['n_layers'])}x{_plain(self.problem['hidden'])}"
        )
        return (
            f"{model}, {_plain(self.problem['n_gpus'])} x {self.problem['gpu_type']}, "
            f"batch {_plain(self.problem['global_batch'])}, "
            f"seq {_plain(self.problem['seq_len'])}"
        )

    @cached_property
    def best_step_time_s(self) -> float:
        """Time of the fastest configuration; a group has at least one that ran."""
        return min(c.step_time_s for c in self.configurations if c.step_time_s is not None)

    @cached_property
    def values(self) -> dict[str, tuple[KnobValue, ...]]:
        """Knob -> its values over the group, sorted; knobs that never vary are left out."""
        found: dict[str, set[KnobValue]] = {}
        for configuration in self.configurations:
            for name, value in configuration.knobs.items():
                found.setdefault(name, set()).add(value)
        return {
            name: tuple(sorted(values, key=lambda value: (isinstance(value, str), value)))
            for name, values in found.items()
            if len(values) > 1
        }


def group_rows(rows: Iterable[MeasuredRow], *, fixed: Sequence[str] = ()) -> tuple[Group, ...]:
    """Sort rows by the problem that they solve; what measured nothing is left out.

    A row counts if it ran with a time, or ran out of memory; if all of its configuration is known
    (`fully_specified`, where the table has the column) and was not inferred by somebody.

    Args:
        rows: Rows of one table or several.
        fixed: Columns of the layout that are part of the problem here, not choices.

    Returns:
        Groups in which something ran, in the order of their first rows.

    Raises:
        JobError: A cell of a row that counts is not what its column holds.
    """
    by_problem: dict[Problem, list[MeasuredRow]] = {}
    for row in rows:
        if _is_usable(row):
            by_problem.setdefault(_problem_of(row, fixed), []).append(row)
    groups = (_group(problem, of_it, fixed) for problem, of_it in by_problem.items())
    return tuple(
        group for group in groups if any(c.step_time_s is not None for c in group.configurations)
    )


def _is_usable(row: MeasuredRow) -> bool:
    if row.outcome is None or (row.outcome is Outcome.OK and row.step_time_s is None):
        return False
    is_known = row.text("fully_specified") in ("1", "")
    if not is_known or row.text("config_basis") not in _USABLE_BASES:
        return False
    _ = row.peak_memory_bytes  # refused here, not when a search gets there
    return True


def _problem_of(row: MeasuredRow, fixed: Sequence[str]) -> Problem:
    named = (_plain(row.text(column)) for column in (*PROBLEM_COLUMNS, *fixed))
    return (_document(row), *named)


def _document(row: MeasuredRow) -> str:
    """Where a row is from, without the line: `owner/name@commit path`."""
    return row.text("source").partition(":")[0]


def _group(problem: Problem, rows: Sequence[MeasuredRow], fixed: Sequence[str]) -> Group:
    by_knobs: dict[tuple[tuple[str, KnobValue], ...], list[MeasuredRow]] = {}
    for row in rows:
        knobs = _knobs_of(row, fixed)
        by_knobs.setdefault(tuple(sorted(knobs.items())), []).append(row)
    return Group(
        problem=dict(zip(("source", *PROBLEM_COLUMNS, *fixed), problem, strict=True)),
        configurations=tuple(
            Configuration(knobs=dict(knobs), rows=tuple(of_it))
            for knobs, of_it in by_knobs.items()
        ),
    )


def _knobs_of(row: MeasuredRow, fixed: Sequence[str]) -> dict[str, KnobValue]:
    knobs: dict[str, KnobValue] = {}
    for column in LAYOUT_COLUMNS:
        if column in fixed or not row.text(column):
            continue
        count = row.count(column) if column in _COUNTS else None
        knobs[column] = row.text(column) if count is None else count
    zero = row.text("zero_equiv") or row.text("zero_stage")
    if zero and "zero" not in fixed:
        knobs["zero"] = _plain(zero)
    return knobs


def _plain(text: str) -> str:
    """A whole number without the decimals that a spreadsheet gives it."""
    return text.removesuffix(".0")
