"""Leases loopback ports, so that trials at the same time never meet on one.

A lease is a lock on a file per port in a folder that all searches of this machine share; it ends
with the process that holds it.
"""

import fcntl
import os
import random
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import FleetError

_FIRST, _LAST = 20_000, 29_999
"""Below Linux' range for outgoing connections (32768 and up): no client takes one by chance."""


@dataclass(kw_only=True)
class PortLease:
    """One port, held until `release`."""

    port: int
    _lock: int

    def release(self) -> None:
        """Give the port back."""
        os.close(self._lock)


def lease_port() -> PortLease:
    """Find a port that nobody listens on and nobody leased.

    Raises:
        FleetError: None of 200 random ports is free.
    """
    folder = Path(tempfile.gettempdir()) / f"autotune-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for port in random.sample(range(_FIRST, _LAST + 1), 200):
        lock = os.open(folder / str(port), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        if _is_free(port):
            return PortLease(port=port, _lock=lock)
        os.close(lock)
    raise FleetError(
        f"no free port found between {_FIRST} and {_LAST}", "end what listens on so many ports"
    )


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
