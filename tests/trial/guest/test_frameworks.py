"""Edits of Trainer's arguments, in the words of frameworks that build the model by their own."""

from types import ModuleType
from typing import Any

from autotune.trial.guest.frameworks import hooks

EDITS = {"per_device_train_batch_size": 8, "activation_checkpointing": False}


def test_llama_factory_is_told_by_its_models_arguments() -> None:
    class ModelArguments:
        def __init__(self) -> None:
            self.disable_gradient_checkpointing = False
            self.__post_init__()

        def __post_init__(self) -> None:
            self.checked = self.disable_gradient_checkpointing

    module: Any = ModuleType("llamafactory.hparams.model_args")
    module.ModelArguments = ModelArguments
    hooks(EDITS)[module.__name__](module)
    made: Any = module.ModelArguments()
    assert made.disable_gradient_checkpointing
    assert made.checked, "edited before it checks itself"
    assert not hasattr(made, "per_device_train_batch_size")


def test_axolotl_is_told_where_it_reads_its_file() -> None:
    module: Any = ModuleType("axolotl.cli.config")
    module.load_cfg = lambda config, **kwargs: (config, kwargs)
    hooks(EDITS)[module.__name__](module)
    config, told = module.load_cfg("a.yml", micro_batch_size=2, seed=1)
    assert config == "a.yml"
    assert told == {"micro_batch_size": 8, "gradient_checkpointing": False, "seed": 1}


def test_a_command_as_it_is_is_left_alone() -> None:
    assert not hooks({})
