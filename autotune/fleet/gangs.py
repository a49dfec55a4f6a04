"""Gives out gangs: n slots that one trial holds, all or nothing; slots that fail are left out."""

from dataclasses import dataclass

from autotune.base.errors import FleetError

MAX_FAULTS = 3
"""Platform faults in a row after which a slot is left out: a first run and two retries."""


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
    """A ledger of free slots, and of what the platform did to the trials on each."""

    def __init__(self, slots: tuple[Slot, ...]) -> None:
        self._slots = slots
        self._free = list(slots)
        self._faults: dict[Slot, list[str]] = {slot: [] for slot in slots}
        """Candidates that the platform ended there since a trial last went well."""
        self._quarantined: list[Slot] = []

    @property
    def quarantined(self) -> tuple[Slot, ...]:
        """Slots that are given out no more."""
        return tuple(self._quarantined)

    def capacity(self, size: int) -> int:
        """How many gangs of this size fit at once when all slots are free."""
        return len(self._healthy()) // size

    def allocate(self, size: int) -> Gang:
        """Take a gang: where nothing went wrong last, lowest slots first (neighbours share links).

        So a trial that the platform ended is tried again elsewhere, if there is room.

        Raises:
            FleetError: Fewer slots are free than asked for.
        """
        if size > len(self._free):
            raise FleetError(
                f"a gang of {size} slots was asked for, {len(self._free)} of "
                f"{len(self._healthy())} free",
                "wait for a running trial to end",
            )
        order = sorted(self._free, key=lambda slot: (len(self._faults[slot]), slot.index))
        taken, self._free = order[:size], order[size:]
        return Gang(slots=tuple(sorted(taken, key=lambda slot: slot.index)))

    def release(self, gang: Gang) -> None:
        """Give a gang back."""
        self._free += [slot for slot in gang.slots if slot not in self._quarantined]

    def judge(self, gang: Gang, candidate_hash: str, *, is_fault: bool) -> None:
        """Take note of how a trial ended; slots that fail again and again are left out.

        Not for one candidate's sake, which may be what crashes, and only while a whole gang of
        others has not failed: what ends trials everywhere is no slot's fault.

        Args:
            gang: The trial's; released before or after.
            candidate_hash: What it ran.
            is_fault: Whether the platform ended it.
        """
        for slot in gang.slots:
            self._faults[slot] = [*self._faults[slot], candidate_hash] if is_fault else []
        sound = [slot for slot in self._healthy() if not self._faults[slot]]
        if len(sound) < len(gang.slots):
            return
        for slot in gang.slots:
            ended = self._faults[slot]
            if len(ended) >= MAX_FAULTS and len(set(ended)) > 1:
                self._quarantined.append(slot)
                self._free = [free for free in self._free if free != slot]

    def _healthy(self) -> list[Slot]:
        return [slot for slot in self._slots if slot not in self._quarantined]
