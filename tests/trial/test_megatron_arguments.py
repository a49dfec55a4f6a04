"""How the script of Megatron's trials hands its arguments to Megatron Core."""

import sys
from dataclasses import make_dataclass
from types import ModuleType, SimpleNamespace

import pytest

from autotune.trial.scripts import train_megatron


@pytest.fixture
def of_core(monkeypatch):
    """Megatron Core's configuration of data parallelism, with its switches off."""
    module = ModuleType("megatron.core.distributed")
    switches = ("grad_reduce_in_fp32", "nccl_ub", "check_for_nan_in_grad", "bucket_size")
    switches += ("use_megatron_fsdp", "fsdp_double_buffer", "align_param_gather")
    module.DistributedDataParallelConfig = make_dataclass(
        "Config", [(name, bool, False) for name in switches]
    )
    for name in ("megatron", "megatron.core"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.parametrize("is_double", [True, False])
def test_fsdp_gathers_into_two_buffers_where_it_is_told_to(of_core, is_double):
    arguments = {"use_megatron_fsdp": True} | ({"fsdp_double_buffer": True} if is_double else {})
    settings = SimpleNamespace(dp=2, precision="bf16")
    found = train_megatron.data_parallel_config(arguments, settings)
    assert found.fsdp_double_buffer is is_double


@pytest.mark.parametrize(
    ("precision", "chunks", "found"),
    [("bf16", None, (True, False)), ("fp32", 2, (True, True)), ("fp16", 2, (False, True))],
)
def test_it_looks_for_nan_and_aligns_chunks_as_pretrain_gpt_does(
    of_core, precision, chunks, found
):
    """It once did neither, so that an export for that script ran otherwise than its trial."""
    arguments = {"pipeline_model_parallel_size": 2, "num_virtual_stages_per_pipeline_rank": chunks}
    settings = SimpleNamespace(dp=2, precision=precision)
    config = train_megatron.data_parallel_config(arguments, settings)
    assert (config.check_for_nan_in_grad, config.align_param_gather) == found
