"""Which knobs reach a user's command, by which way."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.base.errors import JobError
from autotune.engines.deepspeed.script import ScriptEngine
from autotune.planning.lattice import lattice_of
from autotune.space.candidate import Candidate
from autotune.space.script import Script, reach_of, recompute_name
from tests.cases import Cases
from tests.observed import BY_ARGUMENTS, RAW, TRAINER, job_of, observed
from tests.trials import CPU

cases = Cases(__file__)


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
    assert "write {micro_batch=4} in the command, once" in reach.left_out["micro_batch"]
    for flag in ("--mbs=", "--batchSize ", "-b ", "--train_batch_size "):
        reach = reach_of(observed(own, command=f"torchrun t.py {flag}4 --seed 4".split()))
        assert f"write {flag}{{micro_batch=4}} in the command" in reach.left_out["micro_batch"]
    command = ["torchrun", "train.py", "--batch-size", "{micro_batch=4}"]
    reach = reach_of(observed(own, command=command))
    assert reach.ways["micro_batch"] == "placeholders"
    assert "micro_batch" not in reach.left_out


def test_accumulation_by_hand_leaves_the_batch_out() -> None:
    by_hand = observed({**RAW, "micro_batches": [4, 4, 4]}, read_back={"grad_accum": 1})
    reach = reach_of(by_hand)
    assert "micro_batch" not in reach.ways
    assert "by hand" in reach.left_out["micro_batch"]


@cases("words", "way")
def test_a_batch_by_hand_needs_a_word_for_its_steps(words: str, way: str | None) -> None:
    """Else the global batch would change with it."""
    passes = {**RAW, "micro_batches": [4, 4, 4], "asks_micro_batch": False}
    command = f"torchrun train.py {words}".split()
    reach = reach_of(observed(passes, command=command, read_back={"grad_accum": 1}))
    assert reach.ways.get("micro_batch") == way
    assert ("micro_batch" in reach.left_out) == (way is None)


@pytest.mark.parametrize("knob", ["tp", "pp", "sp", "loss_chunk_tokens", "attention", "recompute"])
def test_what_a_raw_script_decides_itself_is_left_out_with_the_reason(knob: str) -> None:
    reach = reach_of(observed(RAW))
    assert knob not in reach.ways
    assert reach.left_out[knob]


def test_trainer_s_own_optimizer_goes_by_its_arguments() -> None:
    name = "optimizer.implementation"
    assert reach_of(observed(BY_ARGUMENTS)).ways[name] == "arguments"
    others: tuple[dict[str, Any], ...] = (
        {"client_optimizer": "Lion"},
        {"optimizer_by_arguments": False},  # an AdamW that the script has made itself
        {"arguments": {**BY_ARGUMENTS["arguments"], "optim": "adafactor"}},
        {"framework": "accelerate"},
    )
    for other in others:
        reach = reach_of(observed({**BY_ARGUMENTS, **other}))
        assert reach.left_out[name] == "the script brings its optimizer", other
    offloaded = reach_of(observed({**BY_ARGUMENTS, "client_optimizer": "DeepSpeedCPUAdam"}))
    assert "on the host" in offloaded.left_out[name]
    in_file = reach_of(observed(TRAINER))
    assert name not in {*in_file.ways, *in_file.left_out}, "DeepSpeed makes it by its file"


def test_attention_goes_by_an_argument_of_the_framework_or_by_a_placeholder() -> None:
    live = {"attention": "sdpa"}
    takes = {**BY_ARGUMENTS, "framework": "trl", "takes_attention": True}
    assert reach_of(observed(takes, read_back=live)).ways["attention"] == "arguments"
    for description in (BY_ARGUMENTS, {**takes, "takes_attention": False}):
        reason = reach_of(observed(description, read_back=live)).left_out["attention"]
        assert "write {attention=sdpa}" in reason
    axolotl = {**BY_ARGUMENTS, "framework": "axolotl"}
    reason = reach_of(observed(axolotl, read_back=live)).left_out["attention"]
    assert "attn_implementation" in reason
    strange = observed(takes, read_back={"attention": "flex_attention"})
    assert "attention" in reach_of(strange).left_out
    command = ["torchrun", "train.py", "--attn", "{attention=sdpa}"]
    named = observed(TRAINER, command=command, read_back=live)
    assert reach_of(named).ways["attention"] == "placeholders"


def test_a_precision_that_is_set_where_the_command_starts_is_left_out() -> None:
    reach = reach_of(observed({**RAW, "framework": "accelerate"}))
    assert "accelerate" in reach.left_out["precision"]
    assert reach_of(observed(RAW)).ways["precision"] == "configuration"


def test_no_knob_both_reaches_and_is_left_out() -> None:
    for description in (RAW, TRAINER, BY_ARGUMENTS):
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


@pytest.mark.parametrize(("release", "loses_weights"), [("0.19.6", False), ("0.19.8", True)])
def test_no_candidate_has_zenflow_where_it_loses_the_weights(
    tmp_path: Path, release: str, loses_weights: bool
) -> None:
    job = replace(job_of(observed(TRAINER), tmp_path), space="lossy")
    environment = replace(CPU, deepspeed_version=release)
    candidates = lattice_of(ScriptEngine(job, environment)).candidates
    assert len(candidates) > 3
    has_zenflow = any(c.values.get("zenflow", "none") != "none" for c in candidates)
    assert has_zenflow is not loses_weights


BY_DICT = {
    **RAW,
    "asks_micro_batch": False,
    "config_written": RAW["config"],
    "loader_batches": [4],
    "sources": [
        {
            **{"file": "/p/ds.json", "at": [], "same": ["train_micro_batch_size_per_gpu"]},
            **{"other": [], "sections": [], "is_whole": True},
        }
    ],
}
"""It makes its batches by the file that it reads, and hands DeepSpeed the dict."""
BY_FILE = {**BY_DICT, "config_file": "/p/ds.json", "settings_read": ["/p/ds.json"]}
"""It hands over the file's path."""


@pytest.mark.parametrize(
    ("described", "is_changed"),
    [
        (BY_FILE, True),
        (BY_DICT, True),
        ({**BY_FILE, "loader_batches": [3, 8]}, False),
        ({**BY_FILE, "loader_batches": []}, False),
        ({**BY_FILE, "config_file": "/p/other.json"}, False),
        ({**BY_DICT, "sources": []}, False),
    ],
    ids=["file", "dict", "another size", "no loader", "not read", "by code"],
)
def test_a_loader_that_takes_its_size_from_the_file_gets_another_one_there(
    described: dict[str, Any], is_changed: bool
) -> None:
    reach = reach_of(observed(described))
    assert reach.ways.get("micro_batch") == ("configuration" if is_changed else None)
    assert ("micro_batch" in reach.left_out) != is_changed


@pytest.mark.parametrize("framework", ["deepspeed", "accelerate"])
def test_a_script_that_is_none_of_trainer_s_is_not_told_of_trainer(framework: str) -> None:
    live = {"attention": "sdpa"}
    reach = reach_of(observed({**RAW, "framework": framework}, read_back=live))
    assert not [why for why in reach.left_out.values() if "Trainer" in why]
    assert "{recompute=none:--gradient_checkpointing}" in reach.left_out["recompute"]
    assert "write {attention=sdpa}" in reach.left_out["attention"]


def test_a_flag_that_only_stands_there_switches_recomputation() -> None:
    command = ["torchrun", "train.py", "{recompute=none:--ckpt}"]
    named = observed(RAW, command=command, read_back={"recomputes": False})
    assert reach_of(named).ways["recompute"] == "placeholders"
    other = observed(RAW, command=command, read_back={"recomputes": True})
    assert "its run had full" in reach_of(other).left_out["recompute"]
