"""A file of Lightning's command line, or of Hydra for its Trainer: the DeepSpeed strategy in it.

Source: Lightning-AI/pytorch-lightning, src/lightning/pytorch/strategies/deepspeed.py
(DeepSpeedStrategy) and src/lightning/fabric/strategies/deepspeed.py (_format_precision_config).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.engines.deepspeed.rules.sections import AUTO

_NAMED: Mapping[str, Mapping[str, Any]] = {
    "deepspeed": {},
    "deepspeed_stage_1": {"stage": 1},
    "deepspeed_stage_2": {"stage": 2},
    "deepspeed_stage_2_offload": {"stage": 2, "offload_optimizer": True},
    "deepspeed_stage_3": {"stage": 3},
    "deepspeed_stage_3_offload": {
        **{"stage": 3, "offload_optimizer": True, "offload_parameters": True},
    },
    "deepspeed_stage_3_offload_nvme": {
        **{"stage": 3, "offload_optimizer": True, "offload_parameters": True},
        **{"offload_params_device": "nvme", "offload_optimizer_device": "nvme"},
    },
}
"""Strategies that Lightning registers -> arguments (register_strategies)."""

_ZERO: Mapping[str, Any] = {
    **{"stage": 2, "contiguous_gradients": True, "overlap_comm": True},
    **{"allgather_partitions": True, "reduce_scatter": True},
    **{"allgather_bucket_size": 200_000_000, "reduce_bucket_size": 200_000_000},
    "sub_group_size": 1_000_000_000_000,
}
_CHECKPOINTING: Mapping[str, Any] = dict.fromkeys(
    (
        *("partition_activations", "cpu_checkpointing", "contiguous_memory_optimization"),
        "synchronize_checkpoint_boundary",
    ),
    False,
)
_AIO: Mapping[str, Any] = {
    **{"block_size": 1048576, "queue_depth": 8, "thread_count": 1},
    **{"single_submit": False, "overlap_events": True},
}
_PRECISIONS = {
    **dict.fromkeys(("16-mixed", "16-true", "16"), "fp16"),
    **dict.fromkeys(("bf16-mixed", "bf16-true", "bf16"), "bf16"),
}
ACCUMULATION = "gradient_accumulation_steps"
FILLED = ("train_micro_batch_size_per_gpu", ACCUMULATION, "gradient_clipping")
"""Values that it fills in where a configuration has none."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A DeepSpeed strategy in a file."""

    at: tuple[str, ...]
    """Where its configuration stands, or the arguments that make it."""
    config: Any
    """The configuration or the name of its file; None: Lightning makes one from `arguments`."""
    arguments: Mapping[str, Any]


def strategy_of(data: Mapping[Any, Any]) -> Strategy | None:
    """The DeepSpeed strategy of a file's Trainer; None where it has none."""
    trainer = data.get("trainer")
    if not isinstance(trainer, Mapping):
        return None
    at: tuple[str, ...] = ("trainer", "strategy")
    strategy = trainer.get("strategy")
    if isinstance(strategy, str):
        named = _NAMED.get(strategy)
        return None if named is None else Strategy(at=at, config=None, arguments=named)
    if not isinstance(strategy, Mapping):
        return None
    kind = str(strategy.get("class_path", strategy.get("_target_", "")))
    if kind.rpartition(".")[2] != "DeepSpeedStrategy":
        return None
    arguments: Any = strategy
    if "class_path" in strategy:
        arguments, at = strategy.get("init_args") or {}, (*at, "init_args")
    if not isinstance(arguments, Mapping):
        return None
    config = arguments.get("config")
    if config is not None:
        at = (*at, "config")
    return Strategy(at=at, config=config, arguments=arguments)


def made_config(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration that Lightning makes where it is given none (_create_default_config)."""
    aio, checkpointing, zero = (
        {name: arguments.get(name, default) for name, default in table.items()}
        for table in (_AIO, _CHECKPOINTING, _ZERO)
    )
    nvme_path = arguments.get("nvme_path", "/local_nvme")
    pin = arguments.get("pin_memory", False)
    if arguments.get("offload_optimizer"):
        zero["offload_optimizer"] = {
            "device": arguments.get("offload_optimizer_device", "cpu"),
            "nvme_path": nvme_path,
            "buffer_count": arguments.get("optimizer_buffer_count", 4),
            "pin_memory": pin,
        }
    if arguments.get("offload_parameters"):
        zero["offload_param"] = {
            "device": arguments.get("offload_params_device", "cpu"),
            "nvme_path": nvme_path,
            "buffer_count": arguments.get("params_buffer_count", 5),
            "buffer_size": arguments.get("params_buffer_size", 100_000_000),
            "max_in_cpu": arguments.get("max_in_cpu", 1_000_000_000),
            "pin_memory": pin,
        }
    config: dict[str, Any] = {"activation_checkpointing": checkpointing, "aio": aio}
    if arguments.get("zero_optimization", True):
        config["zero_allow_untested_optimizer"] = arguments.get(
            "zero_allow_untested_optimizer", True
        )
        config["zero_optimization"] = zero
    if arguments.get("logging_batch_size_per_gpu", AUTO) != AUTO:
        config["train_micro_batch_size_per_gpu"] = arguments["logging_batch_size_per_gpu"]
    return config


def handed(config: Mapping[str, Any], data: Mapping[Any, Any]) -> dict[str, Any]:
    """The configuration that Lightning hands to DeepSpeed: its Trainer's arguments laid over one.

    The micro-batch that a configuration lacks is "auto": Lightning takes the data loader's.
    """
    trainer = data["trainer"]
    after = {
        "train_micro_batch_size_per_gpu": AUTO,
        "gradient_clipping": trainer.get("gradient_clip_val") or 0.0,
        **config,
        ACCUMULATION: trainer.get("accumulate_grad_batches") or 1,
    }
    precision = _PRECISIONS.get(str(trainer.get("precision")))
    if precision is not None and precision not in config:
        after[precision] = {"enabled": True}
    return after


def world_of(data: Mapping[Any, Any]) -> int | None:
    """Ranks, where the Trainer is told how many devices each node has."""
    trainer = data["trainer"]
    devices, nodes = trainer.get("devices"), trainer.get("num_nodes", 1)
    devices = len(devices) if isinstance(devices, list) else devices
    if type(devices) is int and type(nodes) is int and devices > 0 and nodes > 0:
        return devices * nodes
    return None
