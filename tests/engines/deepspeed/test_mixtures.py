"""Mixtures of experts: what is written for them, what is expected of the engine, what refuses."""

import dataclasses
import json

import numpy as np
import pytest

from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.knobs.situation import elements_per_rank
from autotune.engines.deepspeed.plans import plans_of
from autotune.engines.deepspeed.rules import judge
from autotune.space.knob import Context
from tests.cases import data_beside
from tests.jobs import A100, CPU, canonical_candidate, tiny_job

DATA = data_beside(__file__)

HOPPER = dataclasses.replace(A100, device_name="NVIDIA H100 80GB HBM3", has_deep_ep=True)


def job_of(folder, model="tiny-qwen3-moe", **changes):
    given = {"world": 4, "seq_len": 32, "precision": "bf16", **changes}
    return tiny_job(folder, model=model, **given)


def written(job, **knobs):
    engine = DeepSpeedEngine(job, CPU)
    return json.loads(engine.files(canonical_candidate(job, **knobs))["ds_config.json"])


def test_spread_experts_alone_leave_the_rest_whole(tmp_path):
    config = written(job_of(tmp_path), zero__stage=1, ep=4)
    assert config["expert_parallel"] == {"enabled": True, "autoep_size": 4}
    assert "tensor_parallel" not in config


@pytest.mark.parametrize(
    ("model", "splits_attention"), [("tiny-qwen3-moe", True), ("tiny-deepseek-v3", False)]
)
def test_beside_tp_the_file_says_what_is_split(tmp_path, model, splits_attention):
    config = written(job_of(tmp_path, model), zero__stage=3, ep=4, tp=2)
    specs = config["tensor_parallel"]["partition_config"]["layer_specs"]
    patterns = " ".join(pattern for spec in specs for pattern in spec["patterns"])
    assert "shared_experts" in patterns
    assert ("self_attn" in patterns) == splits_attention
    assert any(spec.get("grad_allreduce") for spec in specs) == splits_attention


@pytest.mark.parametrize("rank", [None, 4, 4096])
def test_adapters_are_known_by_what_the_job_trains_however_large_they_are(tmp_path, rank):
    lora = {} if rank is None else {"finetune": {"method": "lora", "rank": rank}}
    job = job_of(tmp_path, model="tiny-llama", **lora)
    setup = DeepSpeedEngine(job, CPU).setup(canonical_candidate(job, zero__stage=1))
    assert setup.has_adapters is (rank is not None)


def test_deepep_is_told_the_tokens_of_a_micro_batch(tmp_path):
    job = job_of(tmp_path)
    knobs = {"zero__stage": 1, "ep": 2, "micro_batch": 2, "ep__dispatch": "deepep"}
    candidate = canonical_candidate(job, **knobs)
    engine = DeepSpeedEngine(job, HOPPER)
    config = json.loads(engine.files(candidate)["ds_config.json"])
    assert config["expert_parallel"]["comm_max_tokens_per_rank"] == 2 * 32
    assert engine.judge(candidate) == []
    assert "deep_ep" in engine.needs(candidate)
    lacking = DeepSpeedEngine(job, dataclasses.replace(HOPPER, has_deep_ep=False))
    assert [each.rule for each in lacking.judge(candidate)] == ["experts.deepep"]


@pytest.mark.cases("device", "ep", "is_legal")
def test_deepep_sends_as_far_as_the_devices_let_it(tmp_path, device, ep, is_legal):
    job = job_of(tmp_path, "qwen3-30b-a3b", world=16, global_batch=16)
    knobs = {"zero__stage": 1, "ep": ep, "micro_batch": 1, "ep__dispatch": "deepep"}
    engine = DeepSpeedEngine(job, dataclasses.replace(HOPPER, device_name=device))
    found = engine.judge(canonical_candidate(job, **knobs))
    assert [each.rule for each in found] == ["experts.deepep"] * (not is_legal)


def test_gpt_oss_is_refused_by_name(tmp_path):
    job = job_of(tmp_path, "tiny-gpt-oss")
    engine, candidate = DeepSpeedEngine(job, CPU), canonical_candidate(job, zero__stage=1, ep=2)
    (refused,) = engine.judge(candidate)
    assert refused.rule == "experts.family"
    assert "gpt_oss" in refused.message


def test_experts_of_other_ranks_are_not_expected_here(tmp_path):
    """DeepSeek's first layer is dense: it has none to spread."""
    job = job_of(tmp_path, "tiny-deepseek-v3")
    engine, shape = DeepSpeedEngine(job, CPU), job.model.shape
    one, two = (
        engine.expected(canonical_candidate(job, zero__stage=1, ep=ep))["n_params"]
        for ep in (1, 2)
    )
    elsewhere = 3 * (8 - 4) * 3 * shape.hidden * shape.ffn_hidden  # layers, experts, matrices
    assert (one, one - two) == (shape.n_params, elsewhere)
    assert elements_per_rank({"ep": 2}, Context.of(job, CPU)) == two


@pytest.mark.parametrize(
    ("environment", "precision", "ep", "is_grouped"),
    [
        (HOPPER, "bf16", 1, True),
        (HOPPER, "fp16", 1, False),
        (A100, "bf16", 1, False),
        (A100, "bf16", 2, True),
        (CPU, "fp32", 1, True),
    ],
)
def test_experts_are_computed_at_once_where_there_is_a_kernel(
    tmp_path, environment, precision, ep, is_grouped
):
    job = job_of(tmp_path, precision=precision)
    plans = plans_of([canonical_candidate(job, zero__stage=1, ep=ep)], job, environment)
    assert bool(np.ravel(plans.grouped_experts)[0]) == is_grouped
    assert np.ravel(plans.expert_tp)[0] == (1 if ep > 1 else 0)


ROUTED = DATA["ROUTED"]


def test_blocks_with_experts_as_modules_are_gathered_whole_at_stage_3(tmp_path, monkeypatch):
    (tmp_path / "routed_model.py").write_text(ROUTED)
    monkeypatch.chdir(tmp_path)
    job = job_of(tmp_path, "routed_model:Model")
    assert job.model.expert_blocks == ("RoutedBlock",)
    at_3, at_2 = (written(job, zero__stage=stage)["zero_optimization"] for stage in (3, 2))
    assert at_3["leaf_module"] == {"classes": ["RoutedBlock"]}
    assert "leaf_module" not in at_2
    engine = DeepSpeedEngine(job, CPU)
    setup = engine.setup(canonical_candidate(job, zero__stage=3))
    bare = {**setup.ds_config, "zero_optimization": {"stage": 3}}
    assert "experts.leaf_modules" in {each.rule for each in judge(setup.with_config(bare))}
