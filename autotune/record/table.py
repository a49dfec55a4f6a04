"""The results table: one tidy row per trial, rebuilt from the record whenever it is asked for.

The schema is frozen by a test and described on a page of the documentation. Nothing reads the
written files back: they are for people and their tools.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any

import pandas as pd

from autotune.base.data import table_beside
from autotune.base.files import write_whole, writing
from autotune.base.plugins import load_plugin
from autotune.base.text import csv_text
from autotune.contract import TrialResult, TrialSpec
from autotune.devices.hardware import Environment, peak_flops_of
from autotune.job.lengths import attended_tokens
from autotune.job.model_shape import ModelShape, train_flops_per_token
from autotune.record.bottleneck import bottleneck, shares_of_calls
from autotune.record.facts import Facts
from autotune.record.guard import guards_of
from autotune.record.spread import Spread, is_figure, spread_of
from autotune.record.study import Recorded, Study, Trial
from autotune.space.candidate import Candidate, candidate_of
from autotune.space.knob import Context
from autotune.space.knobs import describe_change
from autotune.trial.scripts.lengths import is_drawn

TABLE_VERSION = 6
"""Rises when a column changes its name, type or meaning, or goes; new columns keep it."""

_YEAR_3000_S = 32_503_680_000.0
"""Latest start; a later one comes of damage, and a timestamp cannot hold every number."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of the table."""

    name: str
    dtype: str
    """pandas dtype, a key of `_TYPES`; any column may be empty in a row."""
    unit: str
    """Empty where there is none."""
    meaning: str


_TYPES: dict[str, type | UnionType] = {
    "string": str,
    "Int64": int,
    "float64": int | float,
    "boolean": bool,
    "datetime64[us, UTC]": pd.Timestamp,
}
"""Types of a column's cells."""
SUMMARY = (
    *("trial", "outcome", "samples_per_s", "samples_per_s_low", "samples_per_s_high"),
    *("step_time_s", "peak_memory_bytes", "bound", "guard", "wall_s", "changes", "evidence"),
)
"""Columns that people read first."""
_DTYPE_OF_KNOB = {"int": "Int64", "float": "float64", "bool": "boolean", "choice": "string"}


class TrialTable(pd.DataFrame):
    """A row per trial; its `attrs` hold the `study`, and the columns' `units` and `meanings`."""

    @property
    def summary(self) -> pd.DataFrame:
        """The dozen columns that people read first, among them what each trial `changes`."""
        return self[[*SUMMARY]]


_GROUPS: Mapping[str, Mapping[str, str]] = table_beside(__file__, "columns.json")
"""Group -> its columns: `dtype in unit: meaning`, or `dtype: meaning` without a unit."""
_PATHS = _GROUPS["paths"]
"""Column -> where a trial has it, such as `spec.layout.world`; the others are worked out."""


@cache
def schema_of(engine: str) -> tuple[Column, ...]:
    """Every column of the studies of an engine, in order; the table always has all of them.

    Raises:
        JobError: No such engine is installed.
    """
    plugin = load_plugin("engine", engine)
    columns = {**_GROUPS["identity"]} | {
        name: f"{_DTYPE_OF_KNOB[knob.kind]}: {knob.help}; empty where it does not act"
        for name, knob in plugin.knobs.items()
        if name not in _GROUPS["asked"]
    }
    named = (package.name for package in plugin.packages)
    packages = ("python", "torch", *named, "transformers", "peft", "nvidia-driver")
    columns |= {**_GROUPS["asked"], **_GROUPS["measured"]}
    columns |= {f"version.{p}": f"string: version of {p} in the trial" for p in packages}
    columns |= _GROUPS["provenance"]
    found = []
    for name, text in columns.items():
        kind, _, meaning = text.partition(": ")
        dtype, _, unit = kind.partition(" in ")
        found.append(Column(name=name, dtype=dtype, unit=unit, meaning=meaning))
    return tuple(found)


def _at(value: Any, path: str) -> Any:
    """What stands at a path; None where a part of it is not there, or there is no text."""
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return None if value == "" else value


def load_table(study_folder: Path) -> TrialTable:
    """The table of a study, from its record; its folder is `results/<study>`.

    Unreadable trials are rows that hold their number and their problem.

    Raises:
        StudyError: The record cannot be read.
    """
    study = Study(study_folder.parent, study_folder.name)
    return make_table(study.name, study.read(), study.facts())


def make_table(study: str, recorded: Recorded, facts: Facts) -> TrialTable:
    """The table of a record that has been read."""
    schema = schema_of(facts.engine)
    left_out, baseline = facts.left_out, facts.baseline
    counted = [t for t in recorded.trials if t.number not in left_out]
    spread = spread_of(trial for trial in counted if not trial.is_reduced)
    rows = {t.number: _row(t, study, facts, spread) for t in recorded.trials}
    guards = guards_of(counted, baseline.candidate_hash, facts.guard_steps)
    for number, reduced in extrapolations(counted).items():
        rows[number] |= _extrapolated_cells(reduced, rows[number])
    changes = _changes(recorded.trials, baseline.candidate_hash, facts.context)
    for number, row in rows.items():
        row["changes"] = changes.get(number)
        row["baseline"] = baseline.words_for(row["candidate_hash"])
        if (guard := guards.get(row["candidate_hash"])) is not None:
            row |= {"guard": guard.verdict.value, "guard_why": guard.why}
    for unreadable in recorded.unreadable:
        number = int(unreadable.folder.name)
        rows[number] = {"study": study, "trial": number, "problem": unreadable.problem}
    ordered = [_fitted(rows[number], schema) for number in sorted(rows)]
    frame = TrialTable(
        {
            column.name: pd.Series([row[column.name] for row in ordered], dtype=column.dtype)
            for column in schema
        }
    )
    frame.attrs = {
        "study": study,
        "units": {column.name: column.unit for column in schema if column.unit},
        "meanings": {column.name: column.meaning for column in schema},
    }
    return frame


def _changes(
    trials: Iterable[Trial], baseline_hash: str | None, context: Context | None
) -> dict[int, str]:
    """Trial -> what a user changes in the baseline; without one, all that a user sets."""
    if context is None:
        return {}
    candidates = {trial.number: candidate_of(trial.spec) for trial in trials}
    baseline = next((one for one in candidates.values() if one.hash == baseline_hash), None)
    return {number: describe_change(one, baseline, context) for number, one in candidates.items()}


def extrapolations(trials: Iterable[Trial]) -> dict[int, int]:
    """Number of the first full trial of a candidate after its reduced one -> number of that one.

    Where both measured, and the full one was predicted before it.
    """
    reduced: dict[str, int] = {}
    found: dict[int, int] = {}
    for trial in sorted(trials, key=lambda one: one.number):
        identity, result = trial.spec.identity, trial.result
        if result is None or not is_figure(result):
            continue
        if identity.reduced_of is not None:
            reduced[identity.reduced_of] = identity.number
        elif trial.spec.provenance.predicted is not None and identity.candidate_hash in reduced:
            found[identity.number] = reduced.pop(identity.candidate_hash)
    return found


def _extrapolated_cells(reduced: int, row: Mapping[str, Any]) -> dict[str, Any]:
    predicted, measured = row["predicted_step_time_s"], row["step_time_s"]
    error = predicted / measured - 1 if measured else None
    return {"extrapolated_from": reduced, "extrapolation_error": error}


def write_table(study: Study) -> TrialTable:
    """Write `table.parquet` and `table.csv` anew, each whole or not at all.

    Raises:
        StudyError: The record cannot be read, or the files cannot be written.
    """
    frame = load_table(study.folder)
    with writing(study.table_file, hint="mend the permissions; the record is complete without it"):
        write_whole(study.table_file, lambda path: frame.to_parquet(path, index=False))
        write_whole(
            study.table_file.with_suffix(".csv"),
            lambda path: path.write_text(csv_text(frame), encoding="utf-8"),
        )
    return frame


def energy_per_sample_j(spec: TrialSpec, result: TrialResult) -> float | None:
    """Energy of all devices over the measured phase, per sample that was trained in it."""
    gpu = None if result.use is None else result.use.gpu
    if gpu is None or gpu.energy_j is None or not result.step_times_s:
        return None
    # All that was trained in the phase that was measured, whatever counts for the figure.
    thrown_away = max(0, len(result.warmup_step_times_s) - spec.measure.warmup_steps)
    n_steps = len(result.step_times_s) + result.steps_skipped + thrown_away
    return gpu.energy_j / (n_steps * spec.layout.global_batch)


def product_precision(candidate: Candidate, precision: str) -> str:
    """Precision of the layers' matrix products: that of the training, or fp8 or fp4."""
    if candidate.get("fp8", "none") != "none":
        return "fp8"
    return "fp4" if candidate.get("fp4") else candidate.precision(precision)


def _row(trial: Trial, study: str, facts: Facts, spread: Spread) -> dict[str, Any]:
    spec, result, model = trial.spec, trial.result, facts.model
    row = {name: _at(trial, path) for name, path in _PATHS.items()}
    row |= {**_asked_cells(spec, row), "study": study, "problem": trial.problem or None}
    shape = None
    # A study by name may hold trials of another model: what is known is not theirs.
    if model is not None and model.source == spec.workload.model:
        shape = model.shape
        row["model"] = model.name
        row |= {"n_params": shape.n_params, "n_params_frozen": shape.n_params_frozen}
    if result is not None:
        row |= _result_cells(result) | _seen_cells(spec, result)
        environment = facts.environment_at(spec.identity.number)
        if environment is not None:
            row["device_name"] = environment.device_name
        if is_figure(result):
            interval = spread.interval([result])
            row |= {"samples_per_s_low": interval.low, "samples_per_s_high": interval.high}
            row["is_steady"] = result.is_steady
            row |= _throughput_cells(spec, result, shape, environment)
    return row


def _asked_cells(spec: TrialSpec, known: Mapping[str, Any]) -> dict[str, Any]:
    """Cells of a trial's spec besides those that are known, its knobs included."""
    row: dict[str, Any] = {n: v for n, v in spec.knobs.items() if n not in known}
    row["role"] = str(spec.identity.role)
    if "lora" in spec.workload.model:
        row["finetune"] = json.dumps({"lora": spec.workload.model["lora"]}, sort_keys=True)
    row["lengths"] = spec.workload.lengths.get("kind", "fixed")
    parts = {"fidelity": spec.identity.fidelity, "predicted": spec.provenance.predicted}
    for prefix, part in parts.items():
        if part is not None:
            row |= {f"{prefix}_{name}": value for name, value in vars(part).items()}
    return row


def _result_cells(result: TrialResult) -> dict[str, Any]:
    cells: dict[str, Any] = {f"phase.{name}_s": s for name, s in result.phases_s.items()}
    cells |= {f"memory.{meter}_bytes": size for meter, size in result.memory_bytes.items()}
    cells |= {f"version.{name}": version for name, version in result.versions.items()}
    cells |= {
        "outcome": str(result.outcome),
        "origin": str(result.origin),
        "differences": "; ".join(result.differences) or None,
        "n_steps": len(result.step_times_s),
        "n_warmup_steps": len(result.warmup_step_times_s),
        "devices": " ".join(result.devices) or None,
        "environment": json.dumps(result.environment, sort_keys=True),
    }
    if result.started_at_s:  # of a lost trial nobody knows
        cells |= {"wall_s": result.wall_s, "start": result.start}
    if 0 < result.started_at_s < _YEAR_3000_S:
        cells["started_at"] = pd.Timestamp(round(result.started_at_s * 1e6), unit="us", tz="UTC")
    return cells


def _seen_cells(spec: TrialSpec, result: TrialResult) -> dict[str, Any]:
    """Where the time of a trial went, and what it took of its devices."""
    found: dict[str, Any] = {}
    diagnosis = result.diagnosis
    bound = bottleneck(spec, diagnosis)
    if bound is not None and diagnosis is not None and diagnosis.split is not None:
        shares = shares_of_calls(diagnosis.split)
        found = {f"share.{part}": share for part, share in shares.items()}
        found["bound"] = bound.bound.value
    if result.use is not None:
        found["energy_per_sample_j"] = energy_per_sample_j(spec, result)
    return found


def _throughput_cells(
    spec: TrialSpec, result: TrialResult, shape: ModelShape | None, environment: Environment | None
) -> dict[str, float]:
    """Samples/s in tokens and in FLOPs.

    The ranks count the tokens where samples may differ in length: in a user's own script always.
    """
    samples_per_s = result.samples_per_s or 0.0
    lengths, seq_len = spec.workload.lengths, spec.workload.seq_len
    tokens_per_s = padded_tokens_per_s = samples_per_s * seq_len
    attended = attended_tokens(lengths, spec.layout.global_batch, seq_len)
    if spec.workload.command or is_drawn(lengths):
        if result.tokens_per_step is None or result.padded_tokens_per_step is None:
            return {}
        steps_per_s = samples_per_s / spec.layout.global_batch
        tokens_per_s = result.tokens_per_step * steps_per_s
        padded_tokens_per_s = result.padded_tokens_per_step * steps_per_s
        if not is_drawn(lengths):
            attended = result.padded_tokens_per_step / spec.layout.global_batch
    cells = {"tokens_per_s": tokens_per_s, "padded_tokens_per_s": padded_tokens_per_s}
    if shape is None:
        return cells
    flops_per_s = train_flops_per_token(shape, attended) * tokens_per_s / spec.layout.world
    cells["tflops_per_device"] = flops_per_s / 1e12
    precision = product_precision(candidate_of(spec), spec.workload.precision)
    peak_flops = peak_flops_of(precision, environment)
    if peak_flops is not None:
        cells["mfu"] = flops_per_s / peak_flops
    return cells


def _fitted(row: Mapping[str, Any], schema: Sequence[Column]) -> dict[str, Any]:
    """A cell for every column; what a damaged file put there of another type is named instead."""
    cells = {column.name: row.get(column.name) for column in schema}
    cells["table_version"] = TABLE_VERSION
    for one in schema:
        value = cells[one.name]
        if value is not None and not isinstance(value, _TYPES[one.dtype]):
            cells[one.name] = None
            cells["problem"] = f"{one.name}: {str(value)[:60]!r} is of another type"
    return cells
