"""What bounds a step, and that the shares are shares."""

import dataclasses

import pytest

from autotune.contract import Diagnosis
from autotune.record.bottleneck import Bound, bottleneck, bubble_share, shares_of_calls
from tests.report.diagnosed import diagnosis, split_of
from tests.trials import spec


@pytest.mark.cases("shares", "bound")
def test_the_largest_share_is_the_bound(shares, bound):
    found = bottleneck(spec(), diagnosis(**shares))
    assert found.bound == bound
    assert sum(found.shares.values()) == pytest.approx(1)
    assert list(found.shares.values()) == sorted(found.shares.values(), reverse=True)


def test_what_is_nearly_as_large_is_named_too():
    found = bottleneck(spec(), diagnosis(memory=0.4, communication=0.35))
    assert (found.bound, found.rivals) == (Bound.MEMORY, [Bound.COMMUNICATION])


@pytest.mark.parametrize(("accelerator", "bound"), [("cuda", Bound.HOST), ("cpu", Bound.MEMORY)])
def test_an_offloaded_optimizer_is_the_hosts_where_there_is_another(accelerator, bound):
    offloads = spec(accelerator=accelerator, knobs={"offload.optimizer": "cpu"})
    assert bottleneck(offloads, diagnosis(optimizer=0.6)).bound is bound


def test_knobs_of_an_engine_that_is_not_installed_say_nothing():
    trial = spec(accelerator="cuda", knobs={"offload.optimizer": "cpu"})
    gone = dataclasses.replace(trial, engine=dataclasses.replace(trial.engine, name="gone"))
    assert bottleneck(gone, diagnosis(optimizer=0.6)).bound is Bound.MEMORY


@pytest.mark.parametrize(
    ("pp", "grad_accum", "share"), [(1, 8, 0.0), (2, 1, 1 / 2), (4, 8, 3 / 11), (4, 1, 3 / 4)]
)
def test_the_bubble_is_what_gpipe_says(pp, grad_accum, share):
    assert bubble_share(spec(pp=pp, grad_accum=grad_accum)) == pytest.approx(share)


def test_the_bubble_is_a_part_of_what_a_stage_waits():
    pipeline = spec(pp=2, grad_accum=1)
    assert bottleneck(pipeline, diagnosis(communication=0.6)).bound is Bound.BUBBLE
    found = bottleneck(pipeline, diagnosis(communication=0.2))
    assert found.shares[Bound.BUBBLE] == pytest.approx(0.2), "no more than it waits at all"
    assert found.shares[Bound.COMMUNICATION] == 0


def test_the_calls_add_up_to_the_step():
    shares = shares_of_calls(split_of(communication=0.2, optimizer=0.1))
    assert sum(shares.values()) == pytest.approx(1)


def test_without_a_split_nothing_is_claimed():
    assert bottleneck(spec(), None) is None
    assert bottleneck(spec(), Diagnosis(problem="profiler: no")) is None
    still = dataclasses.replace(diagnosis(), split=dataclasses.replace(split_of(), step_s=0.0))
    assert bottleneck(spec(), still) is None


def test_a_damaged_split_without_a_time_has_no_shares_and_no_traceback():
    damaged = dataclasses.replace(split_of(communication=0.2), step_s=0.0)
    assert set(shares_of_calls(damaged).values()) == {0.0}
