"""Memory that is held as a file and not mapped: memfd, files of tmpfs, System V segments.

What is mapped stands in the size of the process that maps it. These stand nowhere, and are found
by who has them open, or has made them.
"""

import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from autotune.trial.shared_memory import BLOCK_BYTES

_LEAST_BYTES = 2**20
"""Size of a file that is looked at."""
_OLD_S = 2.0
"""Age at which it is read anew which of the same files are mapped: that takes milliseconds."""
_IN_MEMORY = {"tmpfs", "ramfs", "hugetlbfs"}
_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ ([0-9a-f]+):([0-9a-f]+) (\d+)")
_SEGMENTS = Path("/proc/sysvipc/shm")

File = tuple[int, int]
"""Device and inode."""


class FilesInMemory:
    """Bytes that the processes of one rank hold in such files."""

    def __init__(
        self, apart: Callable[[str], bool], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Look at any; files `apart`, by path, are no memory of the rank's."""
        self._apart = apart
        self._clock = clock
        self._read: dict[File, int] = {}
        self._read_at_s = 0.0
        self._mapped_bytes = 0

    def bytes_of(self, pids: Collection[int], ever: Collection[int]) -> int:
        """Bytes that none of some processes has mapped, and that they have open.

        Args:
            pids: Those that are there.
            ever: With those that were: a segment belongs to who made it.
        """
        return self._open_bytes(pids) + sum(
            segment.resident_bytes
            for segment in segments()
            if segment.maker in ever and not segment.attached
        )

    def _open_bytes(self, pids: Collection[int]) -> int:
        found: dict[File, int] = {}
        for pid in pids:
            found.update(self._open_in(pid))
        if not found:
            return 0
        now_s = self._clock()
        if found != self._read or now_s - self._read_at_s >= _OLD_S:
            self._mapped_bytes = _mapped_bytes(pids, found)
            self._read, self._read_at_s = found, now_s
        return max(0, sum(found.values()) - self._mapped_bytes)

    def _open_in(self, pid: int) -> Iterator[tuple[File, int]]:
        folder = f"/proc/{pid}/fd"
        with suppress(OSError):  # it has ended
            for number in os.listdir(folder):
                with suppress(OSError):  # it was closed meanwhile
                    status = os.stat(f"{folder}/{number}")
                    size_bytes = status.st_blocks * BLOCK_BYTES
                    if status.st_dev not in _devices() or size_bytes < _LEAST_BYTES:
                        continue
                    # One that is only read, and has a name, was there before: a data set.
                    is_counted = not status.st_nlink or _is_written(pid, number)
                    is_file = stat.S_ISREG(status.st_mode)
                    if (
                        is_file
                        and is_counted
                        and not self._apart(os.readlink(f"{folder}/{number}"))
                    ):
                        yield (status.st_dev, status.st_ino), size_bytes


class Segment:
    """A System V segment of shared memory, as a line of the kernel's tells it."""

    def __init__(self, line: str) -> None:
        fields = line.split()
        self.number, self.maker = int(fields[1]), int(fields[4])
        self.attached, self.user = int(fields[6]), int(fields[7])
        self.resident_bytes = int(fields[14])


def segments() -> list[Segment]:
    """Files of this machine; none where the kernel has no such thing."""
    with suppress(OSError, ValueError, IndexError):
        return [Segment(line) for line in _SEGMENTS.read_text().splitlines()[1:]]
    return []


def _is_written(pid: int, number: str) -> bool:
    text = Path(f"/proc/{pid}/fdinfo/{number}").read_text()
    flags = next(line.split()[1] for line in text.splitlines() if line.startswith("flags:"))
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY


def _mapped_bytes(pids: Collection[int], files: Collection[File]) -> int:
    total_bytes = 0
    for pid in pids:
        with suppress(OSError), open(f"/proc/{pid}/smaps", errors="replace") as lines:
            is_one = False
            for line in lines:
                if (mapping := _MAPPING.match(line)) is not None:
                    major, minor, inode = mapping.groups()
                    is_one = (os.makedev(int(major, 16), int(minor, 16)), int(inode)) in files
                elif is_one and line.startswith("Rss:"):
                    total_bytes += int(line.split()[1]) * 1024
    return total_bytes


@cache
def _devices() -> frozenset[int]:
    """Devices whose files are memory: file systems that are mounted, and what has no name."""
    found = set()
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            mount, _, rest = line.partition(" - ")
            if rest.split()[0] in _IN_MEMORY:
                major, minor = mount.split()[2].split(":")
                found.add(os.makedev(int(major), int(minor)))
    for flags in (os.MFD_CLOEXEC, os.MFD_CLOEXEC | os.MFD_HUGETLB):
        with suppress(OSError):
            file = os.memfd_create("autotune", flags)
            found.add(os.fstat(file).st_dev)
            os.close(file)
    return frozenset(found)
