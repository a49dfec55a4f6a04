"""The table of keys against the configuration classes of the installed DeepSpeed."""

import contextlib
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import ValidationError

from autotune.engines.deepspeed.rules.keys import SECTIONS, SPELLINGS
from autotune.engines.deepspeed.rules.releases import is_at_least
from autotune.engines.deepspeed.rules.values import REFUSED, Key, as_pydantic

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def installed():
    """Section -> DeepSpeed's pydantic class; imports DeepSpeed, which starts no process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import deepspeed
        from deepspeed.compile.config import CompileConfig
        from deepspeed.runtime.tensor_parallel.config import TPConfig, TPTrainingConfig
        from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
        from deepspeed.runtime.zero.offload_config import (
            DeepSpeedZeroOffloadOptimizerConfig,
            DeepSpeedZeroOffloadParamConfig,
        )
    return deepspeed.__version__, {
        **_precision_classes(),
        **_newer_zero_classes(),
        **_tools(),
        "zero_optimization": DeepSpeedZeroConfig,
        "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
        "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig,
        "tensor_parallel": TPTrainingConfig,
        "tensor_parallel.tp": TPConfig,
        "compile": CompileConfig,
    }


def _precision_classes():
    """None before 0.17.1, which reads these sections as dicts."""
    try:
        from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    except ModuleNotFoundError:
        return {}
    return {
        "fp16": DeepSpeedFP16Config,
        "bf16": DeepSpeedBF16Config,
        "bfloat16": DeepSpeedBF16Config,
    }


def _newer_zero_classes():
    """Without those that the installed release has not got yet."""
    found = {}
    with contextlib.suppress(ModuleNotFoundError):
        from deepspeed.runtime.zenflow.zenflow_config import ZenFlowConfig

        found["zero_optimization.zenflow"] = ZenFlowConfig
    with contextlib.suppress(ModuleNotFoundError):
        from deepspeed.runtime.zero.leaf_module_config import DeepSpeedZeroLeafModuleConfig

        found["zero_optimization.leaf_module"] = DeepSpeedZeroLeafModuleConfig
    return found


def _tools():
    from deepspeed.comm.config import CommsLoggerConfig
    from deepspeed.inference.config import WeightQuantConfig
    from deepspeed.monitor import config as monitors
    from deepspeed.runtime.config import HybridEngineConfig
    from deepspeed.utils.config import DeepSpeedThroughputTimerConfig

    return {
        "comms_logger": CommsLoggerConfig,
        "hybrid_engine": HybridEngineConfig,
        "timers.throughput": DeepSpeedThroughputTimerConfig,
        "weight_quantization": WeightQuantConfig,
        "tensorboard": monitors.TensorBoardConfig,
        "wandb": monitors.WandbConfig,
        "csv_monitor": monitors.CSVConfig,
        "comet": monitors.CometConfig,
    }


def keys_that(is_so, version, path):
    """The keys of a section that a release has removed, or lacks."""
    return {name for name, key in SECTIONS[path].keys.items() if is_so(key, version)}


def test_strict_sections_hold_the_keys_of_the_installed_classes(installed):
    version, classes = installed
    assert set(classes) == {p for p, section in SECTIONS.items() if section.is_strict(version)}
    for path, config_class in classes.items():
        theirs = set()
        for name, field in config_class.model_fields.items():
            theirs |= {name, field.alias or name}
        gone = keys_that(Key.is_removed, version, path)
        absent = keys_that(Key.is_missing, version, path)
        assert set(SECTIONS[path].keys) - gone - absent == theirs, path


def test_second_spellings_are_the_installed_aliases(installed):
    version, classes = installed
    fields = classes["zero_optimization"].model_fields
    aliases = {name: field.alias for name, field in fields.items() if field.alias}
    absent = keys_that(Key.is_missing, version, "zero_optimization")
    assert {ours: alias for ours, alias in SPELLINGS.items() if alias not in absent} == aliases


GRID = (
    *(None, True, False, 0, 1, 2, 3, 7, -1, 10**6, 0.0, 1.0, 2.0, 0.5, 1.5, -0.5, 5e8, 1e30),
    *(float("inf"), float("nan")),
    *("", "0", "1", "2", "7", "-1", " 3 ", "1.0", "0.5", "1_000", "+1", "5e8", "1e-4", "inf"),
    *("true", "True", "TRUE", "t", "yes", "Y", "on", "ON", "false", "f", "no", "n", "off"),
    *(" true", "maybe", "two", "cpu", "CPU", "nvme", "gpu", "llama", "asymmetric", "torch"),
    *([], [1], ["z1"], ["lm_head"], {}, {"enabled": True}),
)


def test_values_are_taken_exactly_where_the_installed_classes_take_them(installed):
    """And what is made of them is what the class makes of them."""
    wrong = []
    for path, config_class in installed[1].items():
        for name, field in config_class.model_fields.items():
            key = SECTIONS[path].keys[field.alias or name]
            if key.accepts("anything") and key.accepts(object()):  # not checked by the table
                continue
            for value in GRID:
                theirs = made_by(config_class, field.alias or name, value)
                ours = key.taken(value)
                if has_company(name, value) or is_of_another_class(name, value):
                    continue
                if key.is_raw and isinstance(value, str):  # DeepSpeed fails before its class
                    assert ours is REFUSED
                    continue
                is_alike = (theirs is REFUSED) == (ours is REFUSED)
                if not is_alike or not (ours is REFUSED or is_same(ours, theirs)):
                    wrong.append((path, name, value, theirs, ours))
    assert not wrong, "\n".join(map(str, wrong))


def made_by(config_class, name, value):
    """What a class of DeepSpeed's makes of a value; REFUSED where it raises."""
    try:
        made = config_class(**{name: value})
    except (ValidationError, TypeError):
        return REFUSED
    fields = config_class.model_fields
    field = next(ours for ours, field in fields.items() if name in (ours, field.alias))
    # A deprecated field is gone once it was read.
    return getattr(made, field, None if value is None else as_pydantic("bool", value))


def is_same(ours, theirs):
    if isinstance(theirs, Path):
        return str(theirs) == str(Path(ours))
    if isinstance(ours, list) and isinstance(theirs, tuple):
        return ours == list(theirs)
    # None stands for a section's default, a name for a list of one.
    return ours == theirs or ours is None or [ours] == theirs


def is_of_another_class(name, value):
    """Sections of their own, and a model's name, which the engine looks up later."""
    return isinstance(value, Mapping) or (name == "preset_model" and isinstance(value, str))


def has_company(name, value):
    """Values that are legal only beside others, which other rules ask."""
    made = as_pydantic("bool", value)
    return (name, made) in {("compute_grad_norm", False), ("bf16_optimizer_states", True)}


def test_removed_keys_are_those_that_the_installed_release_names(installed):
    from deepspeed.runtime import config

    version, _ = installed
    if not is_at_least(version, "0.19.7"):
        pytest.skip(f"DeepSpeed {version} keeps no list of removed keys")
    theirs = {
        "": config._REMOVED_TOP_LEVEL_CONFIG_KEYS,
        "zero_optimization": config._REMOVED_ZERO_CONFIG_KEYS,
    }
    for path, names in theirs.items():
        assert keys_that(Key.is_removed, version, path) == set(names)


def test_top_level_keys_are_read_by_the_installed_release(installed):
    """Every name that DeepSpeed's constants give to a key of the file's top is in the table."""
    from deepspeed.runtime import constants

    absent = keys_that(Key.is_missing, installed[0], "")
    for name in (
        *("TRAIN_BATCH_SIZE", "TRAIN_MICRO_BATCH_SIZE_PER_GPU", "GRADIENT_ACCUMULATION_STEPS"),
        *("OPTIMIZER", "SCHEDULER", "GRADIENT_CLIPPING", "COMMUNICATION_DATA_TYPE", "DATA_TYPES"),
        *("PRESCALE_GRADIENTS", "GRADIENT_PREDIVIDE_FACTOR", "GRADIENT_ALLREDUCE_OP", "FP16"),
        *("ZERO_ALLOW_UNTESTED_OPTIMIZER", "ZERO_FORCE_DS_CPU_OPTIMIZER", "STEPS_PER_PRINT"),
        *("WALL_CLOCK_BREAKDOWN", "MEMORY_BREAKDOWN", "DUMP_STATE", "DATALOADER_DROP_LAST"),
        *("TORCH_AUTOCAST", "CHECKPOINT", "LOG_LEVEL", "DISABLE_PYTHON_GC", "VOCABULARY_SIZE"),
        *("MANAGED_GRADIENT_ACCUMULATION", "USE_DATA_BEFORE_EXPERT_PARALLEL", "BFLOAT16_OLD"),
        *("SEQ_PARALLEL_COMMUNICATION_DATA_TYPE", "DISABLE_ALLGATHER", "BFLOAT16"),
    ):
        if hasattr(constants, name) or name.lower() not in absent:
            assert getattr(constants, name) in SECTIONS[""].keys
