"""What is asked of the tracing process, and what is refused before."""

import dataclasses

import pytest

from autotune.base.errors import JobError
from autotune.job.job import make_job
from autotune.job.lengths import Lengths
from autotune.space.candidate import Candidate
from autotune.tracing import request as asked
from autotune.tracing import trace_candidate
from autotune.tracing.moments import Kind, Part, StepPhase, Traced

JOB = make_job({"model": "tiny-llama", "seq_len": 64, "global_batch": 8, "world": 2}, where="here")


def candidate(**knobs) -> Candidate:
    chosen = {"micro_batch": 4, "zero.stage": 0, **knobs}
    return Candidate.of(chosen, world=2, global_batch=8)


@pytest.fixture
def requests(monkeypatch):
    """What the process was asked; it answers with an empty step."""
    seen = []
    step = Traced(
        n_layers=4,
        n_params=1,
        parts={Part(phase=StepPhase.FORWARD, place="layers"): dict.fromkeys(Kind, 0.0)},
    )

    def answer(*, request, **_):
        seen.append(request)
        return {**step.as_dict(), "took_s": 1.0}

    monkeypatch.setattr(asked, "ask", answer)
    return seen


@pytest.mark.parametrize("knob", ["tp", "pp", "sp", "ep"])
def test_splits_are_refused_by_name(knob, requests) -> None:
    with pytest.raises(JobError, match=f"{knob}=2") as caught:
        trace_candidate(JOB, candidate(**{knob: 2}), accelerator="cpu")
    assert f"{knob}=1" in caught.value.hint
    assert not requests


def test_drawn_lengths_are_refused(requests) -> None:
    job = dataclasses.replace(JOB, lengths=Lengths(kind="histogram", histogram=((32, 1.0),)))
    with pytest.raises(JobError, match="not of a histogram\n"):
        trace_candidate(job, candidate(), accelerator="cpu")
    assert not requests


@pytest.mark.cases("knobs", "gradients")
def test_gradients_are_as_the_engine_keeps_them(knobs, gradients, requests) -> None:
    trace_candidate(JOB, candidate(**knobs), accelerator="cpu")
    assert requests[0]["gradients"] == gradients


def test_a_gpu_rounds_up_and_drops_inside_its_kernels(requests) -> None:
    trace = trace_candidate(JOB, candidate(compile="torch"), accelerator="cuda")
    assert requests[0]["granule_bytes"] == 512
    assert requests[0]["has_fused_dropout"]
    assert len(trace.notes) == 2
    assert trace_candidate(JOB, candidate(), accelerator="cpu").notes == ()
    assert requests[1]["granule_bytes"] == 1
