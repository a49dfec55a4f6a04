"""Knobs of older releases: what they render, where they act, and what a newer release says."""

import dataclasses
import json

import pytest

from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.engines.deepspeed.rules.elasticity import elastic_sizes
from autotune.space.candidate import Candidate
from autotune.space.knobs import canonical
from tests.engines.deepspeed.rules.cases import setup
from tests.jobs import CPU, tiny_job

OLD = dataclasses.replace(CPU, accelerator="cuda", deepspeed_version="0.19.6", n_devices=2)
CHOICES = [
    ({"zero.stage": 0, "optimizer.compression": "one_bit"}, "version.removed_optimizer"),
    ({"zero.stage": 0, "optimizer.compression": "zero_one"}, "version.removed_optimizer"),
    ({"zero.stage": 3, "mics.shard_size": 2}, "version.removed_key"),
    (
        {"zero.stage": 3, "mics.shard_size": 4, "mics.hierarchical_gather": True},
        "version.removed_key",
    ),
    (
        {"zero.stage": 3, "zeropp.quantized_gradients": True, "zeropp.loco": True},
        "version.removed_key",
    ),
    ({"zero.stage": 2, "compression.weight_bits": 8}, "version.removed_key"),
]
NAMES = [name for name, knob in KNOBS.items() if knob.gone_since]


@pytest.fixture
def job(tmp_path):
    return tiny_job(tmp_path, global_batch=8, world=4, precision="fp16")


def candidate_of(engine, choice):
    knobs = canonical({"micro_batch": 1, **choice}, engine.context)
    return Candidate.of(knobs, world=4, global_batch=8)


@pytest.mark.parametrize(("choice", "refusal"), CHOICES)
def test_an_older_release_runs_it_and_a_newer_one_says_what_is_gone(job, choice, refusal):
    engine = DeepSpeedEngine(job, OLD)
    candidate = candidate_of(engine, choice)
    assert choice.items() <= candidate.values.items()
    assert engine.judge(candidate) == []
    newer = DeepSpeedEngine(job, dataclasses.replace(OLD, deepspeed_version="0.19.8"))
    found = newer.judge(candidate)
    assert {violation.rule for violation in found} == {refusal}
    assert all("0.19." in violation.message and violation.fix for violation in found)


def test_left_off_they_are_in_no_candidate(job):
    engine = DeepSpeedEngine(job, OLD)
    for stage in range(4):
        off = {name: KNOBS[name].default for name in NAMES}
        assert candidate_of(engine, {"zero.stage": stage, **off}) == candidate_of(
            engine, {"zero.stage": stage}
        )


@pytest.mark.parametrize(
    ("theirs", "choice", "kind", "name"),
    [
        ("AdamW", "one_bit", "OneBitAdam", "freeze_step"),
        ("AdamW", "zero_one", "ZeroOneAdam", "var_freeze_step"),
        ("Lamb", "one_bit", "OneBitLamb", "freeze_step"),
    ],
)
def test_the_export_has_the_users_own_steps(tmp_path, theirs, choice, kind, name):
    params = {"lr": 1e-3, "weight_decay": 0.1}
    job = tiny_job(tmp_path, global_batch=8, world=4, optimizer={"type": theirs, "params": params})
    engine = DeepSpeedEngine(job, OLD)
    choice = {"optimizer.compression": choice, "optimizer.freeze_step": 23_000}
    candidate = candidate_of(engine, {"zero.stage": 0, **choice})
    (text,) = engine.files(candidate).values()
    assert json.loads(text)["optimizer"] == {"type": kind, "params": {**params, name: 23_000}}
    assert engine.expected(candidate)["optimizer"].lower() == kind.lower()


def test_a_file_that_compresses_is_a_candidate_and_another_says_that_it_does_not(tmp_path, job):
    path = tmp_path / "theirs.json"
    params = {"lr": 1e-3, "freeze_step": 400, "cuda_aware": False}
    config = {"optimizer": {"type": "OneBitAdam", "params": params}, "fp16": {"enabled": True}}
    path.write_text(json.dumps({"train_micro_batch_size_per_gpu": 2, **config}))
    engine = DeepSpeedEngine(dataclasses.replace(job, base_config=path), OLD)
    compressing = candidate_of(engine, {"zero.stage": 0})
    assert compressing["optimizer.compression"] == "one_bit"
    assert compressing["optimizer.freeze_step"] == 400
    (text,) = engine.files(compressing).values()
    assert json.loads(text)["optimizer"]["params"] == params
    plain = candidate_of(engine, {"zero.stage": 1})
    (text,) = engine.files(plain).values()
    assert json.loads(text)["optimizer"]["type"] == "AdamW"
    assert engine.overridden(plain)["optimizer.type"] == ("OneBitAdam", "AdamW")


@pytest.mark.parametrize(
    ("section", "made"),
    [
        ({"max_train_batch_size": 8, "micro_batch_sizes": [2]}, (2, 2, 8)),
        ({"max_train_batch_size": 10, "micro_batch_sizes": [2]}, (2, 2, 8)),
        ({"max_train_batch_size": 10, "micro_batch_sizes": [2], "version": 0.1}, (2, 2, 8)),
        ({"max_train_batch_size": 2000, "micro_batch_sizes": [2, 4, 6]}, (6, 140, 1680)),
        ({"max_train_batch_size": 8, "micro_batch_sizes": [2], "min_gpus": 3}, (2, 2, 8)),
        ({"max_train_batch_size": 8, "micro_batch_sizes": "2"}, None),
        ({"max_train_batch_size": 8, "micro_batch_sizes": [16]}, None),
    ],
)
def test_elastic_sizes_are_deepspeeds(section, made):
    config = {"elasticity": {"enabled": True, **section}}
    assert elastic_sizes(setup(config, version="0.19.6")) == made
    assert elastic_sizes(setup(config, version="0.19.8")) is None
