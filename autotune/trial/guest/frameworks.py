"""Frameworks on Trainer with names of their own for what its arguments say, and the way there.

They build the model by their own settings before Trainer sees its arguments: an edit has to be in
both.
"""

from collections.abc import Callable, Mapping
from typing import Any

from autotune.trial.guest.hooks import Hook
from autotune.trial.guest.quiet import output_folder
from autotune.trial.guest.reading import data_of

RECOMPUTE_NAMES = ("activation_checkpointing", "gradient_checkpointing")
"""Names of one field of TrainingArguments: the newer one counts where both stand."""
FACTORY_ATTENTION = {"eager": "disabled", "sdpa": "sdpa", "flash_attention_2": "fa2"}
"""Names of transformers' attention implementations -> LLaMA-Factory's."""
ATTENTION_ARGUMENT = "attn_implementation"
"""What TRL's `ModelConfig` and axolotl's file call it; transformers' Trainer has no argument."""
AXOLOTL_NAMES = {"per_device_train_batch_size": "micro_batch_size", "optim": "optimizer"}
"""Fields of TrainingArguments -> keys of axolotl's file; the others are called the same."""


def as_argument_of(framework: str, name: str, value: Any) -> tuple[str, Any]:
    """What a framework calls one of Trainer's arguments, and its value there."""
    is_recompute = name in RECOMPUTE_NAMES
    if framework == "llama-factory" and is_recompute:
        return "disable_gradient_checkpointing", not value
    if framework == "llama-factory" and name == ATTENTION_ARGUMENT:
        return "flash_attn", FACTORY_ATTENTION[value]
    if framework == "axolotl":
        return RECOMPUTE_NAMES[-1] if is_recompute else AXOLOTL_NAMES.get(name, name), value
    return name, value


def hooks(arguments: Mapping[str, Any], seen: dict[str, Any]) -> list[Hook]:
    """What a trial changes of a framework's own settings: edits, and where it writes.

    Args:
        arguments: The edits, by Trainer's names.
        seen: Takes `takes_attention` where the model is built by an argument for its attention.
    """

    def of(framework: str) -> dict[str, Any]:
        return dict(as_argument_of(framework, name, value) for name, value in arguments.items())

    def make_model_arguments(finish: Callable[[Any], None], model: Any) -> None:
        """LLaMA-Factory switches recomputation by an argument of the model."""
        seen["takes_attention"] = hasattr(model, "flash_attn")
        for name, value in of("llama-factory").items():
            if hasattr(model, name):
                setattr(model, name, value)
        finish(model)

    def load_axolotl(load: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Axolotl's file is read here; what comes by keyword stands above the file.

        It removes the log of an earlier run from its output folder at once.
        """
        given = args[0] if args else kwargs.get("config")
        # Beside its older switches it refuses the key, and older releases do not know it.
        in_file = data_of(str(given)) or {}
        seen["takes_attention"] = bool(in_file.get(ATTENTION_ARGUMENT))
        return load(*args, **{**kwargs, **of("axolotl"), "output_dir": output_folder()})

    def make_trl_model(finish: Callable[[Any], None], model: Any) -> None:
        """A script of TRL builds its model by this, if it reads what it says of attention."""
        if ATTENTION_ARGUMENT in arguments:
            setattr(model, ATTENTION_ARGUMENT, arguments[ATTENTION_ARGUMENT])
        finish(model)

    def read_trl_model(read: Callable[[Any, str], Any], model: Any, name: str) -> Any:
        if name == ATTENTION_ARGUMENT:
            seen["takes_attention"] = True
        return read(model, name)

    trl, factory = "trl.trainer.model_config", "llamafactory.hparams.model_args"
    return [
        ("axolotl.cli.config", "load_cfg", load_axolotl),
        (factory, "ModelArguments.__post_init__", make_model_arguments),
        (trl, "ModelConfig.__post_init__", make_trl_model),
        (trl, "ModelConfig.__getattribute__", read_trl_model),
    ]
