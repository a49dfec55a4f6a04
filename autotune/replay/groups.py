"""The rows of one problem: the same model, devices and global batch, in many configurations."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from autotune.contract import KnobValue, Outcome
from autotune.replay.rows import DEVICE_COLUMNS, LAYOUT_COLUMNS, MODEL_COLUMNS, MeasuredRow

PROBLEM_COLUMNS = (*MODEL_COLUMNS, *DEVICE_COLUMNS, "global_batch", "framework", "precision")
"""Columns that a group shares. Precision too: a search that changed it would train otherwise."""
_COUNTS = ("tp", "pp", "vp", "cp", "ep", "micro_batch")
_USABLE_BASES = ("published", "published+HEAD recipe", "")
"""How a row's configuration may be known; a table that does not say is its owner's."""

_Knobs = tuple[tuple[str, KnobValue], ...]


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One configuration with what its rows measured."""

    knobs: Mapping[str, KnobValue]
    """Values by column, `zero` for the ZeRO stage; blank cells are left out."""
    rows: tuple[MeasuredRow, ...]
    """A table may have it more than once; at least one."""

    @property
    def outcome(self) -> Outcome:
        return Outcome.OK if self._measured else Outcome.OOM

    @cached_property
    def step_time_s(self) -> float | None:
        """Median of its rows; None where all ran out of memory."""
        return statistics.median(self._measured) if self._measured else None

    @property
    def peak_memory_bytes(self) -> int | None:
        """The highest that its rows state, of those that ran."""
        ran = (row.peak_memory_bytes for row in self.rows if row.outcome is Outcome.OK)
        return max((peak for peak in ran if peak), default=None)

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
        cells = {column: _plain(text) for column, text in self.problem.items()}
        model = self.problem["model_name"] or f"{cells['n_layers']}x{cells['hidden']}"
        return (
            f"{model}, {cells['n_gpus']} x {self.problem['gpu_type']}, "
            f"batch {cells['global_batch']}, seq {cells['seq_len']}"
        )


def group_rows(
    rows: Iterable[MeasuredRow],
    *,
    fixed: Sequence[str] = (),
    blank: Mapping[str, KnobValue] | None = None,
) -> tuple[Group, ...]:
    """Groups in which something ran, in the order of their first rows.

    A row counts if it ran with a time, or ran out of memory; if all of its configuration is known
    (`fully_specified`, where the table has the column) and was not inferred by somebody.

    Args:
        rows: Rows of one table or several.
        fixed: Columns of the layout that are part of the problem here, not choices.
        blank: Values of choices whose cells are blank; others are left out.

    Raises:
        JobError: A cell of a row that counts is not what its column holds.
    """
    found: dict[tuple[str, ...], dict[_Knobs, list[MeasuredRow]]] = {}
    for row in filter(_is_usable, rows):
        # Where it is from, without the line: `owner/name@commit path`.
        document = row.text("source").partition(":")[0]
        named = (_plain(row.text(column)) for column in (*PROBLEM_COLUMNS, *fixed))
        knobs = tuple(sorted({**(blank or {}), **_knobs_of(row, fixed)}.items()))
        found.setdefault((document, *named), {}).setdefault(knobs, []).append(row)
    groups = [
        Group(
            problem=dict(zip(("source", *PROBLEM_COLUMNS, *fixed), problem, strict=True)),
            configurations=tuple(
                Configuration(knobs=dict(knobs), rows=tuple(measured))
                for knobs, measured in by_knobs.items()
            ),
        )
        for problem, by_knobs in found.items()
    ]
    return tuple(g for g in groups if any(c.step_time_s is not None for c in g.configurations))


def _is_usable(row: MeasuredRow) -> bool:
    if row.outcome is None or (row.outcome is Outcome.OK and row.step_time_s is None):
        return False
    is_known = row.text("fully_specified") in ("1", "")
    if not is_known or row.text("config_basis") not in _USABLE_BASES:
        return False
    _ = row.peak_memory_bytes  # refused here, not when a search gets there
    return True


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
