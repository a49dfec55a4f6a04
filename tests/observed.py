"""What first runs of users' commands showed, as values: real ones, cut to what is read of them."""

from pathlib import Path
from typing import Any

from autotune.base.templates import canonical_json
from autotune.contract import Outcome, Role, TrialResult, to_dict
from autotune.job.job import Job, make_job
from autotune.job.observed import Observed, digest_of
from tests.cases import data_beside

DATA = data_beside(__file__)

READ_BACK: dict[str, Any] = {
    **{"micro_batch": 4, "grad_accum": 2, "dp": 2, "tp": 1, "pp": 1, "sp": 1, "ep": 1},
    **{"stage": 1, "dtype": "fp32", "gradient_clipping": 1.0, "compiled": False},
    **{"offload_optimizer": "none", "optimizer": "AdamW", "n_params": 2104842},
    **{"n_params_frozen": 0, "optimizer_wrapper": "DeepSpeedZeroOptimizer"},
    **{"communication_dtype": "fp32", "loss_chunk_tokens": 0, "recomputed_layers": 0},
}

RAW: dict[str, Any] = DATA["RAW"]
"""`examples/deepspeed_dict`."""

TRAINER: dict[str, Any] = {
    **RAW,
    "framework": "trainer",
    "asks_micro_batch": False,
    "arguments": {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "gradient_checkpointing": False,
        "torch_compile": False,
    },
    "arguments_class": "TrainingArguments",
    "config_file": "/somewhere/ds_config.json",
    "config": {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
        "zero_optimization": {"stage": 2, "overlap_comm": False},
    },
    "lengths": [64],
    "model_class": "GPT2LMHeadModel",
    "model_config": {
        **{"model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 128},
        **{"n_layer": 4, "n_head": 4},
    },
    "n_params": 834304,
    "largest_param": 65536,
}
"""`examples/trainer`, with an optimizer in its file."""


BY_ARGUMENTS: dict[str, Any] = {
    **TRAINER,
    "config": {key: value for key, value in TRAINER["config"].items() if key != "optimizer"},
    "arguments": {**TRAINER["arguments"], "optim": "adamw_torch"},
    "optimizer_by_arguments": True,
}
"""`examples/trainer`, whose optimizer Trainer makes."""


def observed(
    description: dict[str, Any] = RAW,
    *,
    command: list[str] | None = None,
    read_back: dict[str, Any] | None = None,
    world: int = 2,
) -> Observed:
    """What the first run of a command showed."""
    command = command or ["torchrun", "--nproc-per-node", str(world), "train.py"]
    stage = description["config"].get("zero_optimization", {}).get("stage", 0)
    said = {**READ_BACK, "stage": stage, "n_params": description["n_params"], **(read_back or {})}
    result = TrialResult(
        number=0,
        role=Role.BASELINE,
        candidate_hash="0" * 12,
        outcome=Outcome.OK,
        evidence="",
        evidence_source="",
        started_at_s=1.0,
        wall_s=10.0,
        step_times_s=[0.5] * 8,
        step_time_s=0.5,
        step_time_low_s=0.49,
        step_time_high_s=0.51,
        samples_per_s=32.0,
        samples_per_s_low=31.0,
        samples_per_s_high=33.0,
        peak_memory_bytes=2**30,
        read_back=said,
    )
    return Observed(
        command=command,
        folder="/somewhere",
        world=world,
        description=description,
        result=to_dict(result),
        observed_digest=digest_of(command, []),
    )


def keys_of(script: Observed, folder: Path) -> dict[str, Any]:
    """Keys of the job of a command, which names a file in a folder."""
    path = folder / "observed.json"
    path.write_text(canonical_json(to_dict(script)), encoding="utf-8")
    return {
        "model": str(path),
        "script": str(path),
        "workload": "script",
        "study": "own",
        "seq_len": script.seq_len,
        "global_batch": script.global_batch,
        "world": script.world,
        "precision": script.precision,
        "optimizer": script.optimizer,
        "space": "script",
    }


def job_of(script: Observed, folder: Path) -> Job:
    """The job of a command."""
    return make_job(keys_of(script, folder), where="test")
