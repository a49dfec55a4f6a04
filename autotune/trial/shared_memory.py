"""Shared memory of a CPU rank, which is no private data: seen from within, and by its node."""

import contextlib
import glob
import os
from collections.abc import Sequence

LIFTED = 2**62
"""Soft limit of private data (`RLIMIT_DATA`) of a rank that has lifted it itself, because nothing
is measured any more: a limit that somebody else has raised still counts."""
_FOLDER = "/dev/shm"
BLOCK_BYTES = 512
"""Unit of `st_blocks`, whatever the block size of the file system."""
_NOTICED_BYTES = 2**20
"""Change of shared memory that is noticed: less comes from pages of code and semaphores."""


class SharedMemory:
    """Shared memory that a process has mapped and touched, without the engine's own."""

    def __init__(self, process: str, segments: Sequence[str]) -> None:
        self._folder = f"/proc/{process}"
        self._segments = segments
        self._seen_bytes = 0
        self._bytes = 0

    def read(self) -> int:
        with open(f"{self._folder}/status", encoding="utf-8", errors="replace") as file:
            lines = [line for line in file if line.startswith(("RssShmem:", "HugetlbPages:"))]
        found = sum(int(line.split()[1]) * 1024 for line in lines)
        # After the first reading: what the process has of the segments is in them by now.
        self._bytes = max(0, found - self.segment_bytes()) if found else 0
        if self._bytes < _NOTICED_BYTES:
            self._bytes = 0
        return self._bytes

    def read_if_grown(self, shared_bytes: int) -> int:
        """Bytes as they stand, read anew where all that is shared has changed noticeably."""
        if abs(shared_bytes - self._seen_bytes) >= _NOTICED_BYTES:
            self._seen_bytes = shared_bytes
            return self.read()
        return self._bytes

    def segment_bytes(self) -> int:
        """Bytes of the engine's segments, of all ranks."""
        total = 0
        for pattern in self._segments:
            for path in glob.iglob(f"{_FOLDER}/{pattern}"):
                with contextlib.suppress(OSError):
                    total += os.stat(path).st_blocks * BLOCK_BYTES
        return total
