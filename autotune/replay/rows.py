"""A table of measured runs, one row each: read with care, and nothing guessed.

The columns are those of published benchmark tables: the model's shape, the devices, the layout,
and what was measured. A blank cell is unknown, never a default.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.base.errors import JobError
from autotune.contract import Outcome
from autotune.cost.cells import Cells, RowError
from autotune.cost.table import read_table

MODEL_COLUMNS = (
    *("model_name", "n_layers", "hidden", "ffn_hidden", "n_heads", "n_kv_heads"),
    *("vocab", "seq_len"),
)
DEVICE_COLUMNS = ("gpu_type", "gpu_mem_gb", "n_gpus", "gpus_per_node")
LAYOUT_COLUMNS = ("tp", "pp", "vp", "cp", "ep", "sp", "micro_batch", "recompute", "offload")
NEEDED_COLUMNS = (
    *("n_layers", "hidden", "n_heads", "seq_len", "gpu_type", "n_gpus", "global_batch"),
    *("tp", "pp", "micro_batch", "status", "step_time_s"),
)
"""A table without them says nothing that a search could be replayed on."""

_GIB, _GB = 2**30, 10**9
_LEAST_STEP_S, _MOST_STEP_S = 1e-6, 1e7
"""A kernel alone takes the first, and nobody waits for a step for months."""
_LEAST_PEAK_GB, _MOST_PEAK_GB = 1e-3, 1e6
_MOST_COUNT = 10**12
"""More than any table counts: a model's vocabulary, samples, devices."""
_STATUSES: Mapping[str, Outcome | None] = {
    "ok": Outcome.OK,
    "oom": Outcome.OOM,
    "oom_or_failed": Outcome.OOM,
    "formula": None,
    "ok_analytic": None,
    "": None,
}
"""Outcome of a run, as tables word it, in lower case; None: it was not measured."""
_FIX = "mend the cell, or leave it blank"


@dataclass(frozen=True, kw_only=True)
class MeasuredRow:
    """One run of a table."""

    where: str
    """File and row, the header being the first, for errors and evidence."""
    cells: Mapping[str, str]
    """Cells by column, without the space around them; blank where unknown."""

    def text(self, column: str) -> str:
        """A cell as it stands; empty where it is blank or there is no such column."""
        return self.cells.get(column, "")

    def count(self, column: str) -> int | None:
        """A cell's whole number of at least 1, which a table may write as 8.0; None where blank.

        Raises:
            JobError: It is none.
        """
        number = self._within(column, 1, _MOST_COUNT)
        if number is not None and not number.is_integer():
            raise self._wrong(column, f"{self.text(column)!r} is not a whole number")
        return None if number is None else int(number)

    @property
    def outcome(self) -> Outcome | None:
        """`ok` or `oom`; None for what is no measurement, such as a formula's value.

        Raises:
            JobError: The word is none of those that tables use.
        """
        word = self.text("status")
        if word.lower() not in _STATUSES:
            raise self._wrong(
                "status",
                f"{word!r} is not known",
                f"use {', '.join(filter(None, _STATUSES))}, or leave it blank: a row with one of "
                "the last two or a blank counts for nothing",
            )
        return _STATUSES[word.lower()]

    @property
    def step_time_s(self) -> float | None:
        """Seconds per optimizer step.

        Raises:
            JobError: No step takes that.
        """
        return self._within("step_time_s", _LEAST_STEP_S, _MOST_STEP_S)

    @property
    def peak_memory_bytes(self) -> int | None:
        """Highest of any device, by whatever meter the table's source read.

        Raises:
            JobError: No device takes that.
        """
        peak = self._within("peak_mem_gb", _LEAST_PEAK_GB, _MOST_PEAK_GB)
        unit = _GIB if self.text("peak_mem_unit").startswith("GiB") else _GB
        return None if peak is None else round(peak * unit)

    def _within(self, column: str, least: float, most: float) -> float | None:
        try:
            return Cells(self.cells).within(column, least, most)
        except RowError as error:
            raise JobError(f"{self.where}: {error}", _FIX) from error

    def _wrong(self, column: str, problem: str, fix: str = _FIX) -> JobError:
        return JobError(f"{self.where}: {column}: {problem}", fix)


def read_rows(path: Path) -> tuple[MeasuredRow, ...]:
    """Read a table.

    Raises:
        JobError: The file cannot be read, is no CSV, or lacks a column that it needs.
    """
    header, rows = read_table(path)
    missing = [name for name in NEEDED_COLUMNS if name not in header]
    if missing:
        lists = {"missing": ", ".join(missing), "needed": ", ".join(NEEDED_COLUMNS)}
        raise JobError.of("replay.no_columns", path=path, **lists)
    return tuple(
        MeasuredRow(
            where=f"{path.name}:{line}",
            cells={name: text.strip() for name, text in cells.items()},
        )
        for line, cells in enumerate(rows, start=2)
    )
