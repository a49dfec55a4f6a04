"""Predict every row of a table of training runs, and write the table with the predictions."""

import dataclasses
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from autotune.base.errors import JobError
from autotune.base.files import write_text
from autotune.base.text import csv_text
from autotune.cost.constants import SHIPPED, load_constants
from autotune.cost.plans import Plans
from autotune.cost.predict import Prediction, predict
from autotune.cost.published import PublishedRows, read_table, rows_to_plans
from autotune.devices.accelerators import accelerators_with

_GIB = 2**30
_DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Files that were written."""

    out: Path
    rows: int
    predicted: int
    reasons: dict[str, int]
    """Why rows are not predicted -> how many, most first."""

    def as_dict(self) -> dict[str, Any]:
        """The form that `--json` prints."""
        return {**dataclasses.asdict(self), "out": str(self.out)}


def estimate_rows(
    rows: Path, out: Path, *, accelerators: Path | None = None, constants: Path | None = None
) -> Estimate:
    """Predict the rows of a CSV file; every row is written, in order.

    Columns of results in the input are kept, and never read. Memory is in GiB, as vendors' "80 GB"
    are; it is what nvidia-smi would show, or what `peak_mem_unit` says: reserved or allocated.

    Args:
        rows: The table; docs/cost.md names its columns.
        out: The file to write.
        accelerators: A file of more accelerators.
        constants: A file of other constants than the shipped ones.

    Raises:
        JobError: A file cannot be read or written, or `out` is the input.
    """
    header, table = read_table(rows)
    if out.exists() and out.samefile(rows):
        raise JobError(f"--out {out}: is the input itself", "name another file")
    read = rows_to_plans(table, accelerators_with(accelerators))
    cells: list[dict[str, str]] = [{} for _ in table]
    if read.plans is not None:
        predicted = predict(read.plans, load_constants(constants or SHIPPED))
        for position, values in zip(
            read.positions, _cells(read.plans, predicted, table, read), strict=True
        ):
            cells[position] = values
    for position, values in enumerate(cells):
        noted = filter(None, [values.get("assumed", "")])
        values["assumed"] = "; ".join([*read.assumed[position], *noted])
        values["reason"] = read.reasons[position]
    _write(out, header, table, cells)
    return Estimate(
        out=out,
        rows=len(table),
        predicted=len(read.positions),
        reasons=dict(Counter(filter(None, read.reasons)).most_common()),
    )


def _cells(
    plans: Plans, predicted: Prediction, table: list[dict[str, str]], read: PublishedRows
) -> list[dict[str, str]]:
    """Column -> text, per predicted row."""
    tokens = plans.micro_batch * plans.grad_accum * plans.dp * plans.seq_len
    world = plans.dp * plans.tp * plans.pp * plans.cp * plans.ulysses
    columns: dict[str, Any] = {
        "pred_step_time_s": predicted.step_time_s,
        "pred_tokens_per_s_per_gpu": tokens / world / predicted.step_time_s,
        "pred_peak_memory_gb": predicted.peak_memory_bytes / _GIB,
        "pred_fit_probability": predicted.fit_probability,
        "pred_host_memory_gb": predicted.host_memory_bytes / _GIB,
    }
    for name, values in vars(predicted.times).items():
        if name != "step_s":
            columns[f"pred_{name}"] = values
    for name, values in vars(predicted.memory).items():
        if name not in {"peak_bytes", "host_bytes"}:
            columns[f"pred_{name.removesuffix('_bytes')}_gb"] = values / _GIB
    found = [
        {name: f"{values[i]:.{_DIGITS}g}" for name, values in columns.items()}
        for i in range(len(plans))
    ]
    for values, position in zip(found, read.positions, strict=True):
        unit = table[position].get("peak_mem_unit", "")
        for meter in ("reserved", "allocated"):
            if meter in unit:
                values["pred_peak_memory_gb"] = values[f"pred_{meter}_gb"]
                values["assumed"] = f"pred_peak_memory_gb={meter} (by peak_mem_unit)"
    return found


def _write(
    out: Path, header: tuple[str, ...], table: list[dict[str, str]], cells: list[dict[str, str]]
) -> None:
    """The input's columns first; of the same name, the prediction's win."""
    added = list(dict.fromkeys(name for values in cells for name in values))
    tail = [name for name in added if name not in {"assumed", "reason"}]
    tail += [name for name in ("assumed", "reason") if name in added]
    names = [*(name for name in header if name not in added), *tail]
    rows = [{**row, **values} for row, values in zip(table, cells, strict=True)]
    text = csv_text(pd.DataFrame(rows, columns=names))
    write_text(out, text, error=JobError, hint="name another file, or free some space")
