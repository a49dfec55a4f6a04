"""Candidates of a lattice as columns: every knob that the model knows reaches it."""

import dataclasses
import json

import numpy as np
import pytest

from autotune.base.errors import FleetError, JobError
from autotune.contract import Fidelity
from autotune.cost import load_constants, predict
from autotune.cost.constants import constants_of
from autotune.engines.deepspeed.plans import plans_of
from autotune.job.model import model_from_config
from tests.jobs import A100, CPU, TINY, canonical_candidate, raw_candidate, tiny_job
from tests.observed import RAW, observed


@pytest.fixture
def job(tmp_path):
    return tiny_job(tmp_path, precision="bf16", world=8, global_batch=64)


def plans(job, **knobs):
    return plans_of([canonical_candidate(job, **knobs)], job, A100)


def value(plans, column):
    return float(np.broadcast_to(plans.columns()[column], 1)[0])


@pytest.mark.cases("knobs", "column", "expected")
def test_a_knob_reaches_its_column(tmp_path, knobs, column, expected):
    chosen = {name: value for name, value in knobs.items() if name != "of_job"}
    precision = knobs.get("of_job", "bf16")
    job = tiny_job(tmp_path, world=8, global_batch=64, precision=precision)
    assert value(plans(job, **chosen), column) == expected


def test_a_candidate_of_another_precision_is_that_of_a_job_in_it(tmp_path, job):
    (folder := tmp_path / "fp32").mkdir()
    alike = plans(tiny_job(folder, precision="fp32", world=8, global_batch=64))
    other = plans(job, precision="fp32")
    own = plans(job)
    for name in other.columns():
        assert value(other, name) == value(alike, name), name
    assert value(own, "matmul_flops") > value(other, "matmul_flops")
    assert value(own, "weight_bytes") == 2


def test_an_activation_function_is_written_out_where_transformers_writes_it(tmp_path):
    def copies(model, **knobs):
        job = tiny_job(tmp_path, model=model, world=8, global_batch=64)
        return value(plans(job, **knobs), "activation_copies")

    own = tmp_path / "own.json"
    own.write_text(json.dumps({**TINY, "hidden_act": "quick_gelu"}))
    assert [copies("gpt2"), copies(str(own)), copies("llama-3-8b")] == [3, 1, 0]
    assert copies("gpt2", pp=2) == 0, "our own stages take torch's functions"


def test_the_model_is_the_one_that_transformers_trains(tmp_path):
    """It has no layer for further tokens, and its windows save time in FlashAttention alone."""
    further = tiny_job(tmp_path, model="tiny-deepseek-v3")
    assert further.model.shape.n_mtp_layers == 1
    assert value(plans(further), "n_mtp_layers") == 0
    windowed = tiny_job(tmp_path, model="tiny-gpt-oss", precision="bf16")
    values = canonical_candidate(windowed).values
    found = [
        plans_of([raw_candidate(windowed, {**values, "attention": kernel})], windowed, A100)
        for kernel in ("default", "flash_attention_2")
    ]
    read_back = {"attention": "kernels-community/vllm-flash-attn3"}
    own = dataclasses.replace(windowed, script=observed(RAW, read_back=read_back))
    found.insert(0, plans_of([raw_candidate(windowed, values)], own, A100))
    assert [value(one, "n_windowed_layers") for one in found] == [2, 0, 2]
    assert [value(one, "flash_attention") for one in found] == [1, 0, 1]


def test_the_memory_limit_is_what_has_to_fit(job):
    limited = dataclasses.replace(job, memory_limit_bytes=2**20)
    candidate = canonical_candidate(job, **{"zero.stage": 1})
    roomy = predict(plans_of([candidate], job, A100))
    tight = predict(plans_of([candidate], limited, A100))
    assert roomy.fit_probability[0] > 0.99
    assert tight.fit_probability[0] < 0.01


def test_logits_in_chunks_take_less_memory(job):
    whole, chunked = (
        predict(plans(job, micro_batch=8, loss_chunk_tokens=n)).memory.logits_bytes[0]
        for n in (0, 64)
    )
    assert chunked < whole


def test_segments_that_grow_leave_little_room_unused(job):
    values = canonical_candidate(job, micro_batch=8).values
    usual, growing = (
        predict(plans_of([raw_candidate(job, {**values, "allocator": kind})], job, A100)).memory
        for kind in ("default", "expandable_segments")
    )
    assert growing.fragmentation_bytes[0] == pytest.approx(usual.fragmentation_bytes[0] / 10)
    assert growing.allocated_bytes[0] == usual.allocated_bytes[0]


def test_a_core_is_its_own_host(tmp_path):
    job = tiny_job(tmp_path, world=2, global_batch=16)
    found = plans_of([canonical_candidate(job)], job, CPU)
    assert value(found, "runs_ahead") == 0
    assert value(found, "reduces_whole") == 1
    assert value(found, "host_memory_bytes_per_s") == 2 * value(found, "memory_bytes_per_s")
    on_gpu = plans_of([canonical_candidate(job)], job, A100)
    assert value(on_gpu, "runs_ahead") == 1
    assert constants_of(CPU) != constants_of(A100) == load_constants()


def test_pages_are_cleared_where_memory_goes_back_to_the_kernel(tmp_path):
    job = tiny_job(tmp_path, world=2, global_batch=16)
    default, keep = (
        plans_of([canonical_candidate(job, host_allocator=allocator)], job, CPU)
        for allocator in ("default", "keep")
    )
    assert (value(default, "clears_pages"), value(keep, "clears_pages")) == (1, 0)
    constants = constants_of(CPU)
    held, freed = (predict(p, constants).memory.peak_bytes[0] for p in (keep, default))
    assert held - freed > constants.heap_bytes


def test_cpu_ranks_have_no_driver_and_no_communicators_of_a_gpu_s(tmp_path):
    job = tiny_job(tmp_path, world=2, global_batch=16)
    found = plans_of([canonical_candidate(job)], job, CPU)
    context_bytes = predict(found, constants_of(CPU)).memory.context_bytes[0]
    assert 0 < context_bytes == constants_of(CPU).context_bytes < constants_of(A100).context_bytes


def test_what_cannot_be_predicted_says_so(job):
    with pytest.raises(JobError, match="at least one"):
        plans_of([], job, A100)
    unknown = dataclasses.replace(A100, device_name="Abacus 3000")
    with pytest.raises(FleetError, match="Abacus 3000"):
        plans_of([canonical_candidate(job)], job, unknown)
    shape = dataclasses.replace(job.model.shape, hidden=0, n_heads=0)
    unsaid = dataclasses.replace(job.model, shape=shape, source={"factory": "models:small"})
    factory = dataclasses.replace(job, model=unsaid)
    with pytest.raises(JobError, match="it does not say its hidden size and its attention heads"):
        plans_of([canonical_candidate(job)], factory, A100)


@pytest.mark.cases("family", "sizes")
def test_a_family_whose_config_leaves_a_size_open_is_named(job, family, sizes):
    config = {"model_type": family, "vocab_size": 640, **sizes}
    other = dataclasses.replace(job, model=model_from_config("mine", config, where="config.json"))
    with pytest.raises(JobError, match=f"the family {family} does not say the width") as refused:
        plans_of([canonical_candidate(other)], other, A100)
    assert "Hugging Face config" not in refused.value.hint


def test_a_family_whose_layers_cannot_be_said_is_refused_by_name(job):
    config = {
        **{"model_type": "qwen3_next", "vocab_size": 640, "hidden_size": 64, "head_dim": 16},
        **{"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2},
        **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    }
    other = dataclasses.replace(job, model=model_from_config("mine", config, where="config.json"))
    says = "the family qwen3_next has layers of linear attention, which the cost model"
    with pytest.raises(JobError, match=says) as refused:
        plans_of([canonical_candidate(other)], other, A100)
    assert "estimate --trace" in refused.value.hint


def test_reduced_forms_stand_beside_whole_ones(job):
    whole = canonical_candidate(job, **{"zero.stage": 1, "micro_batch": 2})
    forms = [whole.reduced(f) for f in (Fidelity(layers=1), Fidelity(world=2))]
    mixed = plans_of([whole, *forms], job, A100)
    assert list(mixed.n_layers) == [3, 1, 3]
    assert list(mixed.dp) == [8, 8, 2]
    assert list(mixed.devices_per_node) == [8, 8, 2]
    assert list(mixed.grad_accum) == [4, 4, 4]
    said = predict(mixed)
    assert said.step_time_s[1] < said.step_time_s[0]
    assert said.peak_memory_bytes[1] < said.peak_memory_bytes[0]
    # A column that does not differ stays a number: it is cheaper.
    assert isinstance(plans_of([whole, whole], job, A100).n_layers, int)
