"""Traces of real models: what they hold, what cannot be traced, what is not allocated."""

import resource
from pathlib import Path

import pytest

from autotune.job.model import load_model
from autotune.job.model_probe import NotUsableError
from autotune.tracing.child import answer_to
from autotune.tracing.moments import Kind, StepPhase, Traced
from benchmarks.trace_memory import largest
from tests.tracing.requests import request_for

HERE = str(Path(__file__).resolve().parents[2])


def factory(name: str) -> dict[str, object]:
    return {"factory": f"tests.tracing.models:{name}", "path": [HERE], "vocab": 64}


def traced(request) -> Traced:
    return Traced.from_dict(answer_to(request))


def test_nothing_is_allocated() -> None:
    model = load_model("llama-2-13b")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = traced(request_for(model.source, precision="bf16", gradients="taken"))
    assert (found.n_layers, found.n_params) == (40, model.shape.n_params_total)
    assert found.peak_bytes > 25e9
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 256 * 1024


def test_gradients_are_there_as_they_were_asked_for() -> None:
    source = load_model("tiny-llama").source
    held = {}
    for gradients in ("grow", "kept", "taken"):
        parts = traced(request_for(source, gradients=gradients)).parts
        held[gradients] = {phase: h[Kind.GRADIENTS] for phase, h in largest(parts).items()}
    assert held["grow"][StepPhase.FORWARD] == 0
    assert held["grow"][StepPhase.STEP] == held["kept"][StepPhase.FORWARD] > 0
    assert held["taken"] == {StepPhase.FORWARD: 0, StepPhase.BACKWARD: 0}


def test_adapters_are_what_is_trained() -> None:
    source = load_model("tiny-llama").source
    lora = {"rank": 4, "alpha": 8.0, "target_modules": "all-linear", "dropout": 0.0}
    whole = traced(request_for(source))
    adapted = traced(request_for({**source, "lora": lora}))
    assert adapted.n_params > whole.n_params
    step, of_all = (largest(found.parts)[StepPhase.STEP] for found in (adapted, whole))
    assert 0 < step[Kind.GRADIENTS] < 0.1 * of_all[Kind.GRADIENTS]


def test_chunks_of_the_loss_hold_fewer_logits() -> None:
    source = load_model("tiny-llama-32k").source
    whole, chunked = (
        traced(request_for(source, loss_chunk_tokens=chunk, gradients="taken"))
        for chunk in (0, 16)
    )
    assert chunked.peak_bytes < 0.7 * whole.peak_bytes


def test_a_gpu_keeps_no_dropped_scores() -> None:
    source = load_model("tiny-gpt2").source
    source = {**source, "config": {**source["config"], "attn_pdrop": 0.1}}
    request = request_for(source, seq_len=256)
    on_cpu, on_gpu = (traced({**request, "has_fused_dropout": fused}) for fused in (False, True))
    assert on_gpu.peak_bytes < 0.9 * on_cpu.peak_bytes


@pytest.mark.cases("name", "says", "fix")
def test_what_cannot_be_traced_says_where_and_what_to_do(name, says, fix) -> None:
    with pytest.raises(NotUsableError, match=says) as caught:
        answer_to(request_for(factory(name)))
    assert "tests/tracing/models.py:" in str(caught.value)
    assert fix in caught.value.hint


def test_flash_attention_that_is_not_installed_says_what_is() -> None:
    source = load_model("tiny-llama").source
    with pytest.raises(NotUsableError, match="building it") as caught:
        answer_to(request_for(source, attention="flash_attention_2"))
    assert "attention=sdpa" in caught.value.hint


def test_a_factory_is_traced_without_its_layers_apart() -> None:
    found = traced(request_for(factory("Bigram")))
    assert found.n_layers == 0
    assert found.n_params == 64 * 32 + 32 * 64 + 64
    assert largest(found.parts)[StepPhase.BACKWARD][Kind.ACTIVATIONS] > 0


def test_a_factory_may_cast_what_it_built() -> None:
    found = traced(request_for(factory("tied_and_cast")))
    assert found.n_params == 64 * 32 + 64
    assert largest(found.parts)[StepPhase.STEP][Kind.PARAMETERS] == 2 * found.n_params
    assert largest(found.parts)[StepPhase.STEP][Kind.OPTIMIZER] >= 4 * found.n_params
