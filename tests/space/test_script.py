"""Which knobs reach a user's command, by which way."""

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.base.errors import JobError
from autotune.engines.deepspeed.script import ScriptEngine
from autotune.planning.lattice import lattice_of
from autotune.space.candidate import Candidate
from autotune.space.script import Script, reach_of, recompute_name
from tests.observed import RAW, TRAINER, job_of, observed
from tests.trials import CPU


def test_trainer_s_batch_and_recomputation_go_by_its_arguments() -> None:
    reach = reach_of(observed(TRAINER))
    for knob in ("micro_batch", "recompute", "compile"):
        assert reach.ways[knob] == "arguments"
        assert knob not in reach.left_out


def test_a_raw_script_that_asks_the_engine_gets_its_batch_by_the_configuration() -> None:
    assert reach_of(observed(RAW)).ways["micro_batch"] == "configuration"
    given = {**RAW, "asks_micro_batch": False, "gives_data": True}
    assert reach_of(observed(given)).ways["micro_batch"] == "configuration"


def test_a_pipeline_gets_its_batch_by_the_configuration() -> None:
    pipeline = {**RAW, "asks_micro_batch": False, "engine": "PipelineEngine"}
    assert reach_of(observed(pipeline)).ways["micro_batch"] == "configuration"


def test_a_script_that_makes_its_batches_itself_is_told_of_placeholders() -> None:
    own = {**RAW, "asks_micro_batch": False}
    reach = reach_of(observed(own))
    assert "micro_batch" not in reach.ways
    assert "{micro_batch=N}" in reach.left_out["micro_batch"]
    command = ["torchrun", "train.py", "--batch-size", "{micro_batch=4}"]
    reach = reach_of(observed(own, command=command))
    assert reach.ways["micro_batch"] == "placeholders"
    assert "micro_batch" not in reach.left_out


def test_accumulation_by_hand_leaves_the_batch_out() -> None:
    by_hand = observed({**RAW, "micro_batches": [4, 4, 4]}, read_back={"grad_accum": 1})
    reach = reach_of(by_hand)
    assert "micro_batch" not in reach.ways
    assert "by hand" in reach.left_out["micro_batch"]


@pytest.mark.parametrize("knob", ["tp", "pp", "sp", "loss_chunk_tokens", "attention", "recompute"])
def test_what_a_raw_script_decides_itself_is_left_out_with_the_reason(knob: str) -> None:
    reach = reach_of(observed(RAW))
    assert knob not in reach.ways
    assert reach.left_out[knob]


def test_no_knob_both_reaches_and_is_left_out() -> None:
    for description in (RAW, TRAINER):
        reach = reach_of(observed(description))
        assert not reach.ways.keys() & reach.left_out.keys()


def test_recomputation_is_called_as_their_version_does() -> None:
    assert recompute_name(observed(TRAINER)) == "gradient_checkpointing"
    newer = {**TRAINER, "arguments": {"activation_checkpointing": False}}
    assert recompute_name(observed(newer)) == "activation_checkpointing"


def test_a_trial_runs_the_command_with_its_placeholders_filled_in(tmp_path: Path) -> None:
    command = ["torchrun", "train.py", "--b", "{micro_batch=4}", "--a", "{grad_accum=2}"]
    job = job_of(observed(RAW, command=command), tmp_path)
    candidate = Candidate.of({"micro_batch": 2}, world=2, global_batch=job.global_batch)
    trained = Script().workload(job, candidate)
    assert trained.command == ["torchrun", "train.py", "--b", "2", "--a", "4"]
    assert trained.folder == "/somewhere"
    assert trained.digest


def test_a_job_without_a_command_says_how_to_give_one(tmp_path: Path) -> None:
    job = job_of(observed(RAW), tmp_path)
    object.__setattr__(job, "script", None)
    with pytest.raises(JobError) as caught:
        Script().reach(job)
    assert "search -- torchrun" in caught.value.hint


@pytest.mark.parametrize(("release", "is_left_out"), [("0.18.9", False), ("0.19.8", True)])
def test_zenflow_is_left_out_where_it_begins_with_other_weights(
    tmp_path: Path, release: str, is_left_out: bool
) -> None:
    script = observed(RAW)
    script = replace(script, result={**script.result, "versions": {"deepspeed": release}})
    assert ("zenflow" in reach_of(script).left_out) is is_left_out
    job = replace(job_of(script, tmp_path), space="lossy")
    candidates = lattice_of(job, ScriptEngine(job, CPU)).candidates
    assert len(candidates) > 3
    has_zenflow = any(c.values.get("zenflow", "none") != "none" for c in candidates)
    assert not (is_left_out and has_zenflow)
