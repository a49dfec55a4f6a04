"""Where the time went, from made-up events: each rule of the split, and that it adds up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.trial.timeline import BACKWARD, BEGIN, FORWARD, OPTIMIZER, Event, split

MAIN = 1
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


@pytest.mark.cases("on_device", "events", "expected")
def test_a_step_is_split(on_device, events, expected):
    """Beside the ranges of a step; all in milliseconds."""
    more = [event(*at, **dict(*options)) for at, *options in events]
    found = split([*a_step(), *more], steps=1, on_device=on_device)
    assert {name: getattr(found, f"{name}_s") for name in expected} == seconds(expected)


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
