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
from tests.observed import BY_ARGUMENTS, RAW, TRAINER, job_of, observed
from tests.trials import CPU

SCRIPTS = {"raw": RAW, "trainer": TRAINER, "by arguments": BY_ARGUMENTS}


@pytest.mark.cases("script", "changes", "more", "ways", "left_out")
def test_knobs_reach_a_script_by_some_way_or_are_left_out_with_the_reason(
    script: str,
    changes: dict[str, Any],
    more: dict[str, Any],
    ways: dict[str, str | None],
    left_out: dict[str, str],
) -> None:
    described = {**SCRIPTS[script], **changes}
    if "arguments" in changes:
        described["arguments"] = {**SCRIPTS[script]["arguments"], **changes["arguments"]}
    if "command" in more:
        more = {**more, "command": more["command"].split()}
    reach = reach_of(observed(described, **more))
    assert not reach.ways.keys() & reach.left_out.keys()
    for knob, way in ways.items():
        assert reach.ways.get(knob) == way
        assert knob not in reach.left_out
    for knob, words in left_out.items():
        assert reach.left_out[knob]
        assert words in reach.left_out[knob]


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
def test_no_candidate_has_zenflow_where_it_loses_the_weights(tmp_path, release, loses_weights):
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
def test_a_loader_that_takes_its_size_from_the_file_gets_another_one_there(described, is_changed):
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
