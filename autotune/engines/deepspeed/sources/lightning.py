"""A file of Lightning's command line, or of Hydra for its Trainer: the DeepSpeed strategy in it.

Source: Lightning-AI/pytorch-lightning, src/lightning/pytorch/strategies/deepspeed.py
(DeepSpeedStrategy) and src/lightning/fabric/strategies/deepspeed.py (_format_precision_config).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.engines.deepspeed.rules.sections import AUTO
from autotune.engines.deepspeed.sources.programs import PROGRAMS
from autotune.engines.launches.line import product

_NAMED: Mapping[str, Mapping[str, Any]] = PROGRAMS["lightning"]["strategies"]
"""Strategies that Lightning registers -> arguments (register_strategies)."""
_TABLES = ("aio", "activation_checkpointing", "zero_optimization")
"""Sections that it makes from arguments of the same names, each with its defaults."""
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
        for table in (PROGRAMS["lightning"][section] for section in _TABLES)
    )
    for switch, section in (
        ("offload_optimizer", "offload_optimizer"),
        ("offload_parameters", "offload_param"),
    ):
        if arguments.get(switch):
            zero[section] = {
                key: arguments.get(name, default)
                for key, (name, default) in PROGRAMS["lightning"][section].items()
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


def unasked(arguments: Mapping[str, Any]) -> frozenset[str]:
    """Keys of what Lightning makes, dotted, that stand there at defaults of its own."""
    return frozenset(
        f"{section}.{name}"
        for section in _TABLES
        for name in PROGRAMS["lightning"][section]
        if name not in arguments
    )


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
    devices = trainer.get("devices")
    devices = len(devices) if isinstance(devices, list) else devices
    return product(trainer.get("num_nodes", 1), devices)
