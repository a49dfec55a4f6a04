"""The table of keys against the configuration classes of the installed DeepSpeed."""

import contextlib
import warnings

import pytest

from autotune.engines.deepspeed.rules.keys import SECTIONS, SPELLINGS
from autotune.engines.deepspeed.rules.releases import is_at_least
from autotune.engines.deepspeed.rules.values import Key

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


def test_values_that_the_table_accepts_pass_the_installed_classes(installed):
    """The other way round is not asked: the table refuses what pydantic would convert."""
    samples = (0, 1, 2, 3, 7, -1, 0.5, 1.5, 5e8, True, False, None, "cpu", "nvme", "gpu", "llama")
    for path, config_class in installed[1].items():
        for name, field in config_class.model_fields.items():
            key = SECTIONS[path].keys[field.alias or name]
            if key.accepts("anything"):  # not checked by the table
                continue
            for value in samples:
                if key.accepts(value) and not _needs_company(name, value):
                    config_class(**{field.alias or name: value})


def _needs_company(name, value):
    """Values that are legal only beside others, which other rules ask."""
    return (name, value) in {("compute_grad_norm", False), ("bf16_optimizer_states", True)}


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
