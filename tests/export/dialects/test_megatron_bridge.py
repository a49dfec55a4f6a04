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
from tests.export.dialects.test_megatron_lm import DENSE, EXPERTS, LAYOUTS, exported
from tests.record_bridge_fields import fields_of as recorded
from tests.recorded_json import as_text


@pytest.mark.parametrize(("job", "settings"), LAYOUTS)
def test_every_field_is_one_of_its_section(tmp_path, job, settings):
    out = exported(tmp_path, job, settings, to="megatron-bridge")
    data = yaml.safe_load((out / "bridge.yaml").read_text())
    assert data.pop("mixed_precision") == (None if "precision" in job else "bf16_mixed")
    for section, fields in data.items():
        assert set(fields) <= fields_of(section)


def test_a_layout_is_in_the_sections_that_read_it(tmp_path):
    job, settings = LAYOUTS[1]
    data = yaml.safe_load(
        (exported(tmp_path, job, settings, to="megatron-bridge") / "bridge.yaml").read_text()
    )
    model = data["model"]
    assert model["virtual_pipeline_model_parallel_size"] == 4
    assert (model["gated_linear_unit"], model["activation_func"]) == (True, "silu")
    assert data["ddp"]["use_distributed_optimizer"] is True
    assert data["optimizer"]["use_distributed_optimizer"] is True
    assert data["train"]["global_batch_size"] == 256


def test_what_few_layouts_have_is_in_its_section(tmp_path):
    text = "cp=2 cp_kind=a2a ep=8 distributed_optimizer=true fsdp=optim_grads_params"
    settings = f"{text} fsdp_double_buffer=true cuda_graphs=attn"
    out = exported(tmp_path, EXPERTS, settings, to="megatron-bridge")
    data = yaml.safe_load((out / "bridge.yaml").read_text())
    assert data["model"]["cp_comm_type"] == "a2a"
    assert data["ddp"]["fsdp_double_buffer"] is True
    assert data["rng"]["te_rng_tracker"] is data["model"]["use_te_rng_tracker"] is True


def test_16_bit_moments_and_the_order_of_ranks_have_fields(tmp_path):
    settings = "pp=2 distributed_optimizer=true adam_moments=bf16 order=tp-cp-ep-pp-dp"
    out = exported(tmp_path, DENSE, settings, to="megatron-bridge")
    data = yaml.safe_load((out / "bridge.yaml").read_text())
    assert (
        data["optimizer"]["exp_avg_dtype"] == data["optimizer"]["exp_avg_sq_dtype"] == "bfloat16"
    )
    assert data["dist"]["use_tp_pp_dp_mapping"] is True
    assert "exp_avg_dtype" in (out / "train.py").read_text()


def test_every_argument_of_a_knob_has_a_field():
    for name in KNOBS_OF:
        for place in bridge_fields({name: "bf16" if name in MOMENT_DTYPES else 1}):
            section, _, field = place.partition(".")
            assert field in fields_of(section), name


def test_fp4_is_a_mixed_precision(tmp_path):
    out = exported(tmp_path, DENSE, "fp4=true", to="megatron-bridge", gpu="B200")
    data = yaml.safe_load((out / "bridge.yaml").read_text())
    assert data["mixed_precision"] == "bf16_with_nvfp4_mixed"


def test_fp8_by_blocks_has_the_format_that_was_chosen(tmp_path):
    settings = "fp8=e4m3 fp8_recipe=blockwise"
    out = exported(tmp_path, DENSE, settings, to="megatron-bridge", gpu="H100")
    data = yaml.safe_load((out / "bridge.yaml").read_text())
    assert data["mixed_precision"] == "bf16_with_fp8_subchannel_scaling_mixed"
    assert data["fp8"] == "e4m3"
    assert '"fp8"' in (out / "train.py").read_text()


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
