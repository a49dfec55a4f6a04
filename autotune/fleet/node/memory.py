"""Watches what CPU ranks hold outside of their private data: shared memory, and child processes.

A rank's own meter (`autotune.trial.memory`) counts its private data, and `RLIMIT_DATA` holds that
below the limit. Shared memory is no private data, and a child has a limit of its own. So the node
looks from outside, a few times a second, and a rank that goes over its limit that way is ended.

Pages are counted once. Shared memory counts where it is mapped and resident. A child counts with
what it has written and shares with nobody.

To read a share costs milliseconds, in which the process that it is of may wait: it is read when a
process has grown, and otherwise rarely. A rank without children costs some files of a line each.

What a rank orphans is adopted by its launcher, and so is found without any mark of the trial's.

Not seen: files in memory that no process has mapped, what children share with children of their
own, the page cache, memory of the kernel (pipes and sockets), what was swapped out, and what comes
and goes between two looks. A control group would count some of these, and needs one that is
delegated to this user, into which the ranks are moved: no such machine was there to try it on, so
none is made.
"""

import contextlib
import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from autotune.trial.descent import ancestors, below, children_of, parent_of
from autotune.trial.shared_memory import LIFTED, SharedMemory

PERIOD_S = 0.25
"""Time between two looks."""
_GROWN_BYTES = 4 * 2**20
"""Growth of a process after which its share is read again."""
_LEAST_BYTES = 8 * 2**20
"""Memory of all children together that counts: every trial asks programs such as `uname` for
something, and what these take must not move its figure."""
_OLD_S = 2.0
"""Age at which it is read again though the process has not grown: it may write to pages that it
shared until then."""
_PAGE_BYTES = resource.getpagesize()


@dataclass(kw_only=True)
class HeldOutside:
    """Memory that a rank held besides its private data, at the worst."""

    children_bytes: int = 0
    total_bytes: int = 0
    """Private data above the base, shared memory and children together; 0 where the rank had
    neither of the last two."""
    over: str = ""
    """Memory that went over the limit, in words; empty: none did."""


@dataclass(kw_only=True)
class _Child:
    """A process that a rank has started, directly or not."""

    read_at_s: float = -_OLD_S
    resident_bytes: int = 0
    private_bytes: int = 0
    shared_bytes: int = 0
    """Its share of shared memory."""


@dataclass(kw_only=True)
class _Rank:
    pid: int
    shared: SharedMemory
    launcher: int
    """Its parent, which adopts what it orphans; 0: that has ended."""
    cap_bytes: int | None = None
    """Its own limit as it was first seen."""
    ever: set[int] = field(default_factory=set)
    """Itself and every child of it that was seen."""
    held: HeldOutside = field(default_factory=HeldOutside)
    children: dict[int, _Child] = field(default_factory=dict)


class MemoryWatch:
    """Looks at the ranks of one trial on this node."""

    def __init__(
        self,
        *,
        limit_bytes: int | None,
        segments: Sequence[str],
        n_ranks: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watch a trial; of no rank anything is known yet.

        Args:
            limit_bytes: A rank's limit; None: it is only looked.
            segments: Patterns of the files in /dev/shm that belong to the engine.
            n_ranks: Ranks on this node.
            clock: Seconds.
        """
        self._limit_bytes = limit_bytes
        self._segments = segments
        self._n_ranks = n_ranks
        self._clock = clock
        self._ranks: dict[int, _Rank] = {}

    def is_known(self, rank: int) -> bool:
        return rank in self._ranks

    def add(self, rank: int, pid: int) -> None:
        with contextlib.suppress(OSError):  # it has ended
            launcher = parent_of(pid)
            # What has adopted the rank itself has other children, too.
            is_it = launcher not in (os.getpid(), *ancestors(os.getpid()))
            self._ranks[rank] = _Rank(
                pid=pid,
                shared=SharedMemory(str(pid), self._segments),
                launcher=launcher if is_it else 0,
                ever={pid},
            )

    def pids(self) -> set[int]:
        """Processes that belong to the ranks and were seen, whether or not they are there."""
        return {pid for rank in self._ranks.values() for pid in rank.ever}

    def held(self) -> Mapping[int, HeldOutside]:
        """Memory that each rank held besides its private data, at the worst."""
        return {rank: watched.held for rank, watched in self._ranks.items()}

    def look(self) -> int | None:
        """Look once; a rank that is over its limit, if there is one."""
        orphans = self._orphans()
        for number, rank in self._ranks.items():
            with contextlib.suppress(OSError, ValueError, IndexError):  # it ends just now
                if self._look_at(rank, orphans):
                    return number
        return None

    def _look_at(self, rank: _Rank, orphans: list[int]) -> bool:
        soft, hard = resource.prlimit(rank.pid, resource.RLIMIT_DATA)
        if self._limit_bytes is not None and not _holds(rank, soft, hard):
            return False
        data_bytes, _ = _sizes(rank.pid)
        pids = [*below(rank.pid), *orphans]
        rank.ever.update(pids)
        self._see_children(rank, pids)
        children = rank.children.values()
        children_bytes = sum(child.private_bytes for child in children)
        if children_bytes < _LEAST_BYTES:
            children_bytes = 0
        elsewhere = sum(child.shared_bytes for child in children)
        shared_bytes = rank.shared.read()
        if elsewhere:
            # What the rank has mapped as well is in both: together their shares count it once.
            together = _share_of(rank.pid)["Pss_Shmem"] + elsewhere - rank.shared.segment_bytes()
            shared_bytes = max(shared_bytes, together)
        held = rank.held
        held.children_bytes = max(held.children_bytes, children_bytes)
        outside_bytes = children_bytes + shared_bytes
        if not outside_bytes:
            return False
        limit_bytes = self._limit_bytes
        private_bytes = 0
        if limit_bytes is not None and rank.cap_bytes is not None:
            private_bytes = max(0, data_bytes - (rank.cap_bytes - limit_bytes))
        held.total_bytes = max(held.total_bytes, private_bytes + outside_bytes)
        if limit_bytes is None or private_bytes + outside_bytes <= limit_bytes:
            return False
        held.over = (
            f"out of memory: {private_bytes} bytes of private data, {shared_bytes} of shared "
            f"memory and {children_bytes} in {len(pids)} child processes are over the limit of "
            f"{limit_bytes} bytes"
        )
        return True

    def _see_children(self, rank: _Rank, pids: list[int]) -> None:
        for gone in rank.children.keys() - set(pids):
            del rank.children[gone]
        for pid in pids:
            with contextlib.suppress(OSError, ValueError, IndexError, KeyError):
                self._see(pid, rank.children.setdefault(pid, _Child()))

    def _see(self, pid: int, child: _Child) -> None:
        _, resident_bytes = _sizes(pid)
        now_s = self._clock()
        has_grown = abs(resident_bytes - child.resident_bytes) > _GROWN_BYTES
        if not has_grown and now_s - child.read_at_s < _OLD_S:
            return
        share = _share_of(pid)
        child.private_bytes = max(0, share["Private_Dirty"] - share["Pss_Shmem"])
        child.shared_bytes = share["Pss_Shmem"]
        child.read_at_s, child.resident_bytes = now_s, resident_bytes

    def _orphans(self) -> list[int]:
        """Processes of this trial whose parents have ended: the launcher has them."""
        ranks = {rank.pid for rank in self._ranks.values()}
        if len(ranks) < self._n_ranks:
            return []  # among its children are ranks that are not known yet
        found = []
        for launcher in {rank.launcher for rank in self._ranks.values()}:
            for pid in children_of(launcher):
                if pid not in ranks:
                    found += [pid, *below(pid)]
        return found


def _holds(rank: _Rank, soft: int, hard: int) -> bool:
    """True from the rank's first step on, until the rank itself lifts its limit."""
    is_limited = soft not in (resource.RLIM_INFINITY, LIFTED)
    if rank.cap_bytes is None and is_limited:
        rank.cap_bytes = soft
    if rank.cap_bytes is None or soft == LIFTED:
        return False
    # A hard limit of the machine's own is what it is lifted to. What else raised it lifts nothing.
    return soft == rank.cap_bytes or soft != hard or hard == resource.RLIM_INFINITY


def _sizes(pid: int) -> tuple[int, int]:
    """Private data and resident set of a process, in bytes."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        fields = file.read().split()
    return int(fields[5]) * _PAGE_BYTES, int(fields[1]) * _PAGE_BYTES


def _share_of(pid: int) -> dict[str, int]:
    """A process's share of what it has mapped, by kind, in bytes."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        lines = [line.split() for line in file]
    found = {line[0].rstrip(":"): int(line[1]) * 1024 for line in lines[1:] if len(line) > 1}
    if not found:
        raise ProcessLookupError(pid)
    return found
