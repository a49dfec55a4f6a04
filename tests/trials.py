"""Specs of small real trials for tests."""

import dataclasses
import json
import time
from pathlib import Path

import psutil

from autotune.contract import EngineSettings, Identity, Layout, Measure, Role, TrialSpec, Workload
from autotune.devices.hardware import Environment
from autotune.space.candidate import candidate_of
from autotune.trial.transformer_shape import script_settings, shape_of

TESTS = Path(__file__).parent

CPU = Environment(
    accelerator="cpu",
    n_devices=2,
    device_name="cpu",
    device_memory_bytes=8 * 2**30,
    peak_flops=None,
    deepspeed_version="0.19.8",
    torch_version="2.13.0",
)

QUICK = Measure(warmup_steps=2, min_steps=6, max_steps=8, target_half_width=0.5, budget_s=5)


LIMITS = ("memory_limit_bytes", "timeout_s", "diagnoses", "checkpoint", "start")
"""Fields of a measure that say within which limits it measures."""


def ds_config(stage=1, **extra):
    """A small ZeRO configuration; buckets far below the defaults, which reserve gigabytes."""
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": 100_000,
            "allgather_bucket_size": 100_000,
        },
        "bf16": {"enabled": True},
        "steps_per_print": 1_000_000_000,
        **extra,
    }


def spec(number=0, *, factory="tiny", **fields) -> TrialSpec:
    """A two-rank trial of one of `faulty_models`; fields of any part by their names."""
    made = TrialSpec(
        identity=Identity(
            study="test", number=number, role=Role.SEARCH, candidate_hash="", knobs={}
        ),
        layout=Layout(
            accelerator="cpu",
            world=2,
            tp=1,
            pp=1,
            dp=2,
            micro_batch=2,
            grad_accum=1,
            global_batch=4,
        ),
        workload=Workload(
            model={"factory": f"faulty_models:{factory}", "path": [str(TESTS)], "vocab": 64},
            seq_len=16,
            precision="bf16",
            settings={
                "recompute": "none",
                "attention": "default",
                "loss_chunk_tokens": 0,
                "compile": "none",
            },
        ),
        engine=EngineSettings(expected={}),
        measure=dataclasses.replace(QUICK, timeout_s=120.0),
    )
    found = changed(made, **fields)
    if "candidate_hash" in fields:
        return found
    # A candidate of its own for each number, unless its knobs are given.
    knobs = {"micro_batch": found.layout.micro_batch, "trial": number, **fields.get("knobs", {})}
    if "knobs" in fields:
        del knobs["trial"]
    found = changed(found, knobs=knobs)
    return changed(found, candidate_hash=candidate_of(found).hash)


def changed(spec: TrialSpec, **fields) -> TrialSpec:
    """A spec with other fields; each goes to the part that has it, `measure` merges."""
    if "measure" in fields:
        # Its limits are the trial's, its lengths those of what is given.
        kept = {name: getattr(spec.measure, name) for name in LIMITS}
        measure = dataclasses.replace(fields.pop("measure"), **kept)
        spec = dataclasses.replace(spec, measure=measure)
    settings = {name: fields.pop(name) for name in spec.workload.settings if name in fields}
    fields.setdefault("settings", {**spec.workload.settings, **settings})
    for part in ("identity", "layout", "workload", "engine", "measure", "provenance"):
        value = getattr(spec, part)
        names = {field.name for field in dataclasses.fields(value)}
        own = {name: fields.pop(name) for name in names & fields.keys()}
        spec = dataclasses.replace(spec, **{part: dataclasses.replace(value, **own)})
    assert not fields, f"no part of a spec has {', '.join(fields)}"
    return spec


def settings(spec: TrialSpec, ds_config, *, own=False):
    """What the built-in training script is told of a trial; `own`: as of a pipeline's stage."""
    from autotune.trial.scripts.train import Settings  # it brings torch

    told = script_settings(spec.workload, spec.layout)
    if "config" in spec.workload.model and own:
        told["transformer"] = shape_of(spec.workload.model, spec.workload.seq_len)
    return Settings.of(
        told,
        spec.workload.model.get("config", {}),
        micro_batch=ds_config["train_micro_batch_size_per_gpu"],
        grad_accum=ds_config.get("gradient_accumulation_steps", 1),
    )


def files(config):
    """Configuration files of a trial."""
    return {"ds_config.json": json.dumps(config)}


def wait_until(condition, what, timeout_s=180.0):
    """Fail with `what` unless the condition comes true in time, on a busy machine, too."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def agents() -> list[psutil.Process]:
    """The agents of this process's fleets, each under its two keepers."""
    keepers = [inner for outer in psutil.Process().children() for inner in outer.children()]
    return [agent for keeper in keepers for agent in keeper.children()]
