"""Jobs, environments and candidates that tests are made of."""

import json
from pathlib import Path
from typing import Any

from autotune.devices.hardware import Environment
from autotune.job.job import Job, make_job
from autotune.space.candidate import Candidate
from autotune.space.knob import Context
from autotune.space.knobs import canonical

TINY: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
"""A Llama of about 150 thousand parameters."""

CPU = Environment(
    accelerator="cpu",
    n_devices=2,
    device_name="a processor",
    device_memory_bytes=8 * 2**30,
    peak_flops=None,
    deepspeed_version="0.19.8",
    torch_version="2.13.0",
)

A100 = Environment(
    accelerator="cuda",
    n_devices=8,
    device_name="NVIDIA A100-SXM4-80GB",
    device_memory_bytes=80 * 2**30,
    peak_flops=312e12,
    deepspeed_version="0.19.8",
    torch_version="2.11.0",
)


def tiny_job(folder: Path, **changes: Any) -> Job:
    """A job for the tiny model on two ranks, global batch 8."""
    model = folder / "tiny" / "config.json"
    model.parent.mkdir(parents=True, exist_ok=True)
    model.write_text(json.dumps(TINY))
    data = {"model": str(model), "seq_len": 16, "global_batch": 8, "world": 2, **changes}
    return make_job(data, where="test")


def canonical_candidate(job: Job, environment: Environment = CPU, **knobs: Any) -> Candidate:
    """A candidate as a lattice would hold it; `__` in a name stands for a dot."""
    values = {name.replace("__", "."): value for name, value in knobs.items()}
    return raw_candidate(job, canonical(values, Context.of(job, environment)))


def raw_candidate(job: Job, values: dict[str, Any]) -> Candidate:
    """A candidate of exactly these knobs."""
    return Candidate.of(values, world=job.world, global_batch=job.global_batch)


def own_accelerator(path: Path, name: str) -> Path:
    """A table with one accelerator of a user's own: 64 GiB, and four in a node."""
    entry = {
        **{"names": [name], "memory_gib": 64, "memory_gb_per_s": 1000},
        **{"tflops": {"bf16": 100}, "achieved_tflops": {"bf16": 80}, "host_gb_per_s": 20},
        **{"nvlink_gb_per_s": 100, "nvlink_domain": 4, "network_gb_per_s": 10},
        **{"devices_per_node": 4, "source": "counted", "achieved_source": "counted again"},
    }
    path.write_text(json.dumps({"accelerators": {name: entry}}), encoding="utf-8")
    return path
