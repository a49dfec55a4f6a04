"""Removes the shared memory that DeepSpeed's CPU ranks leave behind.

At start each rank makes a segment of 66 MiB for its all-reduce (csrc/cpu/comm/shm.cpp), named by
user, master address, port and rank, and nothing ever unlinks it: /dev/shm is memory, and 100
trials would fill 13 GiB of it. The next trial on that port would also open what it finds there.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from autotune.trial.launcher import LOOPBACK

_FOLDER = Path("/dev/shm")


def remove_segments(port: int, address: str = LOOPBACK) -> None:
    """Remove those of this user's ended ranks that met at an address; nobody else may meet there.

    Args:
        port: A trial's: the caller holds its lease.
        address: As the ranks were told it.
    """
    for path in _FOLDER.glob(f"{_prefix(address)}{port}_*"):
        with contextlib.suppress(OSError):
            path.unlink()


def ports_of_segments(is_ours: Callable[[int], bool]) -> set[int]:
    """Ports of our range of which segments are left."""
    ports = set()
    for path in _FOLDER.glob(f"{_prefix()}*_*"):
        with contextlib.suppress(ValueError):
            port = int(path.name.removeprefix(_prefix()).partition("_")[0])
            if is_ours(port):
                ports.add(port)
    return ports


def _prefix(address: str = LOOPBACK) -> str:
    return f"deepspeed_allreduce_buffer_{os.getuid()}_{address}_"
