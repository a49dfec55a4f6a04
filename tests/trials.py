"""Specs of small real trials for tests."""

import json
import time
from pathlib import Path

from autotune.contract import Measure, Role, TrialSpec
from autotune.devices.hardware import Environment

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


def spec(number=0, *, factory="tiny", **changes):
    """A two-rank trial of one of `faulty_models`."""
    fields = {
        "study": "test",
        "number": number,
        "role": Role.SEARCH,
        "candidate_hash": f"{number:012d}",
        "knobs": {},
        "world": 2,
        "tp": 1,
        "pp": 1,
        "dp": 2,
        "micro_batch": 2,
        "grad_accum": 1,
        "global_batch": 4,
        "seq_len": 16,
        "precision": "bf16",
        "accelerator": "cpu",
        "model": {"factory": f"faulty_models:{factory}", "path": [str(TESTS)], "vocab": 64},
        "recompute": "none",
        "expected": {},
        "measure": QUICK,
        "timeout_s": 120.0,
        **changes,
    }
    return TrialSpec(**fields)


def files(config):
    """Configuration files of a trial."""
    return {"ds_config.json": json.dumps(config)}


def wait_until(condition, what, timeout_s=60.0):
    """Fail with `what` unless the condition comes true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
