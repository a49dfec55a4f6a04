"""Gives out gangs: n nodes x k slots, all or nothing; slots that fail are left out."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from autotune.base.errors import FleetError

MAX_FAULTS = 3
"""Platform faults in a row after which a slot is left out: a first run and two retries."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Slot:
    """One accelerator of a node; one is equal to itself alone."""

    index: int
    device: str
    """UUID of the GPU; for `cpu`, the number of its core."""
    node: str = "localhost"
    domain: str = ""
    """Name of the slots of its node that the fastest link joins (NVLink, a socket); empty: all."""
    shares: frozenset[str] = frozenset()
    """What it has in common with other slots of its node: PCIe switch, network card."""

    @property
    def name(self) -> str:
        return f"{self.node}:{self.index}"

    @cached_property
    def parts(self) -> frozenset[tuple[str, str]]:
        """Its shares, which other nodes may have under the same names."""
        return frozenset((self.node, share) for share in self.shares)


@dataclass(frozen=True, kw_only=True)
class Gang:
    """The slots of one trial: as many on each of its nodes, node after node."""

    slots: tuple[Slot, ...]
    """In the order of its ranks: those that the fastest link joins come one after the other, so
    that the innermost groups of ranks (tensor parallel ones) stay within it."""

    @property
    def nodes(self) -> dict[str, list[Slot]]:
        """Its slots by the name of their node, in their order."""
        return _by_node(self.slots)


class GangAllocator:
    """A ledger of free slots, and of what the platform did to the trials on each."""

    def __init__(self, slots: tuple[Slot, ...], *, is_exclusive: bool = False) -> None:
        self._slots = slots
        self._places = {slot: place for place, slot in enumerate(slots)}
        self._is_exclusive = is_exclusive
        self._largest = max(map(len, _by_node(slots).values()), default=0)
        self._faults: dict[Slot, list[str]] = {slot: [] for slot in slots}
        """Candidates whose trials the platform ended there since a trial last went well."""
        self._quarantined: list[Slot] = []
        self._taken: set[Slot] = set()
        self._away: set[str] = set()
        """Names of nodes that are not there for the time being."""

    @property
    def quarantined(self) -> tuple[Slot, ...]:
        return tuple(self._quarantined)

    def per_node(self, size: int) -> int:
        """Slots of each node that a gang of this size holds: all, or the most that divide it.

        Every gang of a size has the same shape, whatever is free, so that its trials compare.
        """
        return next((k for k in range(min(size, self._largest), 0, -1) if size % k == 0), 1)

    def capacity(self, size: int) -> int:
        """How many gangs of this size fit at once when all slots are free."""
        if self._is_exclusive:
            taken: set[Slot] = set()
            n_gangs = 0
            while (gang := self._gang(size, self._free(taken))) is not None:
                taken.update(gang.slots)
                n_gangs += 1
            return n_gangs
        # No gang holds two parts of one node.
        k = self.per_node(size)
        fit = [len(on_node) // k for on_node in _by_node(self._healthy()).values()]
        n_gangs = sum(fit) // (size // k)
        while sum(min(n, n_gangs) for n in fit) < size // k * n_gangs:
            n_gangs -= 1
        return n_gangs

    def allocate(self, size: int) -> Gang:
        """Take a gang: where nothing went wrong last, in whole domains, on the fullest nodes.

        So a trial that the platform ended is tried again elsewhere, if there is room; and what is
        left over stays together for larger gangs.

        Raises:
            FleetError: Fewer slots are free than asked for.
        """
        free = self._free(self._taken)
        if (gang := self._gang(size, free)) is None:
            raise FleetError.of(
                "fleet.no_gang", size=size, n_free=len(free), n=len(self._healthy())
            )
        self._taken.update(gang.slots)
        return gang

    def release(self, gang: Gang) -> None:
        self._taken -= set(gang.slots)

    def leave(self, node: str) -> None:
        """Give out no slot of a node until it joins again."""
        self._away.add(node)

    def join(self, node: str) -> None:
        """Give out the slots of a node again; those that failed there get another chance.

        A node that was away may have been mended.
        """
        self._away.discard(node)
        self._quarantined = [slot for slot in self._quarantined if slot.node != node]
        for slot in self._slots:
            if slot.node == node:
                self._faults[slot] = []

    def judge(self, gang: Gang, candidate_hash: str, *, is_fault: bool) -> None:
        """Take note of how a trial ended; slots that fail again and again are left out.

        Faults of one candidate alone do not count, since the candidate may be what crashes. And a
        slot is left out only while a whole gang of others has not failed: what ends trials
        everywhere is no slot's fault. The gang is released before or after.
        """
        for slot in gang.slots:
            self._faults[slot] = [*self._faults[slot], candidate_hash] if is_fault else []
        if not is_fault:
            return
        sound = [slot for slot in self._healthy() if not self._faults[slot]]
        if self._gang(len(gang.slots), sound) is None:
            return
        for slot in gang.slots:
            ended = self._faults[slot]
            is_new = slot not in self._quarantined
            if is_new and len(ended) >= MAX_FAULTS and len(set(ended)) > 1:
                self._quarantined.append(slot)

    def _healthy(self) -> list[Slot]:
        left_out = set(self._quarantined)
        return [
            slot for slot in self._slots if slot not in left_out and slot.node not in self._away
        ]

    def _free(self, taken: Set[Slot]) -> list[Slot]:
        used = {part for slot in taken for part in slot.parts} if self._is_exclusive else set()
        return [
            slot
            for slot in self._healthy()
            if slot not in taken and (not used or used.isdisjoint(slot.parts))
        ]

    def _gang(self, size: int, free: Sequence[Slot]) -> Gang | None:
        """The best gang of some slots; None: they make up none."""
        k = self.per_node(size)
        parts = (_NodeShare.of(slots, k, self._faults) for slots in _by_node(free).values())
        fit = sorted((part for part in parts if part is not None), key=lambda part: part.cost)
        if not size or len(fit) < size // k:
            return None
        chosen = [slot for part in fit[: size // k] for slot in part.slots]
        chosen.sort(key=self._places.__getitem__)
        slots: list[Slot] = []
        for on_node in _by_node(chosen).values():
            # The largest domain of a node first: the groups of ranks within it stay whole.
            n_joined = Counter(slot.domain for slot in on_node)
            slots += sorted(on_node, key=lambda slot: (-n_joined[slot.domain], slot.domain))
        return Gang(slots=tuple(slots))


@dataclass(frozen=True, kw_only=True)
class _NodeShare:
    slots: tuple[Slot, ...]
    cost: tuple[int, int, int]
    """Faults there lately, domains that it touches, slots of the node that it leaves free."""

    @classmethod
    def of(
        cls, free: Sequence[Slot], size: int, faults: Mapping[Slot, Sequence[str]]
    ) -> "_NodeShare | None":
        """The best part of a node's free slots; None: they are too few."""
        if len(free) < size:
            return None
        ordered = sorted(free, key=lambda slot: len(faults[slot]))
        domains: dict[str, list[Slot]] = {}
        for slot in ordered:
            domains.setdefault(slot.domain, []).append(slot)
        smallest_first = sorted(domains.values(), key=len)
        # A domain that holds it whole, the smallest first; or as few domains as there can be.
        choices = [slots for slots in smallest_first if len(slots) >= size]
        choices.append([slot for slots in reversed(smallest_first) for slot in slots])
        choices.append(ordered)
        left = len(free) - size
        parts = (
            cls(
                slots=slots,
                cost=(sum(len(faults[s]) for s in slots), len({s.domain for s in slots}), left),
            )
            for slots in dict.fromkeys(tuple(slots[:size]) for slots in choices)
        )
        return min(parts, key=lambda part: part.cost)


def _by_node(slots: Iterable[Slot]) -> dict[str, list[Slot]]:
    found: dict[str, list[Slot]] = {}
    for slot in slots:
        found.setdefault(slot.node, []).append(slot)
    return found
