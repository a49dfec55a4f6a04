"""Arguments of the Python API, one for each key of a job; by `tests.record_job_keys`."""

from pathlib import Path
from typing import TypedDict


class ExplainKeys(TypedDict, total=False):
    """Keys of a job that `explain` takes."""

    model: str | Path
    seq_len: int | str
    global_batch: int | str
    world: int
    precision: str
    lora_rank: int
    lengths: str | Path
    megatron_path: str | Path
    engine: str
    space: str | Path
    base_config: str | Path
    templates: str | Path
    gpu: str
    memory_limit: str
    host_memory: str
    head_room: float
    nvme_path: str | Path
    accelerators: str | Path
    network_topology: str


class PlanKeys(ExplainKeys, total=False):
    """Keys of a job that `plan` takes."""

    baseline: str | Path
    price: str | float


class SearchKeys(PlanKeys, total=False):
    """Keys of a job that `search` takes."""

    megatron_arguments: str
    objective: str
    objective_floor: float
    sampler: str
    fidelity: str
    seed: int
    trials: int
    budget: str
    patience: int
    gpu_hours: float
    trial_timeout: str
    diagnose: bool
    start: str
    guard_steps: int
    allow_loss_drift: bool
    compare: str
    study: str
