"""A candidate of a user's command is what two rendered configurations differ by."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.base.errors import JobError
from autotune.engines.deepspeed.script import ScriptEngine
from autotune.planning.lattice import lattice_of
from autotune.space.candidate import Candidate
from autotune.trial.engines.deepspeed import CONFIG_FILE
from autotune.trial.guest.edits import EDITS_FILE
from tests.observed import RAW, TRAINER, job_of, observed
from tests.trials import CPU


def engine_of(folder: Path, description: dict[str, Any] = RAW, **given: Any) -> ScriptEngine:
    return ScriptEngine(job_of(observed(description, **given), folder), CPU)


def changed(engine: ScriptEngine, **knobs: Any) -> Candidate:
    """The command as it is but for some knobs, `__` for a dot."""
    own = engine.own
    values = {**own.values, **{name.replace("__", "."): v for name, v in knobs.items()}}
    return replace(own, knobs=tuple(sorted(values.items())))


@pytest.mark.parametrize("description", [RAW, TRAINER], ids=["raw", "trainer"])
def test_the_command_as_it_is_has_no_edits(tmp_path: Path, description: dict[str, Any]) -> None:
    engine = engine_of(tmp_path, description)
    edits = engine.edits(engine.own)
    assert not edits.configuration
    assert not edits.arguments
    assert json.loads(engine.files(engine.own)[CONFIG_FILE]) == description["config"]


def test_the_baseline_is_the_command_as_it_is_and_nothing_else(tmp_path: Path) -> None:
    engine = engine_of(tmp_path)
    assert list(engine.ladder()) == [[engine.own]]
    assert (engine.own.micro_batch, engine.own.grad_accum) == (4, 2)
    assert engine.own.values["zero.stage"] == 1
    with pytest.raises(JobError, match="--baseline"):
        engine.baseline(tmp_path / "ds.json")


def test_the_command_as_it_is_breaks_no_rule_whatever_it_does(tmp_path: Path) -> None:
    odd = {**RAW, "config": {**RAW["config"], "no_such_key": 1, "fp16": {"enabled": "yes"}}}
    engine = engine_of(tmp_path, odd)
    assert not engine.judge(engine.own)


def test_another_stage_is_one_key_and_the_user_s_stay(tmp_path: Path) -> None:
    engine = engine_of(tmp_path)
    candidate = changed(engine, zero__stage=2)
    edits = engine.edits(candidate)
    assert edits.configuration["zero_optimization.stage"] == 2
    assert all(key.startswith("zero_optimization.") for key in edits.configuration)
    written = json.loads(engine.files(candidate)[CONFIG_FILE])
    assert written["gradient_clipping"] == RAW["config"]["gradient_clipping"]
    assert json.loads(engine.files(candidate)[EDITS_FILE])["arguments"] == {}


def test_a_raw_script_s_batch_is_two_keys_of_its_configuration(tmp_path: Path) -> None:
    engine = engine_of(tmp_path)
    candidate = Candidate.of({**engine.own.values, "micro_batch": 8}, world=2, global_batch=16)
    edits = engine.edits(candidate)
    assert edits.configuration["train_micro_batch_size_per_gpu"] == 8
    assert edits.configuration["gradient_accumulation_steps"] == 1
    assert "train_batch_size" not in edits.configuration
    assert not edits.arguments


def test_trainer_s_batch_is_set_in_its_arguments_too(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, TRAINER)
    candidate = Candidate.of(
        {**engine.own.values, "micro_batch": 2, "recompute": "full"}, world=2, global_batch=16
    )
    assert engine.edits(candidate).arguments == {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "gradient_checkpointing": True,
    }
    lines = engine.edits_in_words(candidate)
    assert "argument: per_device_train_batch_size=2" in lines


def test_what_a_user_s_key_becomes_is_said(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, TRAINER)
    candidate = changed(engine, zero__stage=1)
    assert engine.overridden(candidate)["zero_optimization.stage"] == (2, 1)
    assert any(line.startswith("ds_config.json: ") for line in engine.edits_in_words(candidate))


def test_what_is_expected_is_what_was_read_back_but_for_the_edits(tmp_path: Path) -> None:
    odd = {"gradient_clipping": 0.25, "optimizer_wrapper": "SomethingElse"}
    engine = engine_of(tmp_path, read_back=odd)
    own, other = engine.expected(engine.own), engine.expected(changed(engine, zero__stage=2))
    assert own["stage"] == 1
    assert other["stage"] == 2
    assert own["n_params"] == other["n_params"] == RAW["n_params"]
    for name in odd.keys() & own.keys():
        assert own[name] == odd[name], "nobody foretells what the user has set"


def test_the_space_has_no_knob_that_does_not_reach_the_command(tmp_path: Path) -> None:
    raw, trainer = tmp_path / "raw", tmp_path / "trainer"
    raw.mkdir()
    trainer.mkdir()
    assert "recompute" not in engine_of(raw).space.domains
    assert "recompute" in engine_of(trainer, TRAINER).space.domains


def test_a_batch_that_no_power_of_two_is_stays_a_choice(tmp_path: Path) -> None:
    odd = {**RAW, "micro_batches": [6, 6]}
    odd["config"] = {**RAW["config"], "train_micro_batch_size_per_gpu": 6}
    engine = engine_of(tmp_path, odd, read_back={"micro_batch": 6})
    assert 6 in engine.space.domains["micro_batch"].values
    assert engine.own.micro_batch == 6


def test_a_batch_that_nothing_reaches_is_no_choice(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, {**RAW, "asks_micro_batch": False})
    assert engine.space.domains["micro_batch"].values == (4,)


@pytest.mark.parametrize("description", [RAW, TRAINER], ids=["raw", "trainer"])
def test_every_candidate_of_the_lattice_keeps_the_batch(
    tmp_path: Path, description: dict[str, Any]
) -> None:
    job = job_of(observed(description), tmp_path)
    engine = ScriptEngine(job, CPU)
    candidates = lattice_of(job, engine).candidates
    assert len(candidates) > 3
    assert engine.own in candidates
    for candidate in candidates:
        assert candidate.micro_batch * candidate.grad_accum * 2 == job.global_batch


def test_what_did_not_arrive_is_remarked(tmp_path: Path) -> None:
    written = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}
    engine = engine_of(tmp_path, {**RAW, "config_written": written})
    said = " ".join(engine.remarks())
    assert "zero_optimization.stage: your file says 3, and 1 arrived" in said
    assert "bf16" not in said


def test_several_engines_are_remarked(tmp_path: Path) -> None:
    alone, several = engine_of(tmp_path), {**RAW, "engines": 3, "engines_trained": 2}
    assert not [line for line in alone.remarks() if "engines" in line]
    said = [line for line in engine_of(tmp_path, several).remarks() if "engines" in line]
    assert len(said) == 1
    assert "2 of its 3 engines train" in said[0]


def test_every_candidate_has_the_stages_of_the_script_s_pipeline(tmp_path: Path) -> None:
    config = {
        **RAW["config"],
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
    }
    pipeline = {**RAW, "engine": "PipelineEngine", "dp": 1, "config": config}
    pipeline["sizes"] = {**RAW["sizes"], "n_layers": 0}  # its layers stand in no list
    script = observed(
        {**pipeline, "micro_batches": [2] * 4},
        read_back={"pp": 2, "dp": 1, "micro_batch": 2, "grad_accum": 4},
    )
    assert script.global_batch == 8
    job = job_of(script, tmp_path)
    engine = ScriptEngine(job, CPU)
    assert (engine.own.micro_batch, engine.own.grad_accum) == (2, 4)
    candidates = lattice_of(job, engine).candidates
    assert engine.own in candidates
    assert len({candidate.micro_batch for candidate in candidates}) > 1
    for candidate in candidates:
        assert candidate.micro_batch * candidate.grad_accum == 8
        assert candidate.values["zero.stage"] <= 1, "DeepSpeed's pipelines have no more"
    edits = engine.edits(replace(engine.own, knobs=engine.own.knobs))
    assert not edits.configuration
