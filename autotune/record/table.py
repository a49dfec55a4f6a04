"""The results table: one tidy row per trial, rebuilt from the record whenever it is asked for.

The schema is frozen by a test and described in docs/table.md, which
`python -m autotune.record.table` prints. Nothing reads the written files back: they are for
people and their tools.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any

import pandas as pd

from autotune.base.errors import StudyError
from autotune.base.files import write_whole
from autotune.base.plugins import load_plugin
from autotune.contract import Phase, TrialResult
from autotune.job.job import DEFAULT_ENGINE
from autotune.record import table_asked as asked
from autotune.record import table_seen as seen
from autotune.record.column import Column, DType, column
from autotune.record.facts import ModelFacts, engine_name_of, environment_at, left_out_of, model_of
from autotune.record.spread import Spread, is_figure, spread_of
from autotune.record.study import Recorded, Study, Trial
from autotune.record.throughput import throughput_cells

TABLE_VERSION = 2
"""Rises when a column changes its name, type or meaning, or goes; new columns keep it."""

METERS = ("private_data", "host_rss", "allocated", "reserved", "context_and_comm")
"""Memory meters of `TrialResult.memory_bytes`, besides `peak`."""

_DTYPE_OF_KNOB: dict[str, DType] = {
    "int": "Int64",
    "float": "float64",
    "bool": "boolean",
    "choice": "string",
}


_YEAR_3000_S = 32_503_680_000.0
"""Latest start; a later one comes of damage, and a timestamp cannot hold every number."""
_TYPES: dict[DType, type | UnionType] = {
    "string": str,
    "Int64": int,
    "float64": int | float,
    "boolean": bool,
    "datetime64[us, UTC]": pd.Timestamp,
}
"""What a cell of a column may be."""


_OUTCOME = (
    column("outcome", "string", "how it ended (see `Outcome`); empty while it is in flight"),
    column("evidence", "string", "the line that the outcome was read from"),
    column("evidence_source", "string", "where that line stands"),
    column(
        "disturbed",
        "string",
        "what disturbed it while it measured; empty: nothing that was noticed",
    ),
    column("differences", "string", "where the live engine differs from what was asked"),
)

_SPEED = (
    column("samples_per_s", "float64", "global_batch / step_time_s", unit="samples/s"),
    column(
        "samples_per_s_low",
        "float64",
        "lower end of its 95% prediction interval: where a re-run would be, by how much runs of "
        "this study differ",
        unit="samples/s",
    ),
    column(
        "samples_per_s_high",
        "float64",
        "upper end of its 95% prediction interval",
        unit="samples/s",
    ),
    column(
        "tokens_per_s",
        "float64",
        "of all accelerators together, padding left out",
        unit="tokens/s",
    ),
    column("padded_tokens_per_s", "float64", "the same with padding", unit="tokens/s"),
    column(
        "tflops_per_device",
        "float64",
        "model FLOPs (PaLM, appendix B: 6 N + 12 L A T per "
        "token, no recomputation and no padding; 4 for 6 of a frozen weight) per second and "
        "accelerator",
        unit="TFLOP/s",
    ),
    column(
        "mfu",
        "float64",
        "tflops_per_device over the device's dense bf16/fp16 peak; empty in "
        "fp32 and where the peak is unknown",
        unit="share, 0 to 1",
    ),
    column("step_time_s", "float64", "median optimizer step of the slowest rank", unit="s"),
    column(
        "step_time_low_s",
        "float64",
        "lower end of the 95% interval of that median: of the steps of this run, not of a re-run",
        unit="s",
    ),
    column("step_time_high_s", "float64", "upper end of the same", unit="s"),
    column("n_steps", "Int64", "optimizer steps that were measured", unit="steps"),
    column(
        "n_warmup_steps",
        "Int64",
        "optimizer steps before them that were thrown away as warm-up",
        unit="steps",
    ),
    column("is_steady", "boolean", "whether warm-up was over before half of the steps were"),
    column(
        "steps_skipped",
        "Int64",
        "measured steps that the engine did not apply (fp16 overflow); not in the figures",
        unit="steps",
    ),
    column("loss_first", "float64", "mean loss of the first step, on rank 0's data"),
    column("loss_last", "float64", "mean loss of the last step, on rank 0's data"),
)

_MEMORY = (
    column("peak_memory_bytes", "Int64", "highest of any rank, by the device's meter", unit="B"),
    column("memory_limit_bytes", "Int64", "per device; empty: the device's own", unit="B"),
    *(
        column(
            f"memory.{meter}_bytes",
            "Int64",
            f"highest of any rank, by the meter {meter}",
            unit="B",
        )
        for meter in METERS
    ),
    column(
        "host_construction_bytes",
        "Int64",
        "peak resident host memory that building model and engine added on a rank",
        unit="B",
    ),
)

_PHASES = tuple(
    column(f"phase.{phase}_s", "float64", "seconds in this phase", unit="s") for phase in Phase
)

_PROVENANCE = (
    column(
        "origin",
        "string",
        "where the figures come from: measured (by ranks that trained), replayed (a table of runs "
        "elsewhere), simulated (the analytic model)",
    ),
    column("accelerator", "string", "cpu or cuda"),
    column("device_name", "string", "what the accelerators call themselves"),
    column("devices", "string", "slots of the gang, separated by spaces"),
    column("environment", "string", "allow-listed environment variables, as JSON"),
    column("seed", "Int64", "of weights and data"),
    column("started_at", "datetime64[us, UTC]", "when it was submitted"),
    column("start", "string", "how its ranks started: cold (torchrun) or warm (forked)"),
    column("wall_s", "float64", "from submission until its last process had ended", unit="s"),
)


@cache
def schema_of(engine: str) -> tuple[Column, ...]:
    """Every column of the studies of an engine, in order; the table always has all of them.

    Raises:
        JobError: No such engine is installed.
    """
    plugin = load_plugin("engine", engine)
    packages = ("python", "torch", *plugin.packages, "transformers", "peft")
    return (
        *asked.IDENTITY,
        *(
            column(
                f"knob.{knob.name}",
                _DTYPE_OF_KNOB[knob.kind],
                f"{knob.help}; empty where it does not act",
            )
            for knob in plugin.knobs.values()
        ),
        *asked.DERIVED,
        *asked.PREDICTED,
        *_OUTCOME,
        *_SPEED,
        *_MEMORY,
        *seen.COLUMNS,
        *_PHASES,
        *(column(f"version.{p}", "string", f"version of {p} in the trial") for p in packages),
        *_PROVENANCE,
    )


_RESULT_FIELDS = (
    "samples_per_s",
    "step_time_s",
    "step_time_low_s",
    "step_time_high_s",
    "steps_skipped",
    "loss_first",
    "loss_last",
    "peak_memory_bytes",
    "host_construction_bytes",
)


def load_table(study_folder: Path) -> pd.DataFrame:
    """The table of a study, from its record.

    Unreadable trials are rows that hold their number and their problem.

    Args:
        study_folder: `results/<study>`.

    Returns:
        A row per trial, by number, with the columns of `schema_of`. Its `attrs` hold the name of
        the `study`, and by column the `units` (where there is one) and the `meanings`.

    Raises:
        StudyError: The record cannot be read.
    """
    study = Study(study_folder.parent, study_folder.name)
    return make_table(study.name, study.read(), study.read_state())


def make_table(study: str, recorded: Recorded, facts: Mapping[str, Any]) -> pd.DataFrame:
    """The table of a record that has been read.

    Args:
        study: Name of the study.
        recorded: Its trials; those that are unreadable become rows too.
        facts: What its `study.json` says.

    Returns:
        As `load_table`.
    """
    schema = schema_of(engine_name_of(facts))
    model = model_of(facts)
    left_out = left_out_of(facts)
    spread = spread_of(
        t
        for t in recorded.trials
        if t.spec.identity.number not in left_out and t.spec.identity.fidelity is None
    )
    rows = {t.spec.identity.number: _row(t, study, facts, model, spread) for t in recorded.trials}
    for unreadable in recorded.unreadable:
        number = int(unreadable.folder.name)
        rows[number] = {"study": study, "trial": number, "problem": unreadable.problem}
    ordered = [_fitted(rows[number], schema) for number in sorted(rows)]
    frame = pd.DataFrame(
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


def write_table(study: Study) -> pd.DataFrame:
    """Write `table.parquet` and `table.csv` anew, each whole or not at all.

    Raises:
        StudyError: The record cannot be read, or the files cannot be written.
    """
    frame = load_table(study.folder)
    try:
        write_whole(study.table_file, lambda path: frame.to_parquet(path, index=False))
        write_whole(
            study.table_file.with_suffix(".csv"), lambda path: frame.to_csv(path, index=False)
        )
    except OSError as error:
        raise StudyError(
            f"{study.table_file}: cannot be written: {error.strerror or error}",
            "free some space or mend the permissions; the record is complete without it",
        ) from error
    return frame


def describe() -> str:
    """docs/table.md: every column with its type, unit and meaning."""
    lines = [
        "# The results table",
        "",
        "One row per trial, in `results/<study>/table.parquet` and `table.csv`, rebuilt from the",
        "trial folders when a search ends. Figures are measured; a trial that measured nothing",
        "leaves them empty. In a notebook, `autotune.load(study)` is the table as a pandas frame,",
        "read from the trials themselves; `frame.attrs` holds the `units` and `meanings` below.",
        f"This is version {TABLE_VERSION} of the schema; it rises when a column changes or goes,",
        "not when one is added.",
        "",
        "| column | type | unit | meaning |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{c.name}` | {c.dtype} | {c.unit} | {c.meaning} |" for c in schema_of(DEFAULT_ENGINE)
    ]
    return "\n".join(lines) + "\n"


def _row(
    trial: Trial,
    study: str,
    facts: Mapping[str, Any],
    model: ModelFacts | None,
    spread: Spread,
) -> dict[str, Any]:
    spec, result = trial.spec, trial.result
    row: dict[str, Any] = {**asked.cells(spec), "study": study}
    row["problem"] = trial.problem or None
    shape = None
    # A study by name may hold trials of another model: what is known is not theirs.
    if model is not None and model.source == spec.workload.model:
        shape = model.shape
        row |= {"model": model.name, "n_params": shape.n_params}
        row["n_params_frozen"] = shape.n_params_frozen
    if result is not None:
        row |= _result_cells(result)
        row |= seen.cells(spec, result)
        environment = environment_at(facts, spec.identity.number)
        if environment is not None:
            row["device_name"] = environment.device_name
        if is_figure(result):
            interval = spread.interval([result])
            row |= {"samples_per_s_low": interval.low, "samples_per_s_high": interval.high}
            row["is_steady"] = result.is_steady
            row |= throughput_cells(spec, result, shape, environment)
    return row


def _result_cells(result: TrialResult) -> dict[str, Any]:
    cells: dict[str, Any] = {name: getattr(result, name) for name in _RESULT_FIELDS}
    cells |= {f"phase.{name}_s": seconds for name, seconds in result.phases_s.items()}
    cells |= {f"memory.{meter}_bytes": size for meter, size in result.memory_bytes.items()}
    cells |= {f"version.{name}": version for name, version in result.versions.items()}
    cells |= {
        "outcome": str(result.outcome),
        "origin": str(result.origin),
        "evidence": result.evidence or None,
        "evidence_source": result.evidence_source or None,
        "differences": "; ".join(result.differences) or None,
        "disturbed": result.disturbed or None,
        "n_steps": len(result.step_times_s),
        "n_warmup_steps": len(result.warmup_step_times_s),
        "devices": " ".join(result.devices) or None,
        "environment": json.dumps(result.environment, sort_keys=True),
    }
    if 0 < result.started_at_s < _YEAR_3000_S:  # of a lost trial nobody knows
        cells["started_at"] = pd.Timestamp(round(result.started_at_s * 1e6), unit="us", tz="UTC")
        cells |= {"wall_s": result.wall_s, "start": result.start}
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


if __name__ == "__main__":
    print(describe(), end="")
