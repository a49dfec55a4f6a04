"""A user's own launch script as the baseline of a Megatron search."""

import json

import pytest

from autotune.base.errors import JobError
from autotune.engines.megatron.baseline import read_baseline
from autotune.engines.megatron.engine import MegatronEngine
from autotune.space.candidate import Candidate
from autotune.trial.engines.megatron import ARGUMENTS_FILE
from tests.cases import data_beside
from tests.jobs import CPU, tiny_job

DATA = data_beside(__file__)

SCRIPT = DATA["SCRIPT"]


def read(folder, text, **job):
    path = folder / "launch.sh"
    path.write_text(text)
    engine = MegatronEngine(
        tiny_job(folder, engine="megatron", **{"precision": "bf16", **job}), CPU
    )
    return engine.baseline(path)


def test_the_layout_of_a_script_is_a_candidate(tmp_path):
    engine, candidate = read(tmp_path, SCRIPT)
    values = {name: candidate[name] for name in ("tp", "pp", "vp", "micro_batch", "recompute")}
    assert values == {"tp": 2, "pp": 1, "vp": 1, "micro_batch": 2, "recompute": "block_2"}
    assert candidate["sequence_parallel"] is True
    assert (candidate.dp, candidate.grad_accum) == (1, 4)
    assert not engine.judge(candidate)


def test_what_no_knob_carries_is_said(tmp_path):
    """Nor what CPU ranks cannot run."""
    text = SCRIPT.replace("--bf16", "--bf16 --distribute-saved-activations")
    engine, candidate = read(tmp_path, text.replace("--sequence-parallel", ""))
    assert engine.overridden(candidate) == {"--distribute-saved-activations": (True, None)}
    engine, candidate = read(tmp_path, SCRIPT.replace("--bf16", "--bf16 --tp-comm-overlap"))
    assert engine.overridden(candidate) == {"tp_comm_overlap": (True, None)}
    assert candidate["overlap_grad_reduce"] is False
    assert not engine.judge(candidate)


def test_knobs_that_the_lattice_leaves_are_read(tmp_path):
    text = SCRIPT.replace("--recompute-granularity full --recompute-method block", "")
    text = text.replace("--recompute-num-layers 2", "--recompute-granularity selective")
    text = text.replace("selective", "selective --recompute-modules mlp core_attn")
    _, candidate = read(tmp_path, text.replace("--bf16", "--bf16 --overlap-grad-reduce"))
    assert candidate["recompute_modules"] == "core_attn+mlp"
    assert "overlap_grad_reduce" not in candidate.values


@pytest.mark.cases("old", "new", "message")
def test_another_training_than_the_jobs_is_refused(tmp_path, old, new, message):
    with pytest.raises(JobError, match=message):
        read(tmp_path, SCRIPT.replace(old, new))


def test_arguments_in_a_file_that_a_script_sources_are_read(tmp_path):
    """As this project exports them; what the script is started with is passed on."""
    arguments, line = SCRIPT.split("torchrun")
    (tmp_path / "args.sh").write_text(arguments)
    text = f'#!/bin/bash\nsource args.sh\ntorchrun{line.rstrip()} "$@"\n'
    _, candidate = read(tmp_path, text)
    assert (candidate["tp"], candidate["micro_batch"]) == (2, 2)
    with pytest.raises(JobError, match="tell --"):
        read(tmp_path, text.replace("$@", "$MORE"))


def test_a_change_of_a_launch_is_told_in_its_own_arguments(tmp_path):
    text = SCRIPT.replace(
        "--recompute-granularity full --recompute-method block --recompute-num-layers 2",
        "--recompute-activations --overlap-grad-reduce",
    )
    path = tmp_path / "launch.sh"
    path.write_text(text)
    job = tiny_job(tmp_path, engine="megatron", precision="bf16", baseline=str(path))
    engine = MegatronEngine(job, CPU)
    _, start = engine.baseline(path)
    assert engine.edits_in_words(start) == []
    knobs = {**dict(start.knobs), "tp": 1, "sequence_parallel": False, "recompute": "none"}
    other = Candidate.of(knobs, world=job.world, global_batch=job.global_batch)
    assert engine.edits_in_words(other) == [
        "remove --recompute-activations",
        "remove --sequence-parallel",
        "set --tensor-model-parallel-size to 1",
    ]


@pytest.mark.cases("modules", "read_as")
def test_modules_on_the_host_are_read_in_any_order(tmp_path, modules, read_as):
    line = f"--bf16 --fine-grained-activation-offloading --offload-modules {modules}"
    path = tmp_path / "launch.sh"
    path.write_text(SCRIPT.replace("--bf16", line))
    job = tiny_job(tmp_path, engine="megatron", precision="bf16")
    knobs, notes = read_baseline(path, job, release="0.16")
    assert knobs.get("offload_modules") == read_as
    assert ("--offload-modules" in notes) is (read_as is None)


@pytest.mark.parametrize(("layout", "stages"), [("Ett|tL", "balanced"), ("Et|ttL", "Et|ttL")])
def test_a_layout_of_stages_is_read(tmp_path, layout, stages):
    """By its name, where it is that of a name; else as it is written."""
    text = SCRIPT.replace(
        "--tensor-model-parallel-size 2 --sequence-parallel",
        f"--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout '{layout}'",
    ).replace("--recompute-granularity full --recompute-method block --recompute-num-layers 2", "")
    engine, candidate = read(tmp_path, text)
    assert (candidate["stages"], candidate["pp"], candidate["vp"]) == (stages, 2, 1)
    assert not engine.judge(candidate)
    assert not engine.overridden(candidate)
    written = json.loads(engine.files(candidate)[ARGUMENTS_FILE])
    assert written["pipeline_model_parallel_layout"] == layout
    assert "num_virtual_stages_per_pipeline_rank" not in written
