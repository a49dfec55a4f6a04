"""Gives out gangs: n nodes x k slots, all or nothing; slots that fail are left out."""

from collections.abc import Iterable
from dataclasses import dataclass

from autotune.base.errors import FleetError

MAX_FAULTS = 3
"""Platform faults in a row after which a slot is left out: a first run and two retries."""


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One accelerator of a node."""

    index: int
    """Position among the node's devices."""
    device: str
    """Name in `CUDA_VISIBLE_DEVICES`; for `cpu`, the number of its core."""
    node: str = "localhost"

    @property
    def name(self) -> str:
        """Its name in results and reports."""
        return f"{self.node}:{self.index}"


@dataclass(frozen=True, kw_only=True)
class Gang:
    """The slots of one trial: as many on each of its nodes, node after node."""

    slots: tuple[Slot, ...]

    @property
    def nodes(self) -> dict[str, list[Slot]]:
        """Its slots by the name of their node, in their order."""
        return _by_node(self.slots)


class GangAllocator:
    """A ledger of free slots, and of what the platform did to the trials on each."""

    def __init__(self, slots: tuple[Slot, ...]) -> None:
        self._slots = slots
        self._faults: dict[Slot, list[str]] = {slot: [] for slot in slots}
        """Candidates whose trials the platform ended there since a trial last went well."""
        self._quarantined: list[Slot] = []
        self._taken: set[Slot] = set()
        self._away: set[str] = set()
        """Names of nodes that are not there for the time being."""

    @property
    def quarantined(self) -> tuple[Slot, ...]:
        """Slots that are given out no more."""
        return tuple(self._quarantined)

    def per_node(self, size: int) -> int:
        """Slots of each node that a gang of this size holds: all, or the most that divide it.

        Every gang of a size has the same shape, whatever is free, so that its trials compare.
        """
        largest = max(map(len, _by_node(self._slots).values()), default=0)
        return next((k for k in range(min(size, largest), 0, -1) if size % k == 0), 1)

    def capacity(self, size: int) -> int:
        """How many gangs of this size fit at once when all slots are free."""
        return self._gangs_in(self._healthy(), size)

    def allocate(self, size: int) -> Gang:
        """Take a gang: where nothing went wrong last, lowest slots first (neighbours share links).

        So a trial that the platform ended is tried again elsewhere, if there is room.

        Raises:
            FleetError: Fewer slots are free than asked for.
        """
        free = [slot for slot in self._healthy() if slot not in self._taken]
        if not self._gangs_in(free, size):
            raise FleetError(
                f"a gang of {size} slots was asked for, {len(free)} of "
                f"{len(self._healthy())} free",
                "wait for a running trial to end",
            )
        k = self.per_node(size)
        parts = [
            sorted(slots, key=lambda slot: (len(self._faults[slot]), slot.index))[:k]
            for slots in _by_node(free).values()
            if len(slots) >= k
        ]
        parts.sort(key=lambda part: sum(len(self._faults[slot]) for slot in part))
        taken = {slot for part in parts[: size // k] for slot in part}
        self._taken |= taken
        return Gang(slots=tuple(slot for slot in self._slots if slot in taken))

    def release(self, gang: Gang) -> None:
        """Give a gang back."""
        self._taken -= set(gang.slots)

    def leave(self, node: str) -> None:
        """Give out no slot of a node until it joins again."""
        self._away.add(node)

    def join(self, node: str) -> None:
        """Give out the slots of a node again."""
        self._away.discard(node)

    def judge(self, gang: Gang, candidate_hash: str, *, is_fault: bool) -> None:
        """Take note of how a trial ended; slots that fail again and again are left out.

        Faults of one candidate alone do not count, since the candidate may be what crashes. And a
        slot is left out only while a whole gang of others has not failed: what ends trials
        everywhere is no slot's fault. The gang is released before or after.
        """
        for slot in gang.slots:
            self._faults[slot] = [*self._faults[slot], candidate_hash] if is_fault else []
        sound = [slot for slot in self._healthy() if not self._faults[slot]]
        if not self._gangs_in(sound, len(gang.slots)):
            return
        for slot in gang.slots:
            ended = self._faults[slot]
            if len(ended) >= MAX_FAULTS and len(set(ended)) > 1:
                self._quarantined.append(slot)

    def _healthy(self) -> list[Slot]:
        left_out = {*self._quarantined, *(s for s in self._slots if s.node in self._away)}
        return [slot for slot in self._slots if slot not in left_out]

    def _gangs_in(self, slots: Iterable[Slot], size: int) -> int:
        """How many gangs fit into some slots at once; no gang holds two parts of one node."""
        k = self.per_node(size)
        fit = [len(each) // k for each in _by_node(slots).values()]
        # The most that fit is found by halving: with thousands of nodes, one by one is too slow.
        n_gangs, n_most = 0, sum(fit) * k // size
        while n_gangs < n_most:
            n = (n_gangs + n_most + 1) // 2
            if sum(min(each, n) for each in fit) >= size // k * n:
                n_gangs = n
            else:
                n_most = n - 1
        return n_gangs


def _by_node(slots: Iterable[Slot]) -> dict[str, list[Slot]]:
    found: dict[str, list[Slot]] = {}
    for slot in slots:
        found.setdefault(slot.node, []).append(slot)
    return found
