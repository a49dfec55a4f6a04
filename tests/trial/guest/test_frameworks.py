"""Edits of Trainer's arguments, in the words of frameworks that build the model by their own."""

import dataclasses
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from autotune.engines.deepspeed.script import (
    ACCUMULATION_ARGUMENT,
    MICRO_BATCH_ARGUMENT,
    OPTIMIZER_ARGUMENT,
)
from autotune.space.script import IMPLEMENTATIONS
from autotune.trial.guest.frameworks import RECOMPUTE_NAMES, hooks
from autotune.trial.guest.hooks import apply
from autotune.trial.guest.quiet import ARGUMENTS, output_folder

EDITS = {"per_device_train_batch_size": 8, "activation_checkpointing": False}


def test_llama_factory_is_told_by_its_models_arguments() -> None:
    class ModelArguments:
        def __init__(self) -> None:
            self.disable_gradient_checkpointing = False
            self.flash_attn = "auto"
            self.__post_init__()

        def __post_init__(self) -> None:
            self.checked = self.disable_gradient_checkpointing

    module: Any = ModuleType("llamafactory.hparams.model_args")
    module.ModelArguments = ModelArguments
    seen: dict[str, Any] = {}
    apply(module, hooks({**EDITS, "attn_implementation": "eager"}, seen))
    made: Any = module.ModelArguments()
    assert made.disable_gradient_checkpointing
    assert made.flash_attn == "disabled"
    assert seen["takes_attention"]
    assert made.checked, "edited before it checks itself"
    assert not hasattr(made, "per_device_train_batch_size")


def test_axolotl_is_told_where_it_reads_its_file() -> None:
    module: Any = ModuleType("axolotl.cli.config")
    module.load_cfg = lambda config, **kwargs: (config, kwargs)
    apply(module, hooks({**EDITS, "optim": "adamw_torch", "attn_implementation": "eager"}, {}))
    config, arguments = module.load_cfg("a.yml", micro_batch_size=2, seed=1, output_dir="mine")
    assert config == "a.yml"
    edited = {
        "micro_batch_size": 8,
        "gradient_checkpointing": False,
        "optimizer": "adamw_torch",
        "attn_implementation": "eager",
    }
    assert arguments == {**edited, "seed": 1, "output_dir": output_folder()}


def test_a_command_as_it_is_writes_elsewhere_and_is_else_left_alone() -> None:
    module: Any = ModuleType("axolotl.cli.config")
    module.load_cfg = lambda config, **kwargs: kwargs
    apply(module, hooks({}, {}))
    assert module.load_cfg("a.yml", output_dir="mine") == {"output_dir": output_folder()}


def test_axolotl_takes_an_attention_where_its_file_names_one(tmp_path: Path) -> None:
    for text, expected in (
        ("attn_implementation: sdpa\n", True),
        ("sdp_attention: true\n", False),  # beside which it refuses the newer key
        ("- no mapping\n", False),
    ):
        (path := tmp_path / "a.yml").write_text(text)
        module: Any = ModuleType("axolotl.cli.config")
        module.load_cfg = lambda config, **kwargs: kwargs
        seen: dict[str, Any] = {}
        apply(module, hooks({}, seen))
        module.load_cfg(path)
        assert seen["takes_attention"] is expected, text


@pytest.mark.parametrize("reads", [True, False])
def test_a_script_of_trl_takes_an_attention_if_it_reads_it(reads: bool) -> None:
    class ModelConfig:
        def __init__(self) -> None:
            self.attn_implementation = None
            self.__post_init__()

        def __post_init__(self) -> None:
            pass

    module: Any = ModuleType("trl.trainer.model_config")
    module.ModelConfig = ModelConfig
    seen: dict[str, Any] = {}
    apply(module, hooks({"attn_implementation": "eager"}, seen))
    made: Any = module.ModelConfig()
    assert vars(made)["attn_implementation"] == "eager"
    if reads:
        assert made.attn_implementation == "eager"
    assert bool(seen.get("takes_attention")) is reads


def test_the_installed_trainer_takes_every_name_that_edits_use() -> None:
    """Recomputation has another name in older releases."""
    arguments = pytest.importorskip("transformers.training_args")
    names = {field.name for field in dataclasses.fields(arguments.TrainingArguments)}
    assert names >= {MICRO_BATCH_ARGUMENT, ACCUMULATION_ARGUMENT, OPTIMIZER_ARGUMENT}
    assert names >= {"torch_compile", "bf16", "fp16"}
    assert names & set(RECOMPUTE_NAMES)
    assert set(IMPLEMENTATIONS) <= {name.value for name in arguments.OptimizerNames}
    assert ARGUMENTS.keys() - names == {"evaluation_strategy"}, "its older name"
