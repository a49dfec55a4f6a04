"""`estimate --trace`: traced memory beside the analytic one, and models that only it can see."""

import dataclasses
import json
from pathlib import Path

import pytest

from autotune.app.planning import open_outlook
from autotune.base.errors import JobError
from autotune.planning.outlook import FleetWishes
from autotune.planning.traced import trace_estimate
from autotune.report.candidates.traced import print_traced, traced_as_dict
from autotune.tracing import trace_candidate
from autotune.tracing.moments import StepPhase
from tests.command_line import autotune
from tests.report import told

FLAGS = {"model": "tiny-llama", "seq_len": 128, "global_batch": 8, "world": 2}
REPOSITORY = Path(__file__).resolve().parents[2]
FACTORY = "tests.tracing.models:Bigram"
SHAPE = ("--seq-len", "64", "--global-batch", "8", "--world", "2", "--gpu", "H100")


@pytest.fixture(scope="module")
def found():
    outlook = open_outlook(None, FLAGS, FleetWishes(gpu="H100"))
    return trace_estimate(outlook, ["zero.stage=0", "micro_batch=4"])


def test_traced_and_analytic_stand_beside_each_other(found):
    data = traced_as_dict(found)
    assert data["trace"]["n_params"] == found.outlook.job.model.shape.n_params_total
    counted, traced = data["pred_memory_parts_bytes"], data["pred_traced_memory_parts_bytes"]
    # The model is small: what the engine and the driver take is alike.
    for name in ("optimizer states", "workspace", "driver and libraries"):
        assert traced[name] == pytest.approx(counted[name], rel=0.01)
    assert sum(traced.values()) == pytest.approx(data["pred_traced_peak_memory_bytes"])
    assert data["pred_traced_peak_memory_bytes"] == max(data["pred_traced_phase_bytes"].values())
    assert set(data["pred_traced_phase_bytes"]) == set(StepPhase)
    assert data["pred_step_time_s"] > 0
    assert 0 < data["pred_traced_fit_probability"] <= 1


def printed(found) -> str:
    return " ".join(told.printed(print_traced, found, width=100).split())


def test_the_terminal_has_both_figures_and_says_how(found):
    text = printed(found)
    assert "memory analytic traced" in text
    assert "one step of the whole model" in text
    assert "CPU kernels" in text
    sizes = text.partition("analytic traced")[2].partition(" parameters ")[2].split()
    assert sizes[:2] == sizes[2:4]
    assert "step time cannot be predicted" not in text
    assert "step time cannot be predicted" in printed(dataclasses.replace(found, analytic=None))


def test_a_factory_whose_sizes_nobody_sees_has_memory_and_no_time(tmp_path):
    (tmp_path / "tests").symlink_to(REPOSITORY / "tests")
    wanted = ("--model", FACTORY, *SHAPE, "--set", "micro_batch=4", "--json")
    done = autotune("estimate", "--trace", *wanted, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["pred_step_time_s"] is None
    assert data["pred_peak_memory_bytes"] is None
    assert data["pred_traced_peak_memory_bytes"] > 0
    assert "cannot be predicted" in data["notes"][-1]


def test_a_model_that_cannot_be_traced_is_an_error_of_the_users(found):
    source = {
        "factory": "tests.tracing.models:ReadsValues",
        "path": [str(REPOSITORY)],
        "vocab": 64,
    }
    model = dataclasses.replace(found.outlook.job.model, source=source)
    job = dataclasses.replace(found.outlook.job, model=model)
    with pytest.raises(JobError, match="reads values") as caught:
        trace_candidate(job, found.candidate, accelerator="cpu")
    assert "leave the trace out" in caught.value.hint


def test_layers_of_megatron_are_not_the_models_code():
    outlook = open_outlook(None, {**FLAGS, "engine": "megatron"}, FleetWishes(gpu="H100"))
    with pytest.raises(JobError, match="--engine megatron") as caught:
        trace_estimate(outlook, [])
    assert "--engine deepspeed" in caught.value.hint
