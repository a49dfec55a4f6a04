"""Collectives that are timed while we listen, over a backend of one rank."""

import deepspeed.comm
import pytest
import torch
import torch.distributed as dist
from deepspeed.comm import comm
from deepspeed.runtime.pipe.engine import PipelineEngine

from autotune.trial.engines import deepspeed_live, torch_collectives
from autotune.trial.engines.torch_collectives import Collectives


class Handle:
    n_waits = 0

    def wait(self):
        self.n_waits += 1


class Backend:
    """In place of DeepSpeed's; sends nothing."""

    def __init__(self):
        self.handles = []

    def is_initialized(self):
        return True

    def all_reduce(self, tensor, op=None, group=None, async_op=False):
        self.handles.append(Handle())
        return self.handles[-1] if async_op else None

    def all_reduce_coalesced(self, tensors, op=None, group=None, async_op=False):
        for tensor in tensors:
            self.all_reduce(tensor)

    def all_gather_into_tensor(self, output_tensor, input_tensor, group=None, async_op=False):
        return None

    def send(self, tensor, dst, group=None, tag=0):
        return None


@pytest.fixture
def backend(monkeypatch):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    backend = Backend()
    monkeypatch.setattr(comm, "cdb", backend)
    yield backend
    dist.destroy_process_group()


def listened(*calls) -> Collectives:
    log = Collectives(deepspeed.comm, "deepspeed.", lambda: None)
    log.start()
    for call in calls:
        call()
    log.stop()
    return log


def test_every_call_is_kept_with_its_message_and_its_group(backend):
    log = listened(
        *(lambda size=size: deepspeed.comm.all_reduce(torch.zeros(size)) for size in (8, 8, 16)),
        lambda: deepspeed.comm.all_gather_into_tensor(torch.zeros(16), torch.zeros(8)),
        lambda: deepspeed.comm.send(torch.zeros(8), 0),
        lambda: deepspeed.comm.all_reduce_coalesced([torch.zeros(8), torch.zeros(4)]),
    )
    seen = [(c.name, c.message_bytes, c.group_size, len(c.seconds)) for c in log.calls]
    assert seen == [
        ("all_reduce", 32, 1, 2),
        ("all_reduce", 64, 1, 1),
        ("all_gather_into_tensor", 32, 1, 1),
        ("send", 32, 2, 1),
        ("all_reduce_coalesced", 48, 1, 1),
    ]
    assert all(0 <= seconds < 60 for call in log.calls for seconds in call.seconds)


def test_a_call_that_returns_at_once_is_waited_for_and_no_more_afterwards(backend):
    listened(lambda: deepspeed.comm.all_reduce(torch.zeros(8), async_op=True))
    deepspeed.comm.all_reduce(torch.zeros(8), async_op=True)
    assert [handle.n_waits for handle in backend.handles] == [1, 0]


def test_only_so_many_calls_are_kept(backend, monkeypatch):
    monkeypatch.setattr(torch_collectives, "MAX_CALLS", 3)
    log = listened(*[lambda: deepspeed.comm.all_reduce(torch.zeros(8))] * 5)
    assert log.is_cut
    assert [len(call.seconds) for call in log.calls] == [3]


def test_torchs_own_are_heard_where_a_module_holds_them():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        log, before = Collectives(dist, "no.such.module", lambda: None), dist.all_reduce
        log.start()
        dist.all_reduce(torch.zeros(8))
        log.stop()
        assert dist.all_reduce is before
    finally:
        dist.destroy_process_group()
    assert [(call.name, call.message_bytes) for call in log.calls] == [("all_reduce", 32)]


def test_a_pipelines_schedule_has_the_instructions_that_are_ranged():
    known = {kind.__name__ for kind in PipelineEngine._INSTRUCTION_MAP}
    assert set(deepspeed_live._INSTRUCTIONS) <= known
