"""How the script of Megatron's trials hands its arguments to Megatron Core."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from autotune.trial.scripts import train_megatron


@pytest.fixture
def of_core(monkeypatch):
    """Megatron Core's configuration of data parallelism, which keeps what it is given."""
    module = ModuleType("megatron.core.distributed")
    module.DistributedDataParallelConfig = SimpleNamespace
    for name in ("megatron", "megatron.core"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.parametrize("is_double", [True, False])
def test_fsdp_gathers_into_two_buffers_where_it_is_told_to(of_core, is_double):
    arguments = {"use_megatron_fsdp": True} | ({"fsdp_double_buffer": True} if is_double else {})
    found = train_megatron.data_parallel_config(arguments, SimpleNamespace(dp=2))
    assert found.fsdp_double_buffer is is_double
