"""Gives out gangs: n slots that one trial holds, all or nothing."""

from dataclasses import dataclass

from autotune.errors import FleetError


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One accelerator of this machine."""

    index: int
    """Position among the machine's visible devices."""
    device: str
    """What `CUDA_VISIBLE_DEVICES` calls it; for `cpu`, the number of its core."""


@dataclass(frozen=True, kw_only=True)
class Gang:
    """The slots of one trial."""

    slots: tuple[Slot, ...]


class GangAllocator:
    """A ledger of free slots."""

    def __init__(self, slots: tuple[Slot, ...]) -> None:
        self._free = sorted(slots, key=lambda slot: slot.index)
        self._n_slots = len(slots)

    def capacity(self, size: int) -> int:
        """How many gangs of this size fit at once when all slots are free."""
        return self._n_slots // size

    def allocate(self, size: int) -> Gang:
        """Take a gang, lowest slots first: neighbours share links.

        Raises:
            FleetError: Fewer slots are free than asked for.
        """
        if size > len(self._free):
            raise FleetError(
                f"a gang of {size} slots was asked for, {len(self._free)} of {self._n_slots} free",
                "wait for a running trial to end",
            )
        taken, self._free = self._free[:size], self._free[size:]
        return Gang(slots=tuple(taken))

    def release(self, gang: Gang) -> None:
        """Give a gang back."""
        self._free = sorted([*self._free, *gang.slots], key=lambda slot: slot.index)
