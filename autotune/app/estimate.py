"""Predict every row of a table of training runs, and write the table with the predictions."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from autotune.base.errors import JobError
from autotune.base.files import write_text
from autotune.base.text import csv_text
from autotune.cost.constants import SHIPPED, load_constants
from autotune.cost.errors import METERS, load_errors
from autotune.cost.memory import Memory
from autotune.cost.plans import Plans
from autotune.cost.predict import Prediction, predict
from autotune.cost.step import StepTimes
from autotune.cost.table import TABLE_HINT, TableRows, read_table, rows_to_plans
from autotune.devices.accelerators import Accelerator, accelerators_with

_GIB = 2**30
_DIGITS = 6
_TIME_PARTS = {
    f"pred_{field.name}": field.name
    for field in dataclasses.fields(StepTimes)
    if field.name != "step_s"
}
_MEMORY_PARTS = {
    f"pred_{field.name.removesuffix('_bytes')}_gb": field.name
    for field in dataclasses.fields(Memory)
    if field.name not in {"peak_bytes", "host_bytes"}
}
_COLUMNS = (
    *("pred_step_time_s", "pred_step_time_low_s", "pred_step_time_high_s"),
    "pred_tokens_per_s_per_gpu",
    *("pred_peak_memory_gb", "pred_peak_memory_low_gb", "pred_peak_memory_high_gb"),
    *("pred_fit_probability", "pred_host_memory_gb"),
    *_TIME_PARTS,
    *_MEMORY_PARTS,
    *("assumed", "reason"),
)
"""Columns of the output beside the input's, whether or not any row is predicted."""


_ANY_OF = {"model", "n_layers", "hidden", "seq_len", "gpu_type", "n_gpus"}
"""Columns of which a table of runs has one at least."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Files that were written."""

    out: Path
    rows: int
    predicted: int
    reasons: dict[str, int]
    """Why rows are not predicted -> how many, most first."""
    first: pd.DataFrame
    """Rows that are predicted, the first few."""

    def as_dict(self) -> dict[str, Any]:
        return {**{n: v for n, v in vars(self).items() if n != "first"}, "out": str(self.out)}


Reader = Callable[[Sequence[Mapping[str, str]], Sequence[Accelerator]], TableRows]
"""Reads rows, column -> text, as candidates."""


def estimate_rows(
    rows: Path,
    out: Path,
    *,
    accelerators: Path | None = None,
    constants: Path | None = None,
    reader: Reader = rows_to_plans,
) -> Estimate:
    """Predict the rows of a CSV file; every row is written, in order.

    Columns of results in the input are kept, and never read. Memory is in GiB, as vendors' "80 GB"
    are; it is what nvidia-smi would show, or what `memory_meter` says: reserved or allocated.

    Args:
        rows: The table; docs/cost.md names its columns.
        out: The file to write.
        accelerators: A file of more accelerators.
        constants: A file of other constants than the shipped ones.
        reader: What reads the rows: by default each value has one spelling.

    Raises:
        JobError: A file cannot be read or written, is no table of runs, or `out` is the input.
    """
    header, table = read_table(rows)
    _check_known(header, str(rows))
    if out.exists() and out.samefile(rows):
        raise JobError(f"--out {out}: is the input itself", "name another file")
    read = reader(table, accelerators_with(accelerators))
    frame = _beside(pd.DataFrame(table, columns=list(header)), _predicted(read, constants))
    hint = "name another file, or free some space"
    write_text(out, csv_text(frame), error=JobError, hint=hint)
    return Estimate(
        out=out,
        rows=len(table),
        predicted=len(read.positions),
        reasons=dict(Counter(filter(None, read.reasons)).most_common()),
        first=frame[frame["reason"] == ""].head(),
    )


def predict_frame(rows: pd.DataFrame | Path, *, accelerators: Path | None = None) -> pd.DataFrame:
    """The same of a frame, or of a file, as a frame: its own columns, then those of predictions.

    Raises:
        JobError: A file cannot be read, two columns of the frame have one name, or none is known.
    """
    if isinstance(rows, Path):
        header, table = read_table(rows)
        _check_known(header, str(rows))
        rows = pd.DataFrame(table, columns=list(header))
    else:
        names = [str(name) for name in rows.columns]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise JobError(f"rows: column {', '.join(twice)} is there twice", "name it once")
        _check_known(names, "rows")
        values = rows.astype(object).itertuples(index=False, name=None)
        table = [dict(zip(names, map(_text, row), strict=True)) for row in values]
    cells = _predicted(rows_to_plans(table, accelerators_with(accelerators)))
    found = _beside(rows, cells).fillna({"assumed": "", "reason": ""})
    figures = [name for name in _COLUMNS if name.startswith("pred_")]
    found[figures] = found[figures].apply(pd.to_numeric)
    return found


def _beside(rows: pd.DataFrame, cells: list[dict[str, str]]) -> pd.DataFrame:
    """The input's columns first; of the same name, the prediction's win."""
    columns = [name for name in rows.columns if str(name) not in _COLUMNS]
    predicted = pd.DataFrame(cells, columns=list(_COLUMNS), index=rows.index)
    return pd.concat([rows[columns], predicted], axis="columns")


def _check_known(columns: Iterable[str], source: str) -> None:
    """Refuse a table that says nothing of a run, which would be written with no prediction."""
    if not _ANY_OF & {*columns}:
        raise JobError(f"{source}: no column of its first line is known", TABLE_HINT)


def _text(value: Any) -> str:
    """A cell of a frame as CSV has it; a count beside empty cells is no fraction."""
    if value is None or (pd.api.types.is_scalar(value) and pd.isna(value)):
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _predicted(read: TableRows, constants: Path | None = None) -> list[dict[str, str]]:
    cells: list[dict[str, str]] = [{} for _ in read.reasons]
    if read.plans is not None:
        predicted = predict(read.plans, load_constants(constants or SHIPPED))
        for position, values in zip(
            read.positions, _cells(read.plans, predicted, read), strict=True
        ):
            cells[position] = values
    for position, values in enumerate(cells):
        noted = filter(None, [values.get("assumed", "")])
        values["assumed"] = "; ".join([*read.assumed[position], *noted])
        values["reason"] = read.reasons[position]
    return cells


def _cells(plans: Plans, predicted: Prediction, read: TableRows) -> list[dict[str, str]]:
    tokens = plans.micro_batch * plans.grad_accum * plans.dp * plans.seq_len
    world = plans.dp * plans.tp * plans.pp * plans.cp * plans.ulysses
    errors = load_errors()
    facts = errors.facts_of(read.frameworks, read.accelerators, read.open, read.fewest_logit_bytes)
    reach = errors.reach(predicted, facts)
    predicted = reach.judge(predicted)
    # Each peak by its meter, and of the stage whose memory the row has.
    by_meter = [getattr(predicted.memory, meter) for meter in METERS]
    shown_bytes = np.choose([METERS.index(meter) for meter in read.meters], by_meter)
    columns: dict[str, Any] = {
        "pred_step_time_s": predicted.step_time_s,
        "pred_step_time_low_s": predicted.step_time_s * np.exp(-reach.step_time.low),
        "pred_step_time_high_s": predicted.step_time_s * np.exp(reach.step_time.high),
        "pred_tokens_per_s_per_gpu": tokens / world / predicted.step_time_s,
        "pred_peak_memory_gb": shown_bytes / _GIB,
        "pred_fit_probability": predicted.fit_probability,
        "pred_host_memory_gb": predicted.host_memory_bytes / _GIB,
    }
    for column, name in _TIME_PARTS.items():
        columns[column] = getattr(predicted.times, name)
    for column, name in _MEMORY_PARTS.items():
        columns[column] = getattr(predicted.memory, name) / _GIB
    peak_gb, spread = columns["pred_peak_memory_gb"], reach.peak_memory
    columns["pred_peak_memory_low_gb"] = peak_gb * np.exp(-spread.low)
    columns["pred_peak_memory_high_gb"] = peak_gb * np.exp(spread.high)
    return [
        {name: f"{values[i]:.{_DIGITS}g}" for name, values in columns.items()}
        | {"assumed": f"interval={reach.evidence_at(i)}"}
        for i in range(len(plans))
    ]
