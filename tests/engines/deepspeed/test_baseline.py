"""A user's ds_config.json as the baseline."""

import json
from pathlib import Path

import pytest

from autotune.base.errors import JobError, RenderError
from autotune.engines.deepspeed.ds_config_file import knobs_of, read_ds_config
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from tests.cases import Cases
from tests.jobs import CPU, canonical_candidate, tiny_job

cases = Cases(__file__)


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


@cases("batch", "micro_batch")
def test_the_batch_keys_are_read_as_deepspeed_reads_them(tmp_path, engine, batch, micro_batch):
    _, candidate = engine.baseline(write(tmp_path, **batch))
    assert candidate.micro_batch == micro_batch
    assert candidate.micro_batch * candidate.grad_accum * candidate.dp == 8


@cases("batch", "said")
def test_a_contradicting_batch_is_answered_with_the_arithmetic(tmp_path, engine, batch, said):
    with pytest.raises(JobError) as caught:
        engine.baseline(write(tmp_path, **batch))
    assert "mine.json" in caught.value.message
    assert said in caught.value.message


@cases("config", "said")
def test_a_wrong_value_is_named_before_what_else_differs(tmp_path, engine, config, said):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(config))
    with pytest.raises(JobError, match=said):
        engine.baseline(file)


def test_another_precision_is_another_job(tmp_path, engine):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"train_batch_size": 8, "fp16": {"enabled": True}}))
    with pytest.raises(JobError, match="trains in fp16, the job in bf16"):
        engine.baseline(file)


def test_an_automatic_precision_is_the_jobs(tmp_path, engine):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"train_batch_size": 8, "bf16": {"enabled": "auto"}}))
    its_engine, candidate = engine.baseline(file)
    assert its_engine.overridden(candidate)["bf16.enabled"] == ("auto", True)


@pytest.mark.parametrize("enabled", [True, "auto"])
def test_the_old_name_of_bf16_is_read_as_deepspeed_reads_it(tmp_path, engine, enabled):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"train_batch_size": 8, "bfloat16": {"enabled": enabled}}))
    its_engine, candidate = engine.baseline(file)
    config = its_engine.setup(candidate).ds_config
    assert (config["bf16"]["enabled"], "bfloat16" in config) == (True, False)
    said = its_engine.overridden(candidate)
    assert said["bfloat16"] == ({"enabled": enabled}, {"bf16": {"enabled": enabled}})


def test_the_old_name_of_bf16_beside_the_new_one_is_left_out(tmp_path, engine):
    file = write(tmp_path, train_batch_size=8, bfloat16={"enabled": False})
    its_engine, candidate = engine.baseline(file)
    assert its_engine.overridden(candidate)["bfloat16"] == ({"enabled": False}, None)


def test_a_second_spelling_is_read_and_said(tmp_path, engine):
    zero = {"stage": 3, "gather_16bit_weights_on_model_save": True}
    file = write(tmp_path, train_batch_size=8, zero_optimization=zero)
    its_engine, candidate = engine.baseline(file)
    config = its_engine.setup(candidate).ds_config["zero_optimization"]
    assert config["stage3_gather_16bit_weights_on_model_save"] is True
    assert "gather_16bit_weights_on_model_save" not in config
    said = its_engine.overridden(candidate)
    assert said["zero_optimization.gather_16bit_weights_on_model_save"] == (
        True,
        {"stage3_gather_16bit_weights_on_model_save": True},
    )


def test_both_spellings_of_a_key_are_refused(tmp_path, engine):
    zero = {"stage": 3, "max_live_parameters": 10, "stage3_max_live_parameters": 20}
    file = write(tmp_path, train_batch_size=8, zero_optimization=zero)
    with pytest.raises(RenderError, match=r"max_live_parameters=10 and .*=20 are the same key"):
        engine.baseline(file)


def test_a_value_that_folds_is_said(tmp_path, engine):
    n_params = tiny_job(tmp_path).model.shape.n_params
    file = write(
        tmp_path,
        train_batch_size=8,
        zero_optimization={"stage": 2, "reduce_bucket_size": 5e8},
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


def test_an_exported_pipeline_is_no_baseline(tmp_path, engine):
    file = write(
        tmp_path,
        train_micro_batch_size_per_gpu=2,
        pipeline={"activation_checkpoint_interval": 0},
    )
    with pytest.raises(JobError, match="its stages stand in its script"):
        engine.baseline(file)
