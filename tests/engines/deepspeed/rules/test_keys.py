"""The table of keys against the configuration classes of the installed DeepSpeed."""

import json

import deepspeed
import pytest

from autotune.engines.deepspeed.rules.sections import SECTIONS, Key
from autotune.engines.releases import is_at_least
from tests.record_keys import DATA_FILE, recorded

pytestmark = pytest.mark.real

INSTALLED = deepspeed.__version__


def keys_that(is_so, path):
    """The keys of a section that the release has removed, or lacks."""
    return {name for name, key in SECTIONS[path].keys.items() if is_so(key, INSTALLED)}


def test_the_table_has_the_keys_and_values_of_the_installed_classes():
    shipped = json.loads(DATA_FILE.read_text(encoding="utf-8"))
    assert recorded(shipped) == shipped, "python -m tests.record_keys writes what is there"


def test_a_key_that_the_table_lacks_is_recorded_with_its_type():
    shipped = json.loads(DATA_FILE.read_text(encoding="utf-8"))
    zero = shipped["zero_optimization"]["keys"]
    row = zero.pop("reduce_bucket_size")
    found = recorded(shipped)["zero_optimization"]["keys"]["reduce_bucket_size"]
    assert found.pop("absent_through")
    assert found == row


def test_removed_keys_are_those_that_the_installed_release_names():
    from deepspeed.runtime import config

    if not is_at_least(INSTALLED, "0.19.7"):
        pytest.skip(f"DeepSpeed {INSTALLED} keeps no list of removed keys")
    removed = {
        "": config._REMOVED_TOP_LEVEL_CONFIG_KEYS,
        "zero_optimization": config._REMOVED_ZERO_CONFIG_KEYS,
    }
    for path, names in removed.items():
        assert keys_that(Key.is_removed, path) == set(names)


def test_top_level_keys_are_read_by_the_installed_release():
    """Every name that DeepSpeed's constants give to a key of the file's top is in the table."""
    from deepspeed.runtime import constants

    absent = keys_that(Key.is_missing, "")
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
