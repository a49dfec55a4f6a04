"""Where the time went, from made-up events: each rule of the split, and that it adds up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.trial.timeline import BACKWARD, BEGIN, EXCHANGE, FORWARD, OPTIMIZER, Event, split

MAIN, GLOO = 1, 2
MS = 1_000_000


def event(name, start_ms, end_ms, *, thread=MAIN, on_device=False):
    return Event(name, int(start_ms * MS), int(end_ms * MS), thread, on_device)


def a_step():
    """2 ms of data, 10 of forward, 20 of backward, 8 of the optimizer: 40 ms."""
    return [
        event(BEGIN, 0, 1),
        event(FORWARD, 3, 13),
        event(BACKWARD, 13, 33),
        event(OPTIMIZER, 33, 41),
    ]


def seconds(found):
    return {name: pytest.approx(ms / 1e3) for name, ms in found.items()}


def parts(found):
    names = ("forward_s", "backward_s", "optimizer_s", "communication_s", "data_s")
    return {name.removesuffix("_s"): getattr(found, name) for name in names}


def test_without_operations_the_calls_are_the_split():
    found = split(a_step(), steps=1, on_device=False)
    assert parts(found) == seconds(
        {"forward": 10, "backward": 20, "optimizer": 8, "communication": 0, "data": 2}
    )
    assert found.step_s == pytest.approx(0.040)
    assert found.host_s == pytest.approx(0.032), "nothing ran but Python"


def test_a_collective_counts_where_nothing_is_computed_beside_it():
    events = [
        *a_step(),
        event("aten::mm", 14, 20),
        event("gloo:all_reduce", 18, 28, thread=GLOO),
        event("aten::add", 22, 24),
    ]
    found = split(events, steps=1, on_device=False)
    assert found.communication_s == pytest.approx(0.006), "20 to 22 and 24 to 28"
    assert found.overlapped_s == pytest.approx(0.004)
    assert found.backward_s == pytest.approx(0.014)
    assert found.matmul_s == pytest.approx(0.006)
    assert found.memory_s == pytest.approx(0.002)


def test_what_other_threads_of_a_cpu_rank_compute_is_not_the_step():
    events = [*a_step(), event("aten::mm", 4, 9, thread=7)]
    assert split(events, steps=1, on_device=False).matmul_s == 0


def test_waiting_for_one_other_rank_is_communication():
    events = [*a_step(), event(EXCHANGE, 15, 25), event("aten::add", 26, 28)]
    assert split(events, steps=1, on_device=False).communication_s == pytest.approx(0.010)


def test_nested_operations_count_once():
    events = [*a_step(), event("aten::linear", 4, 9), event("aten::addmm", 5, 8)]
    found = split(events, steps=1, on_device=False)
    assert (found.matmul_s, found.memory_s) == (pytest.approx(0.003), pytest.approx(0.002))


def test_the_optimizers_operations_are_its_own():
    events = [*a_step(), event("aten::addcdiv_", 34, 40)]
    found = split(events, steps=1, on_device=False)
    assert (found.optimizer_s, found.memory_s) == (pytest.approx(0.008), 0)


def test_on_a_gpu_its_kernels_count_and_not_what_launched_them():
    events = [
        *a_step(),
        event("aten::mm", 3, 13),
        event("autotune::forward", 3, 13, on_device=True),  # the range, as the trace draws it
        event("sm90_xmma_gemm_bf16", 4, 9, on_device=True),
        event("vectorized_elementwise_kernel", 9, 11, on_device=True),
        event("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 10, 16, on_device=True),
    ]
    found = split(events, steps=1, on_device=True)
    assert found.matmul_s == pytest.approx(0.005)
    assert found.memory_s == pytest.approx(0.002)
    assert found.communication_s == pytest.approx(0.005)
    assert found.overlapped_s == pytest.approx(0.001)
    assert found.forward_s == pytest.approx(0.008)


def test_several_steps_are_told_as_one():
    second = [
        e._replace(start_ns=e.start_ns + 40 * MS, end_ns=e.end_ns + 40 * MS) for e in a_step()[1:]
    ]
    assert split([*a_step(), *second], steps=2, on_device=False) == split(
        a_step(), steps=1, on_device=False
    )


def test_a_trace_without_the_ranges_is_refused():
    with pytest.raises(ValueError, match="no range"):
        split([event("aten::mm", 0, 1)], steps=1, on_device=False)


names = st.sampled_from(["aten::mm", "aten::add", "gloo:all_reduce", "c10d::allreduce_"])
spans = st.tuples(st.integers(0, 45), st.integers(0, 20), names)


@given(st.lists(spans, max_size=30), st.booleans())
def test_the_parts_always_add_up_to_the_step(drawn, on_device):
    events = [
        *a_step(),
        *(event(name, at, at + long, on_device=on_device) for at, long, name in drawn),
    ]
    found = split(events, steps=1, on_device=on_device)
    assert sum(parts(found).values()) == pytest.approx(found.step_s)
    work = found.matmul_s + found.memory_s + found.host_s
    assert work + found.communication_s + found.optimizer_s == pytest.approx(found.step_s)
    assert min(*parts(found).values(), found.matmul_s, found.memory_s, found.host_s) >= 0
