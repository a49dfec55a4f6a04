import pytest

from autotune.errors import FleetError
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
