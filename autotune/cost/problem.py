"""What a job and its fleet put into the columns of `Plans`, whatever the engine."""

from collections.abc import Sequence

from autotune.accelerators import Accelerator, find_accelerator
from autotune.cost.device import device_columns
from autotune.errors import JobError
from autotune.hardware import Environment
from autotune.job import Job
from autotune.model_shape import ModelShape


def model_columns(job: Job) -> dict[str, float]:
    """The columns of the model.

    Raises:
        JobError: Its sizes cannot be seen (a factory's).
    """
    shape = job.model.shape
    if not all((shape.n_layers, shape.hidden, shape.ffn_hidden, shape.n_heads, shape.vocab)):
        raise JobError(
            f"model {job.model.name!r}: its sizes cannot be seen, so nothing can be predicted",
            "predictions need a Hugging Face config: name a preset, a folder or a config.json",
        )
    return {
        "n_layers": shape.n_layers,
        "hidden": shape.hidden,
        "ffn_hidden": shape.ffn_hidden,
        "n_heads": shape.n_heads,
        "n_kv_heads": shape.n_kv_heads,
        "head_dim": shape.attention_width / shape.n_heads,
        "vocab": shape.vocab,
        "seq_len": job.seq_len,
        "gated_mlp": float(shape.gated_mlp),
        "tied_embeddings": float(shape.tied_embeddings),
        "learned_positions": float(shape.max_seq_len is not None),
        "n_experts": shape.n_experts,
        "experts_per_token": shape.experts_per_token,
        "trained_share": _trained_share(shape),
    }


def accelerator_of(environment: Environment, table: Sequence[Accelerator]) -> Accelerator:
    """The entry of an environment's devices.

    Raises:
        FleetError: The table has none.
    """
    name = "cpu" if environment.accelerator == "cpu" else environment.device_name
    device_gib = environment.device_memory_bytes / 2**30
    return find_accelerator(name, memory_gib=device_gib, table=table)


def fleet_columns(
    job: Job, environment: Environment, table: Sequence[Accelerator]
) -> dict[str, float]:
    """The columns of the devices, of which a job may take as much memory as it says.

    Raises:
        FleetError: The accelerator is in no table, or lacks the precision.
    """
    found = accelerator_of(environment, table)
    columns = device_columns(found, job.precision, float(min(job.world, environment.n_devices)))
    return {**columns, "memory_bytes": job.memory_limit_bytes or environment.device_memory_bytes}


def _trained_share(shape: ModelShape) -> float:
    return shape.n_params / shape.n_params_total if shape.n_params_frozen else 1.0
