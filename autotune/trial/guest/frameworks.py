"""Frameworks on Trainer with names of their own for what its arguments say, and the way there.

They build the model by their own settings before Trainer sees its arguments: an edit has to be in
both.
"""

import functools
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from autotune.trial.guest.hooks import Hook

RECOMPUTE_NAMES = ("activation_checkpointing", "gradient_checkpointing")
"""Names of one field of TrainingArguments: the newer one is tried first."""
_AXOLOTL = {"per_device_train_batch_size": "micro_batch_size"}
"""Fields of TrainingArguments -> keys of axolotl's file; the others are called the same."""


def told(framework: str, name: str, value: Any) -> tuple[str, Any]:
    """What a framework calls one of Trainer's arguments, and its value there."""
    is_recompute = name in RECOMPUTE_NAMES
    if framework == "llama-factory" and is_recompute:
        return "disable_gradient_checkpointing", not value
    if framework == "axolotl":
        return RECOMPUTE_NAMES[-1] if is_recompute else _AXOLOTL.get(name, name), value
    return name, value


def hooks(arguments: Mapping[str, Any]) -> dict[str, Hook]:
    """What edits of Trainer's arguments change of a framework's own settings."""

    def of(framework: str) -> dict[str, Any]:
        return dict(told(framework, name, value) for name, value in arguments.items())

    def on_llama_factory(module: ModuleType) -> None:
        """It switches recomputation by an argument of the model."""
        kind = module.ModelArguments
        finish = kind.__post_init__

        @functools.wraps(finish)
        def edited(model: Any) -> None:
            for name, value in of("llama-factory").items():
                if hasattr(model, name):
                    setattr(model, name, value)
            finish(model)

        kind.__post_init__ = edited

    def on_axolotl(module: Any) -> None:
        """Its file is read here; what comes by keyword stands above the file."""
        load = module.load_cfg

        @functools.wraps(load)
        def edited(*args: Any, **kwargs: Any) -> Any:
            return load(*args, **{**kwargs, **of("axolotl")})

        module.load_cfg = edited

    if not arguments:
        return {}
    return {
        "llamafactory.hparams.model_args": on_llama_factory,
        "axolotl.cli.config": on_axolotl,
    }
