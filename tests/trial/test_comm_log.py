"""What DeepSpeed's own logger says of collectives while we listen, over a backend of one rank."""

import time

import pytest
import torch
import torch.distributed as dist
from deepspeed.comm import comm
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.utils import timer

from autotune.trial import comm_log
from autotune.trial.comm_log import CommLog
from autotune.trial.engines import base, deepspeed_live


class Handle:
    def __init__(self):
        self.n_waits = 0

    def wait(self):
        self.n_waits += 1


class Backend:
    """In place of DeepSpeed's; sends nothing."""

    using_mpi = False

    def is_initialized(self):
        return True

    def get_world_size(self, group=None):
        return 1

    def __init__(self):
        self.handles = []

    def all_reduce(self, tensor, op=None, group=None, async_op=False):
        self.handles.append(Handle())
        return self.handles[-1] if async_op else None

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


@pytest.fixture
def ticks(monkeypatch):
    """DeepSpeed's timers read a clock that goes on by a second each time it is looked at."""

    now = iter(range(10_000))
    monkeypatch.setattr(timer.time, "time", lambda: float(next(now)))


def test_a_wall_clock_that_is_set_changes_no_call(backend, monkeypatch):
    """DeepSpeed's timers read that one on CPU: a day between two looks."""
    days = iter(range(10_000))
    monkeypatch.setattr(timer.time, "time", lambda: 86400.0 * next(days))
    log = CommLog()
    log.start()
    for _ in range(3):
        comm.all_reduce(torch.zeros(8))
    log.stop()
    assert timer.time is time, "and they have it back"
    ((first, *others),) = [call.seconds for call in log.calls]
    assert all(0 <= seconds < 3600 for seconds in (first, *others))


def test_every_call_is_told_with_its_own_time(backend, monkeypatch):
    now = iter(range(10_000))
    monkeypatch.setattr(comm_log._Steady, "time", lambda: float(next(now)))
    log = CommLog()
    log.start()
    for size in (8, 8, 8, 16):
        comm.all_reduce(torch.zeros(size))
    log.stop()
    seen = {(c.name, c.message_bytes): c.seconds for c in log.calls}
    assert seen == {("all_reduce", 32): [1.0, 1.0, 1.0], ("all_reduce", 64): [1.0]}


def test_deepspeeds_logger_by_itself_still_adds_calls_up(backend, ticks, monkeypatch):
    """The defect that is mended; where this fails, the mending may go."""
    monkeypatch.setattr(comm.comms_logger, "comms_dict", {})
    comm.timers("all_reduce").reset()
    comm.configure(enabled=True, prof_all=True)
    try:
        for _ in range(3):
            comm.all_reduce(torch.zeros(8))
    finally:
        comm.configure(enabled=False, prof_all=False)
        comm.timers("all_reduce").reset()
    (seen,) = comm.comms_logger.comms_dict["all_reduce"].values()
    assert seen[1] == [1000.0, 2000.0, 3000.0]


def test_a_call_that_returns_at_once_is_waited_for(backend):
    log = CommLog()
    log.start()
    comm.all_reduce(torch.zeros(8), async_op=True)
    log.stop()
    assert [handle.n_waits for handle in backend.handles] == [1]
    comm.all_reduce(torch.zeros(8), async_op=True)
    assert [handle.n_waits for handle in backend.handles] == [1, 0], "and no more afterwards"


def test_an_operation_without_a_bandwidth_ends_no_process(backend):
    log = CommLog()
    log.start()
    comm.comms_logger.append("monitored_barrier", "monitored_barrier", 0.0, 0)
    log.stop()
    assert [call.name for call in log.calls] == ["monitored_barrier"]


def test_messages_to_one_rank_are_between_two(backend, monkeypatch):
    log = CommLog()
    log.start()
    comm.send(torch.zeros(8), 0)
    comm.all_gather_into_tensor(torch.zeros(8), torch.zeros(8))
    log.stop()
    assert {call.name: call.group_size for call in log.calls} == {
        "send": 2,
        "all_gather_into_tensor": 1,
    }


def test_only_so_many_calls_are_kept(backend, monkeypatch):
    monkeypatch.setattr(base, "MAX_CALLS", 3)
    log = CommLog()
    log.start()
    for _ in range(5):
        comm.all_reduce(torch.zeros(8))
    log.stop()
    assert log.is_cut
    assert [len(call.seconds) for call in log.calls] == [3]


def test_the_logger_is_left_as_it_was(backend):
    before = (comm.comms_logger.enabled, comm.comms_logger.prof_all)
    log = CommLog()
    log.start()
    assert comm.comms_logger.enabled
    log.stop()
    assert (comm.comms_logger.enabled, comm.comms_logger.prof_all) == before
    assert not {"append"} & set(vars(comm.comms_logger))
    assert not {"all_reduce"} & set(vars(backend))


def test_a_pipelines_schedule_has_the_instructions_that_are_ranged():
    known = {kind.__name__ for kind in PipelineEngine._INSTRUCTION_MAP}
    assert set(deepspeed_live._INSTRUCTIONS) <= known
