import pytest

from autotune.base.errors import FleetError
from autotune.fleet.gangs import GangAllocator, Slot


def slots(n):
    return tuple(Slot(index=i, device=str(i)) for i in range(n))


def test_gangs_are_disjoint_and_all_or_nothing():
    allocator = GangAllocator(slots(5))
    assert allocator.capacity(2) == 2
    first, second = allocator.allocate(2), allocator.allocate(2)
    assert not set(first.slots) & set(second.slots)
    with pytest.raises(FleetError, match="a gang of 2 slots was asked for, 1 of 5 free"):
        allocator.allocate(2)


def test_a_released_gang_is_given_out_again_lowest_first():
    allocator = GangAllocator(slots(4))
    first = allocator.allocate(2)
    allocator.allocate(2)
    allocator.release(first)
    assert allocator.allocate(2) == first


def ends(allocator, gang, *candidates, is_fault=True):
    for candidate in candidates:
        allocator.judge(gang, candidate, is_fault=is_fault)


def test_a_slot_where_the_platform_ends_one_trial_after_the_other_is_left_out():
    allocator = GangAllocator(slots(4))
    bad = allocator.allocate(2)
    ends(allocator, bad, "a", "b")
    assert allocator.quarantined == ()
    ends(allocator, bad, "b")
    assert allocator.quarantined == bad.slots
    allocator.release(bad)
    assert allocator.capacity(2) == 1
    good = allocator.allocate(2)
    assert not set(good.slots) & set(bad.slots)
    with pytest.raises(FleetError, match="0 of 2 free"):
        allocator.allocate(1)


def test_a_trial_that_goes_well_clears_its_slots():
    allocator = GangAllocator(slots(2))
    gang = allocator.allocate(1)
    ends(allocator, gang, "a", "b")
    ends(allocator, gang, "c", is_fault=False)
    ends(allocator, gang, "d", "e")
    assert allocator.quarantined == ()


def test_no_slot_is_left_out_for_one_candidate_or_for_what_happens_everywhere():
    allocator = GangAllocator(slots(2))
    first, second = allocator.allocate(1), allocator.allocate(1)
    ends(allocator, first, "a", "a", "a")
    assert allocator.quarantined == ()
    ends(allocator, second, "b")
    ends(allocator, first, "b", "c")
    assert allocator.quarantined == ()
    alone = GangAllocator(slots(2))
    gang = alone.allocate(2)
    ends(alone, gang, "a", "b", "c")
    assert alone.quarantined == ()


def test_what_the_platform_ended_is_tried_elsewhere_first():
    allocator = GangAllocator(slots(3))
    failed = allocator.allocate(1)
    ends(allocator, failed, "a")
    allocator.release(failed)
    assert allocator.allocate(1).slots[0].index == 1
    assert [slot.index for slot in allocator.allocate(2).slots] == [0, 2]


def rack(*n_slots):
    """Nodes of so many slots each."""
    return GangAllocator(
        tuple(
            Slot(index=i, device=str(i), node=f"n{node}")
            for node, n in enumerate(n_slots)
            for i in range(n)
        )
    )


@pytest.mark.cases("n_slots", "size", "shape", "capacity")
def test_a_gang_takes_as_few_nodes_as_it_can_and_as_many_slots_of_each(
    n_slots, size, shape, capacity
):
    allocator = rack(*n_slots)
    assert allocator.capacity(size) == capacity
    gangs = [allocator.allocate(size) for _ in range(capacity)]
    assert [slot.node for slot in gangs[0].slots] == shape
    taken = [slot for gang in gangs for slot in gang.slots]
    assert len(set(taken)) == size * capacity
    with pytest.raises(FleetError):
        allocator.allocate(size)


def test_a_size_that_no_nodes_make_up_is_refused():
    assert rack(8, 8).capacity(18) == 0
    assert rack(8, 4).capacity(16) == 0


def machine(*domains, shares=(), node="n0"):
    """Slots of one node, each in a domain and sharing something."""
    return tuple(
        Slot(
            index=i,
            device=str(i),
            node=node,
            domain=domain,
            shares=frozenset([shares[i]] if shares else []),
        )
        for i, domain in enumerate(domains)
    )


def indices(gang):
    return [slot.index for slot in gang.slots]


@pytest.mark.cases("domains", "requests")
def test_a_gang_keeps_to_a_domain(domains, requests):
    """Requests: a size and the slots that it gets; null gives back what the first one got."""
    allocator = GangAllocator(machine(*domains))
    taken = []
    for size, slots_of_gang in requests:
        if size is None:
            allocator.release(taken.pop(0))
            continue
        taken.append(allocator.allocate(size))
        assert indices(taken[-1])[: len(slots_of_gang)] == slots_of_gang


def test_a_small_gang_goes_where_something_runs_already():
    allocator = rack(4, 4)
    allocator.allocate(2)
    second = allocator.allocate(2)
    assert [slot.node for slot in second.slots] == ["n0", "n0"]
    assert [slot.node for slot in allocator.allocate(4).slots] == ["n1"] * 4


def test_exclusive_gangs_share_no_switch_and_no_card():
    slots_of = machine(*"aaaa", shares=("left", "left", "right", "right"))
    beside = GangAllocator(slots_of)
    assert beside.capacity(1) == 4
    assert indices(beside.allocate(1)) == [0]
    assert indices(beside.allocate(1)) == [1]
    alone = GangAllocator(slots_of, is_exclusive=True)
    assert (alone.capacity(1), alone.capacity(2), alone.capacity(4)) == (2, 2, 1)
    assert indices(alone.allocate(1)) == [0]
    assert indices(alone.allocate(1)) == [2]
    with pytest.raises(FleetError):
        alone.allocate(1)


def test_what_two_nodes_call_the_same_is_not_shared():
    slots_of = (*machine("", shares=("eth0",)), *machine("", shares=("eth0",), node="n1"))
    allocator = GangAllocator(slots_of, is_exclusive=True)
    assert allocator.capacity(1) == 2
    gangs = [allocator.allocate(1) for _ in range(2)]
    assert [slot.node for gang in gangs for slot in gang.slots] == ["n0", "n1"]


def test_a_node_that_is_back_gets_another_chance():
    allocator = rack(1, 1)
    gang = allocator.allocate(1)
    ends(allocator, gang, "a", "b", "c")
    allocator.release(gang)
    assert [slot.node for slot in allocator.quarantined] == ["n0"]
    allocator.leave("n0")
    assert allocator.capacity(1) == 1
    allocator.join("n0")
    assert (allocator.capacity(1), allocator.quarantined) == (2, ())
