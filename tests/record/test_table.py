import dataclasses
import json
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

import pandas as pd
import pytest

from autotune import DEFAULT_ENGINE
from autotune.base.errors import StudyError
from autotune.contract import KnobValue, Phase, TrialResult, TrialSpec
from autotune.engines.base import find_engine
from autotune.job.model_shape import train_flops_per_token
from autotune.record.spread import is_figure
from autotune.record.study import Study
from autotune.record.table import (
    SUMMARY,
    TABLE_VERSION,
    _asked_cells,
    _throughput_cells,
    load_table,
    schema_of,
    write_table,
)
from tests import site_pages, snapshots
from tests.report.test_terminal import finished
from tests.search.scripted import ENVIRONMENT, GIB, make, realistic, search

SCHEMA = schema_of(DEFAULT_ENGINE)

REPOSITORY = Path(__file__).parents[2]


def detailed(spec: TrialSpec) -> TrialResult:
    """A result with everything in it."""
    result = realistic(spec)
    if not result.outcome.is_measured:
        return result
    return dataclasses.replace(
        result,
        phases_s={phase.value: 1.0 for phase in Phase},
        memory_bytes={"peak": 7 * GIB, "private_data": 7 * GIB, "host_rss": 9 * GIB},
        peak_memory_bytes=7 * GIB,
        host_construction_bytes=11,
        loss_first=6.5,
        loss_last=float("nan"),
        versions={"python": "3.11.9", "torch": "2.13.0", "deepspeed": "0.19.8"},
        environment={"OMP_NUM_THREADS": "1"},
        devices=["localhost:0", "localhost:1"],
        differences=["stage: 0 instead of 1", "tp: 2 instead of 1"],
    )


@pytest.fixture
def study(tmp_path: Path) -> Study:
    study = Study(tmp_path, "scripted")
    search(study, make(trials=3, precision="bf16"), detailed)
    return study


def test_schema_is_frozen():
    """A changed or missing column needs a new TABLE_VERSION."""
    schema = {"version": TABLE_VERSION, "columns": [dataclasses.asdict(c) for c in SCHEMA]}
    snapshots.check("table_schema.json", json.dumps(schema, indent=1) + "\n")


def test_the_page_has_every_column():
    page = site_pages.table()
    assert [c.name for c in SCHEMA if f"| `{c.name}` | {c.dtype} |" not in page] == []


def test_a_row_per_trial_with_the_types_of_the_schema(study: Study):
    frame = load_table(study.folder)
    assert list(frame.columns) == [column.name for column in SCHEMA]
    assert [str(dtype) for dtype in frame.dtypes] == [column.dtype for column in SCHEMA]
    assert list(frame["trial"]) == [trial.spec.identity.number for trial in study.trials()]
    assert set(frame["role"]) == {"baseline", "search", "confirm"}
    assert frame.loc[frame["role"] == "confirm", "confirm_round"].notna().all()
    assert frame.loc[frame["role"] != "confirm", "confirm_round"].isna().all()


def test_knobs_are_empty_where_they_do_not_act(study: Study):
    frame = load_table(study.folder)
    first = frame.iloc[0]
    assert first["zero.stage"] == 0
    assert pd.isna(first["reduce_bucket_size"])
    sharded = frame[frame["zero.stage"] > 0]
    assert len(sharded) > 0
    assert sharded["reduce_bucket_size"].notna().all()


def test_the_summary_has_what_people_read_and_what_each_trial_changes(tmp_path: Path):
    frame = load_table(finished(tmp_path).folder)
    short = frame.summary
    assert (list(short.columns), len(short)) == (list(SUMMARY), len(frame))
    assert {*SUMMARY} <= {column.name for column in SCHEMA}
    baseline = short[frame["baseline"] == "baseline"]
    assert set(baseline["changes"]) == {"the baseline itself"}
    others = short[frame["role"] == "search"]
    assert others["changes"].str.fullmatch(r"(\S+=\S+ ?)+").all()


@pytest.mark.parametrize("engine", ["deepspeed", "megatron"])
def test_a_knob_has_one_name_and_no_other_column_has_it(engine: str):
    """Flags, JSON and columns spell a knob alike; a layout's column stands for its knob."""
    names = [column.name for column in schema_of(engine)]
    assert len(names) == len({*names})
    assert {*find_engine(engine).knobs} <= {*names}
    groups = json.loads(resources.files("autotune.record").joinpath("columns.json").read_text())
    others = groups["identity"] | groups["measured"] | groups["provenance"]
    assert not {*find_engine(engine).knobs} & {*others}


def test_a_size_is_what_the_engine_gets(study: Study):
    """A candidate has the least of the sizes that run alike, where a file may have more."""
    spec = study.trials()[0].spec
    knobs = {"reduce_bucket_size": 1000, "micro_batch": 4, "overlap_comm": True}
    expected = {"reduce_bucket_size": 5e8, "micro_batch": 4, "overlap_comm": True}
    identity = dataclasses.replace(spec.identity, knobs=knobs)
    engine = dataclasses.replace(spec.engine, expected=expected)
    spec = dataclasses.replace(spec, identity=identity, engine=engine)
    assert spec.knobs == {**knobs, "reduce_bucket_size": 500_000_000}
    assert _asked_cells(spec, {})["reduce_bucket_size"] == 500_000_000


def test_a_measured_row(study: Study):
    frame = load_table(study.folder)
    row = frame[(frame["outcome"] == "ok") & (frame["role"] == "baseline")].iloc[-1]
    trial = study.trials()[int(row["trial"])]
    assert row["samples_per_s"] == trial.result.samples_per_s
    assert row["tokens_per_s"] == pytest.approx(row["samples_per_s"] * 64)
    flops = train_flops_per_token(make().model.shape, 64) * row["tokens_per_s"] / 2
    assert row["tflops_per_device"] == pytest.approx(flops / 1e12)
    assert row["mfu"] == pytest.approx(flops / 1e12)  # the scripted peak is 1 TFLOP/s
    assert (row["n_steps"], row["phase.import_s"]) == (5, 1.0)
    assert (row["memory.private_data_bytes"], row["host_construction_bytes"]) == (7 * GIB, 11)
    assert pd.isna(row["memory.allocated_bytes"])
    assert row["devices"] == "localhost:0 localhost:1"
    assert row["environment"] == '{"OMP_NUM_THREADS": "1"}'
    assert row["differences"] == "stage: 0 instead of 1; tp: 2 instead of 1"
    assert (row["version.torch"], row["model"]) == ("2.13.0", "tiny-gpt2")
    assert row["device_name"] == "scripted"
    assert row["started_at"] == datetime.fromtimestamp(trial.result.started_at_s, UTC)


def test_drawn_lengths_count_the_tokens_that_the_ranks_saw(tmp_path: Path):
    study = Study(tmp_path, "scripted")
    lengths = {"histogram": {16: 1, 64: 1}}
    job = make(trials=1, precision="bf16", lengths=lengths)

    def counted(spec: TrialSpec) -> TrialResult:
        counts = {"tokens_per_step": 640.0, "padded_tokens_per_step": 800.0}
        return dataclasses.replace(realistic(spec), **counts)

    search(study, job, counted)
    frame = load_table(study.folder)
    row = frame[frame["outcome"] == "ok"].iloc[0]
    assert (row["lengths"], row["n_params_frozen"]) == ("histogram", 0)
    assert row["tokens_per_s"] == pytest.approx(row["samples_per_s"] * 640 / 16)
    assert row["padded_tokens_per_s"] == pytest.approx(row["samples_per_s"] * 800 / 16)
    attended = (16 * 16 + 64 * 64) / (16 + 64)
    flops = train_flops_per_token(job.model.shape, attended) * row["tokens_per_s"] / 2
    assert row["tflops_per_device"] == pytest.approx(flops / 1e12)


def test_a_failed_row_keeps_its_evidence_and_no_figures(study: Study):
    frame = load_table(study.folder)
    row = frame[frame["outcome"] == "oom"].iloc[0]
    assert (row["evidence"], row["evidence_source"]) == ("CUDA out of memory", "script")
    assert pd.isna(row["samples_per_s"])
    assert pd.isna(row["mfu"])


def test_a_trial_of_another_model_gets_no_figures_of_this_one(study: Study):
    search(study, make(trials=1, model="tiny-llama", precision="bf16"))
    frame = load_table(study.folder)
    assert set(frame["model"].dropna()) == {"tiny-llama"}
    assert frame.iloc[0]["samples_per_s"] != frame.iloc[0]["mfu"]
    assert frame[frame["model"].isna()]["mfu"].isna().all()


def test_mfu_is_over_the_peak_of_the_device_that_ran_it(study: Study):
    state = study.read_state()
    last = len(study.trials()) - 1
    other = state["environments"][0] | {"since_trial": last, "peak_flops": 2e12}
    study.write_state(state | {"environments": [state["environments"][0], other]})
    frame = load_table(study.folder)
    share = frame["mfu"] / frame["tflops_per_device"]
    assert share.iloc[0:last].dropna().unique() == pytest.approx([1.0])
    assert share.iloc[last] == pytest.approx(0.5)


@pytest.mark.cases("knobs", "precision", "peak_tflops")
def test_mfu_is_over_the_peak_at_the_precision_of_the_products(
    study: Study, knobs: dict[str, KnobValue], precision: str, peak_tflops: float | None
):
    """As in a forecast; Hopper has no peak in fp4."""
    trial = next(t for t in study.trials() if t.result is not None and is_figure(t.result))
    identity = dataclasses.replace(
        trial.spec.identity, knobs={**trial.spec.identity.knobs, **knobs}
    )
    workload = dataclasses.replace(trial.spec.workload, precision=precision)
    spec = dataclasses.replace(trial.spec, identity=identity, workload=workload)
    named = {"device_name": "NVIDIA H100 80GB HBM3", "peak_flops": 989e12}
    here = dataclasses.replace(ENVIRONMENT, **named)
    cells = _throughput_cells(spec, trial.result, make().model.shape, here)
    expected = peak_tflops and pytest.approx(cells["tflops_per_device"] / peak_tflops)
    assert cells.get("mfu") == expected


def test_unreadable_trials_are_listed(study: Study):
    trials = study.trials()
    (trials[1].folder / "spec.json").write_text("{")
    (trials[2].folder / "result.json").write_text("{")
    (trials[3].folder / "result.json").unlink()
    frame = load_table(study.folder).set_index("trial")
    assert len(frame) == len(trials)
    assert "spec.json" in frame.loc[1, "problem"]
    assert pd.isna(frame.loc[1, "role"])
    assert "result.json" in frame.loc[2, "problem"]
    assert frame.loc[2, "role"] == "baseline"
    assert frame.loc[[1, 2, 3], "outcome"].isna().all()
    assert frame.loc[0, "outcome"] is not None


def test_files_hold_the_same_rows(study: Study):
    frame = write_table(study)
    pd.testing.assert_frame_equal(pd.read_parquet(study.table_file), pd.DataFrame(frame))
    written = pd.read_csv(study.table_file.with_suffix(".csv"))
    assert list(written.columns) == list(frame.columns)
    assert written["samples_per_s"].to_list() == pytest.approx(
        frame["samples_per_s"].to_list(), nan_ok=True
    )


def test_a_write_that_fails_keeps_the_old_table(study: Study, monkeypatch: pytest.MonkeyPatch):
    write_table(study)
    before = study.table_file.read_bytes()

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", full)
    with pytest.raises(StudyError, match="No space left"):
        write_table(study)
    assert study.table_file.read_bytes() == before
    assert not list(study.folder.glob(".table*"))
