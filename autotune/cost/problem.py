"""Columns of `Plans` that describe a job and its fleet, whatever the engine."""

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.base.errors import JobError
from autotune.cost.device import device_columns
from autotune.cost.knowledge import Situation
from autotune.devices.accelerators import Accelerator, find_accelerator
from autotune.devices.hardware import Environment
from autotune.devices.topology import Topology
from autotune.job.adapters import Lora
from autotune.job.job import Job
from autotune.job.model import Model
from autotune.job.model_shape import ModelShape
from autotune.job.published import AS_IF
from autotune.trial.transformer_shape import HEADS

_SIZES = {
    "n_layers": "its layers",
    "hidden": "its hidden size",
    "ffn_hidden": "the width of its MLP",
    "n_heads": "its attention heads",
    "vocab": "its vocabulary",
}
"""Field of `ModelShape` that predictions need -> its name in words."""
_EXPERTS = ("n_experts", "experts_per_token")
_SHAPE_COLUMNS = (
    *("gated_mlp", "tied_embeddings"),
    *("n_dense_layers", "dense_ffn_hidden", "shared_expert_hidden", "n_mtp_layers"),
    *("latent_q_rank", "latent_kv_rank", "latent_nope_dim", "latent_rope_dim"),
    *("latent_value_dim", "window", "n_windowed_layers", "expert_biases"),
)
"""Fields of `ModelShape` that are columns under the same name."""
_ATTENTION_MODULES = {
    *("q_proj", "k_proj", "v_proj", "o_proj", "out_proj", "qkv_proj", "Wqkv"),
    *("c_attn", "query_key_value", "query", "key", "value", "dense"),
}
"""Names of attention's projections in Hugging Face's families."""
_PACKED_BYTES = 0.52
"""Bytes of a frozen weight in 4 bits with its scales. Source: Dettmers et al., QLoRA
(arXiv:2305.14314), section 3."""
_UNPACKED_BY_KERNEL = 2.5
"""Bytes moved per weight: half a byte is read, and 16 bits are written. Source: bitsandbytes,
csrc/kernels.cu, kDequantizeBlockwise."""
WITHOUT_DROPOUT = 0.7
"""Traffic of adapters that drop nothing, over that of others: inputs are read, and no more (2 of
10 bytes), results as usual (14). Source: huggingface/peft, src/peft/tuners/lora/layer.py, where
a dropout of 0 is no operation."""


def has_shape(shape: ModelShape) -> bool:
    """Whether a model's sizes can be seen, and say its layers; a factory's need not."""
    return all(getattr(shape, name) for name in _SIZES) and not shape.unsaid


def model_columns(job: Job, layers: int | None = None) -> dict[str, float]:
    """The columns of the model, or of its first `layers`, as a reduced trial runs them.

    Raises:
        JobError: Its sizes cannot be seen: a factory's, or those of a family whose config does not
            say them; or they do not say its layers.
    """
    shape = job.model_with(layers).shape
    if not has_shape(shape):
        raise _unseen(job.model)
    columns = {
        **{n: getattr(shape, n) for n in (*_SIZES, "n_kv_heads", *_EXPERTS)},
        "seq_len": job.seq_len,
        "learned_positions": float(shape.max_seq_len is not None),
        **shape_columns(shape),
        **group_columns(job.model),
        "trained_share": _trained_share(shape),
    }
    lora = job.finetune
    if lora is None:
        return columns
    adapters = _adapters(lora, shape, columns, job.precision)
    in_experts = adapters["adapts_mlp"] * (job.model.adapts_experts is True)
    return columns | adapters | {"adapts_experts": in_experts}


def shape_columns(shape: ModelShape) -> dict[str, float]:
    """What a model's shape says of its layers, beside the sizes that tables have."""
    head_dim = shape.attention_width / shape.n_heads
    return {"head_dim": head_dim} | {n: float(getattr(shape, n)) for n in _SHAPE_COLUMNS}


def embedding_params(sizes: Mapping[str, float]) -> float:
    """Parameters of one or two embeddings."""
    return (2.0 - sizes["tied_embeddings"]) * sizes["vocab"] * sizes["hidden"]


def packed_columns(
    sizes: Mapping[str, float], n_params: float, wide_bytes: float, experts: float = 0.0
) -> dict[str, float]:
    """Columns of frozen weights in 4 bits, which are gathered as they lie.

    bitsandbytes and GPTQ quantise linear layers alone: embeddings stay wide, and so do `experts`,
    parameters of those that are none.
    """
    wide = (embedding_params(sizes) + experts) / n_params
    mean_bytes = (1.0 - wide) * _PACKED_BYTES + wide * wide_bytes
    moved_bytes = (1.0 - experts / n_params) * _UNPACKED_BY_KERNEL
    columns = {"weight_bytes": mean_bytes, "gather_bytes": mean_bytes}
    return {**columns, "dequantized_bytes": moved_bytes}


def _adapters(
    lora: Lora, shape: ModelShape, columns: Mapping[str, float], precision: str
) -> dict[str, float]:
    """Columns of a job's adapters, and of frozen weights in 4 bits, which go as they lie.

    transformers keeps the experts of a layer in one tensor, which nothing packs.
    """
    targets = lora.target_modules
    names = [targets] if isinstance(targets, str) else targets
    in_mlp = any(name.rpartition(".")[2] not in _ATTENTION_MODULES for name in names)
    adapters = 1.0 if lora.dropout else WITHOUT_DROPOUT
    found = {"adapters": adapters, "adapts_mlp": float(in_mlp)}
    if not lora.is_packed:
        return found
    experts = shape.n_expert_layers * shape.n_experts * shape.expert_weights
    wide_bytes = 4.0 if precision == "fp32" else 2.0
    return found | packed_columns(columns, shape.n_params_total, wide_bytes, experts)


def group_columns(model: Model) -> dict[str, float]:
    """Columns of the groups of experts that a token chooses first, by DeepSeek's configs."""
    config: Mapping[str, Any] = model.source.get("config", {})
    groups = config.get("n_group") or 1
    chosen = min(groups, config.get("topk_group") or groups)
    return {"routed_share": chosen / groups, "expert_groups": float(groups)}


def _unseen(model: Model) -> JobError:
    """The error that says which sizes of a model cannot be seen, and what is left."""
    names = [words for name, words in _SIZES.items() if not getattr(model.shape, name)]
    config: Mapping[str, object] = model.source.get("config", {})
    family, unseen = str(config.get("model_type", "")), " and ".join(names)
    if unsaid := model.shape.unsaid:
        facts = {"whose": f"the family {family}" if family else "it", "unsaid": unsaid}
        facts |= {
            "like": AS_IF.get(family, ""),
            "key": "text_config: " * ("text_config" in config),
        }
        row = "cost.layers_like" if family in AS_IF else "cost.layers_unsaid"
        return JobError.of(row, name=model.name, **facts)
    if family:
        return JobError.of("cost.family_unseen", name=model.name, family=family, unseen=unseen)
    hint = "predictions need a Hugging Face config: name a preset, a folder or a config.json"
    if names == [_SIZES["n_heads"]]:
        hint = "keep their number in the model, its `config` or its attention as one of: "
        hint += ", ".join(HEADS)
    return JobError.of("cost.model_unseen", name=model.name, unseen=unseen, hint=hint)


def unseen_model_columns(job: Job) -> dict[str, float]:
    """Columns of a model whose sizes cannot be seen; they do for `memory_of_traced` alone."""
    return {
        **dict.fromkeys((*_SIZES, "n_kv_heads", "head_dim"), 1.0),
        "seq_len": job.seq_len,
        "trained_share": _trained_share(job.model.shape),
    }


def situation_of(job: Job, environment: Environment) -> Situation:
    """Facts that decide how wrong the model is here."""
    config: Mapping[str, object] = job.model.source.get("config", {})
    return Situation(
        device=environment.device_name,
        engine=f"{job.engine} {environment.deepspeed_version}",
        torch=environment.torch_version,
        family=str(config.get("model_type", job.model.name)),
    )


def accelerator_of(environment: Environment, table: Sequence[Accelerator]) -> Accelerator:
    """The entry of an environment's devices.

    Raises:
        FleetError: The table has none.
    """
    name = "cpu" if environment.accelerator == "cpu" else environment.device_name
    device_gib = environment.device_memory_bytes / 2**30
    return find_accelerator(name, memory_gib=device_gib, table=table)


def topology_of(job: Job, found: Accelerator) -> Topology | None:
    """The network between the nodes: the job's, else that of the accelerator's entry.

    None: nobody described it.
    """
    return job.network_topology or found.topology


def fleet_columns(
    job: Job,
    environment: Environment,
    table: Sequence[Accelerator],
    *,
    world: int | None = None,
    precision: str | None = None,
) -> dict[str, float]:
    """The columns of the devices, of which a job may take as much memory as it says.

    A reduced trial has a `world` of its own, and a candidate may have a `precision` of its own.

    Raises:
        FleetError: The accelerator is in no table.
        JobError: There are no figures for the precision.
    """
    found = accelerator_of(environment, table)
    per_node = float(min(world or job.world, environment.n_devices))
    topology = topology_of(job, found)
    return {
        **device_columns(found, precision or job.precision, per_node),
        **({} if topology is None else topology.columns()),
        "memory_bytes": job.memory_limit_bytes or environment.device_memory_bytes,
        **(_cpu_columns(found, per_node) if environment.accelerator == "cpu" else {}),
    }


def _cpu_columns(core: Accelerator, per_node: float) -> dict[str, float]:
    """Columns that differ where the host is the device.

    Its memory is the host's, and gloo moves what is between the ranks. It reduces whole what is to
    be scattered: torch, csrc/distributed/c10d/ProcessGroupGloo.cpp, _reduce_scatter_base.
    """
    columns = {"runs_ahead": 0.0, "cuts_by_rank": 0.0, "reduces_whole": 1.0}
    if core.measured is None or core.measured.host_memory_bytes_per_s is None:
        columns["host_memory_bytes_per_s"] = core.memory_bytes_per_s * per_node
    return columns


def _trained_share(shape: ModelShape) -> float:
    return shape.n_params / shape.n_params_total if shape.n_params_frozen else 1.0
