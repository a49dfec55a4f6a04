"""Layouts as configurations of Megatron-Bridge: its fields, and the script that reads them."""

import ast
import os
import re
from pathlib import Path

import pytest
import yaml

from autotune.base.errors import RenderError
from autotune.engines.megatron.arguments import KNOBS_OF
from autotune.export.dialects.megatron_bridge import (
    FIELDS_FILE,
    MOMENT_DTYPES,
    bridge_fields,
    fields_of,
)
from tests.export.dialects.test_megatron_core import exported as exported_for_cpu
from tests.export.dialects.test_megatron_lm import LAYOUTS, exported
from tests.record_bridge_fields import fields_of as recorded
from tests.recorded_json import as_text


@pytest.mark.parametrize(("job", "settings"), LAYOUTS)
def test_every_field_is_one_of_its_section(tmp_path, job, settings):
    out = exported(tmp_path, job, settings, to="megatron-bridge")
    data = yaml.safe_load((out / "bridge.yaml").read_text())
    assert data.pop("mixed_precision") == (None if "precision" in job else "bf16_mixed")
    for section, fields in data.items():
        assert set(fields) <= fields_of(section)


def test_every_argument_of_a_knob_has_a_field():
    for name in KNOBS_OF:
        for place in bridge_fields({name: "bf16" if name in MOMENT_DTYPES else 1}):
            section, _, field = place.partition(".")
            assert field in fields_of(section), name


def test_a_recipe_gets_what_was_tuned_and_nothing_else(tmp_path):
    out = exported(tmp_path, *LAYOUTS[1], to="megatron-bridge")
    lines = re.findall(r"^    (\w+)\.(\w+)=", (out / "README.md").read_text(), re.MULTILINE)
    assert ("model", "tensor_model_parallel_size") in lines
    assert [name for section, name in lines if section == "optimizer"] == [
        "use_distributed_optimizer"
    ]
    sections = {"model", "train", "dataset", "ddp", "optimizer", "mixed_precision"}
    assert {section for section, _ in lines} <= sections
    assert {("dataset", "seq_length"), ("model", "seq_length")} <= set(lines), "samples fit"
    assert "train_iters" not in dict(lines).values()


def test_the_script_makes_every_section(tmp_path):
    out = exported(tmp_path, *LAYOUTS[0], to="megatron-bridge")
    data = yaml.safe_load((out / "bridge.yaml").read_text())
    (made,) = (
        node.value
        for node in ast.parse((out / "train.py").read_text()).body
        if isinstance(node, ast.Assign) and node.targets[0].id == "SECTIONS"
    )
    assert {key.value for key in made.keys} | {"mixed_precision"} == set(data)
    names = {"exp_avg_dtype", "exp_avg_sq_dtype", "fp8"}
    assert all(f'"{name}"' in (out / "train.py").read_text() for name in names), "not as they are"


def test_cpu_ranks_are_refused(tmp_path):
    with pytest.raises(RenderError, match="CUDA devices alone"):
        exported_for_cpu(tmp_path, to="megatron-bridge")


@pytest.mark.skipif(
    not {"MEGATRON_BRIDGE_PATH", "MEGATRON_PATH"} <= os.environ.keys(),
    reason="MEGATRON_BRIDGE_PATH and MEGATRON_PATH name no checkouts",
)
def test_the_file_of_fields_is_what_the_sources_say():
    found = recorded(Path(os.environ["MEGATRON_BRIDGE_PATH"]), Path(os.environ["MEGATRON_PATH"]))
    assert FIELDS_FILE.read_text(encoding="utf-8") == as_text(found, 1)
