"""A user's ds_config.json as the baseline."""

import json
from pathlib import Path

import pytest

from autotune.base.errors import JobError, RenderError
from autotune.base.nested import look_up
from autotune.engines.deepspeed.ds_config_file import knobs_of, read_ds_config
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from tests.jobs import CPU, canonical_candidate, tiny_job


@pytest.fixture
def engine(tmp_path: Path) -> DeepSpeedEngine:
    return DeepSpeedEngine(tiny_job(tmp_path), CPU)


def write(tmp_path: Path, **config) -> Path:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"bf16": {"enabled": True}, **config}))
    return file


def test_missing_keys_are_the_engines_defaults(tmp_path, engine):
    file = write(
        tmp_path, train_micro_batch_size_per_gpu=2, zero_optimization={"stage": 2}, dump_state=True
    )
    its_engine, candidate = engine.baseline(file)
    assert candidate == canonical_candidate(tiny_job(tmp_path), zero__stage=2, micro_batch=2)
    rendered = json.loads(its_engine.files(candidate)["ds_config.json"])
    assert rendered["bf16"]["enabled"] is True
    assert rendered["dump_state"] is True


def test_what_it_renders_is_what_it_read(tmp_path, engine):
    candidate = canonical_candidate(
        tiny_job(tmp_path),
        zero__stage=3,
        micro_batch=2,
        offload__optimizer="cpu",
        reduce_bucket_size=3000,
        stage3__param_persistence_threshold=100,
        communication_dtype="fp32",
    )
    file = tmp_path / "rendered.json"
    file.write_text(engine.files(candidate)["ds_config.json"])
    its_engine, again = engine.baseline(file)
    assert again == candidate
    assert its_engine.files(again) == engine.files(candidate)
    assert its_engine.overridden(again) == {}


def test_keys_that_no_knob_knows_ride_along_in_that_trial_only(tmp_path, engine):
    file = write(
        tmp_path,
        train_micro_batch_size_per_gpu=2,
        zero_optimization={
            "stage": 1,
            "parameter_alignment": True,
            "offload_optimizer": {"device": "cpu", "pin_memory": False},
        },
        optimizer={"type": "Lion", "params": {"lr": 1}},
    )
    its_engine, candidate = engine.baseline(file)
    config = its_engine.setup(candidate).ds_config
    assert config["zero_optimization"]["parameter_alignment"] is True
    assert config["zero_optimization"]["offload_optimizer"]["pin_memory"] is False
    assert "parameter_alignment" not in engine.setup(candidate).zero
    # All candidates train with one optimizer: the job's.
    assert config["optimizer"]["type"] == "AdamW"
    assert its_engine.overridden(candidate)["optimizer"][0]["type"] == "Lion"


@pytest.mark.cases("batch", "micro_batch")
def test_the_batch_keys_are_read_as_deepspeed_reads_them(tmp_path, engine, batch, micro_batch):
    _, candidate = engine.baseline(write(tmp_path, **batch))
    assert candidate.micro_batch == micro_batch
    assert candidate.micro_batch * candidate.grad_accum * candidate.dp == 8


@pytest.mark.cases("batch", "said")
def test_a_contradicting_batch_is_answered_with_the_arithmetic(tmp_path, engine, batch, said):
    with pytest.raises(JobError) as caught:
        engine.baseline(write(tmp_path, **batch))
    assert "mine.json" in caught.value.message
    assert said in caught.value.message


@pytest.mark.cases("config", "said")
def test_what_is_no_baseline_is_refused(tmp_path, engine, config, said):
    """A wrong value is named before what else differs."""
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(config))
    with pytest.raises((JobError, RenderError), match=said):
        engine.baseline(file)


@pytest.mark.cases("config", "written", "notes")
def test_another_spelling_is_read_and_told(tmp_path, engine, config, written, notes):
    """By what stands in the file then, null: nothing; and how the key ran."""
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"train_batch_size": 8, **config}))
    its_engine, candidate = engine.baseline(file)
    rendered = its_engine.setup(candidate).ds_config
    assert {key: look_up(rendered, key) for key in written} == written
    told = {key: list(note) for key, note in its_engine.overridden(candidate).items()}
    assert notes.items() <= told.items()


def test_a_value_that_folds_is_said(tmp_path, engine):
    n_params = tiny_job(tmp_path).model.shape.n_params
    file = write(
        tmp_path, train_batch_size=8, zero_optimization={"stage": 2, "reduce_bucket_size": 5e8}
    )
    its_engine, candidate = engine.baseline(file)
    assert candidate["reduce_bucket_size"] == n_params
    said = its_engine.overridden(candidate)
    assert said["zero_optimization.reduce_bucket_size"] == (500_000_000, n_params)


def test_a_degree_that_the_compiler_splits_by_is_not_the_scripts(tmp_path):
    file = write(
        tmp_path,
        train_micro_batch_size_per_gpu=2,
        sequence_parallel_size=2,
        compile={"deepcompile": True, "passes": ["autosp"]},
    )
    assert "sp" not in knobs_of(read_ds_config(file)[0], file)
    assert knobs_of({"sequence_parallel_size": 2}, file)["sp"] == 2
