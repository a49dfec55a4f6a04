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
    switches += ("use_megatron_fsdp", "fsdp_double_buffer")
    module.DistributedDataParallelConfig = make_dataclass(
        "Config", [(name, bool, False) for name in switches]
    )
    for name in ("megatron", "megatron.core"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.parametrize("is_double", [True, False])
def test_fsdp_gathers_into_two_buffers_where_it_is_told_to(of_core, is_double):
    arguments = {"use_megatron_fsdp": True} | ({"fsdp_double_buffer": True} if is_double else {})
    found = train_megatron.data_parallel_config(arguments, SimpleNamespace(dp=2))
    assert found.fsdp_double_buffer is is_double
