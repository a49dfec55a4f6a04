"""Layouts as arguments of NeMo 2's classes, and the script that makes them."""

import ast
import os
from pathlib import Path

import pytest
import yaml

from autotune.base.errors import RenderError
from autotune.export.dialects.nemo import FIELDS_FILE
from autotune.export.megatron_sections import fields_of
from tests.export.dialects.test_megatron_core import exported as exported_for_cpu
from tests.export.dialects.test_megatron_lm import DENSE, LAYOUTS, exported
from tests.record_bridge_fields import as_text
from tests.record_nemo_fields import nemo_fields


def sections(folder, job, settings):
    out = exported(folder, job, settings, to="nemo")
    return yaml.safe_load((out / "nemo.yaml").read_text())


@pytest.mark.parametrize(("job", "settings"), LAYOUTS)
def test_every_field_is_one_of_its_class(tmp_path, job, settings):
    for section, fields in sections(tmp_path, job, settings).items():
        assert set(fields) <= fields_of(FIELDS_FILE, section)


def test_a_layout_is_where_nemo_reads_it(tmp_path):
    data = sections(tmp_path, *LAYOUTS[1])
    assert data["strategy"] == {
        "tensor_model_parallel_size": 4,
        "pipeline_model_parallel_size": 2,
        "virtual_pipeline_model_parallel_size": 4,
        "context_parallel_size": 1,
        "expert_model_parallel_size": 1,
        "sequence_parallel": True,
    }
    assert data["ddp"]["use_distributed_optimizer"] is True
    assert data["optimizer"]["use_distributed_optimizer"] is True
    assert data["precision"]["precision"] == "bf16-mixed"
    assert data["data"] == {"seq_length": 8192, "micro_batch_size": 1, "global_batch_size": 256}
    assert data["model"]["vocab_size"] % (128 * 4) == 0
    assert data["tokenizer"]["vocab_size"] + 1 == 128256
    trainer = data["trainer"]
    assert trainer["devices"] * trainer["num_nodes"] == DENSE["world"]


def test_a_pipeline_whose_sends_do_not_overlap_sends_in_batches(tmp_path):
    data = sections(tmp_path, DENSE, "pp=4 vp=2 overlap_p2p=false")
    assert data["comm_overlap"] == {
        "tp_comm_overlap": False,
        "overlap_p2p_comm": False,
        "batch_p2p_comm": True,
    }


def test_fp8_is_said_to_the_precision_and_scaled_positions_to_the_model(tmp_path):
    job = {**DENSE, "model": "llama-3.1-8b"}
    data = sections(tmp_path, job, "fp8=hybrid fp8_recipe=tensorwise")
    assert (data["precision"]["fp8"], data["precision"]["fp8_recipe"]) == ("hybrid", "tensorwise")
    assert data["model"]["scale_factor"] == 8.0


def test_the_script_reads_every_section(tmp_path):
    out = exported(tmp_path, *LAYOUTS[0], to="nemo")
    data = yaml.safe_load((out / "nemo.yaml").read_text())
    read = {
        node.slice.value
        for node in ast.walk(ast.parse((out / "train.py").read_text()))
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == "data"
    }
    assert read == set(data)


def test_cpu_ranks_are_refused(tmp_path):
    with pytest.raises(RenderError, match="CUDA devices alone"):
        exported_for_cpu(tmp_path, to="nemo")


@pytest.mark.skipif(
    not {"NEMO_PATH", "MEGATRON_PATH"} <= os.environ.keys(),
    reason="NEMO_PATH and MEGATRON_PATH name no checkouts",
)
def test_the_file_of_fields_is_what_the_sources_say():
    found = nemo_fields(Path(os.environ["NEMO_PATH"]), Path(os.environ["MEGATRON_PATH"]))
    assert FIELDS_FILE.read_text(encoding="utf-8") == as_text(found)
