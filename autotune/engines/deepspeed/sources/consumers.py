"""The programs that read a ds_config, and which "auto" each of them fills in.

DeepSpeed itself fills in none. Sources: transformers/integrations/deepspeed.py (5.23) and
accelerate/utils/dataclasses.py, accelerate/accelerator.py (1.15).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from autotune.engines.deepspeed.rules.sections import AUTO
from autotune.engines.deepspeed.sources.programs import PROGRAMS


class Consumer(StrEnum):
    """The program that hands the configuration to DeepSpeed."""

    DEEPSPEED = "deepspeed"
    """The script itself, as it is."""
    TRAINER = "trainer"
    """Hugging Face Trainer, from its `TrainingArguments`."""
    ACCELERATE = "accelerate"
    """`Accelerator.prepare`, from the objects that it prepares."""


@dataclass(frozen=True, kw_only=True)
class Argument:
    """A `TrainingArguments` field behind a key of the configuration."""

    name: str
    key: str
    kind: type
    """Type of its values: `int`, `float` (a whole number is one, too) or `bool`."""


_KIND_OF: Mapping[str, type] = {"int": int, "float": float, "bool": bool}
ARGUMENTS = tuple(
    Argument(name=name, key=key, kind=_KIND_OF[kind])
    for name, key, kind in PROGRAMS["trainer"]["keys_of_arguments"]
)
"""Keys that `trainer_config_process` and `trainer_config_finalize` match."""

BETAS = ("adam_beta1", "adam_beta2")
"""Two fields that are one key, `optimizer.params.betas`."""

_KINDS = {argument.name: argument.kind for argument in ARGUMENTS} | dict.fromkeys(BETAS, float)

HIDDEN_SIZES: Mapping[str, Callable[[int], int]] = {
    "zero_optimization.reduce_bucket_size": lambda hidden: hidden * hidden,
    "zero_optimization.stage3_prefetch_bucket_size": lambda hidden: int(0.9 * hidden * hidden),
    "zero_optimization.stage3_param_persistence_threshold": lambda hidden: 10 * hidden,
}
"""Key -> what both consumers make of the model's hidden size."""

_PREPARED = (*PROGRAMS["accelerate"]["filled"], *HIDDEN_SIZES)
FILLED: Mapping[Consumer, frozenset[str]] = {
    Consumer.DEEPSPEED: frozenset(),
    Consumer.ACCELERATE: frozenset(_PREPARED),
    Consumer.TRAINER: frozenset((*_PREPARED, "optimizer.params.betas", "optimizer.params.eps")),
}
"""Consumer -> keys, dotted, whose "auto" it replaces. Trainer goes through accelerate, which
raises on any other (`deepspeed_config_process`)."""


_PRECISION_SECTIONS: Mapping[str, Mapping[str, Any]] = {
    "fp16": {"fp16": {"enabled": True, "auto_cast": True}},
    **{key: {"bf16": {"enabled": True}} for key in ("bf16", "fp8")},
}
"""Precision -> the section that accelerate adds for it (set_mixed_precision)."""


def inserted(
    config: Mapping[str, Any], consumer: Consumer, mixed_precision: str | None
) -> dict[str, Any]:
    """What Trainer and accelerate write into a configuration that has none of it.

    Trainer goes through accelerate's DeepSpeedPlugin, whose `__post_init__` sets an accumulation
    of 1, whatever the arguments say.

    Args:
        config: The configuration.
        consumer: Who hands it to DeepSpeed.
        mixed_precision: As accelerate is told, or Trainer by its arguments.
    """
    if consumer is Consumer.DEEPSPEED:
        return {}
    section = _PRECISION_SECTIONS.get(str(mixed_precision).lower(), {})
    added = {"gradient_accumulation_steps": 1, **section}
    return {name: value for name, value in added.items() if name not in config}


def precision_of(arguments: Mapping[str, Any]) -> str | None:
    """The precision that Trainer's arguments say; None where they say none, or two."""
    on = [name for name in ("fp16", "bf16") if arguments.get(name) is True]
    return on[0] if len(on) == 1 else None


def autos(config: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Keys at which a configuration says "auto"."""
    found = []
    for name, value in config.items():
        here = (*path, str(name))
        if isinstance(value, Mapping):
            found += autos(value, here)
        elif isinstance(value, str) and value == AUTO:
            found.append(here)
    return found


def is_known_value(name: str, value: Any) -> bool:
    """Whether it is a value of a `TrainingArguments` field that is put into a configuration.

    Text where a number is wanted is a variable that no shell has put in yet: what it stands for
    is not known.
    """
    kind = _KINDS.get(name)
    return type(value) in (int, float) if kind is float else type(value) is kind


def known_values(arguments: Mapping[str, Any], world: int | None) -> dict[str, Any]:
    """Key, dotted -> what Trainer puts there, as far as arguments say (`is_known_value`)."""
    known: dict[str, Any] = {
        argument.key: arguments[argument.name]
        for argument in ARGUMENTS
        if arguments.get(argument.name) is not None
    }
    warmup, total = (f"scheduler.params.{key}_num_steps" for key in ("warmup", "total"))
    if known.get(total, 1) <= 0:
        del known[total]  # the data decides
    if 0 < known.get(warmup, 0) < 1 or (warmup in known and arguments.get("warmup_ratio")):
        del known[warmup]  # a share of the training
    elif warmup in known:
        known[warmup] = max(1, int(known[warmup]))
    for one, other in (("fp16", "bf16"), ("bf16", "fp16")):
        if arguments.get(one) is True and arguments.get(other) is None:
            known[f"{other}.enabled"] = False
    betas = [arguments.get(name) for name in BETAS]
    if None not in betas:
        known["optimizer.params.betas"] = betas
    micro, accum = (
        known.get(key) for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )
    if world is not None and micro is not None and accum is not None:
        known["train_batch_size"] = world * micro * accum
    return known
