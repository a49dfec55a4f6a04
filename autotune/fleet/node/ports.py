"""Leases ports of this node, so that trials at the same time never meet on one.

A lease is a socket with a name that Linux gives to one process of the machine at a time (unix(7),
abstract sockets); it ends with that process. With it goes the shared memory that the ranks of an
engine leave behind, as its driver says (`SEGMENTS`): the next trial on that port would open what
it finds.
"""

import os
import random
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from autotune.base.errors import FleetError
from autotune.trial.rendezvous import LOOPBACK, family_of

PORTS = range(20_000, 30_000)
"""Below Linux' range for outgoing connections (32768 and up): no client takes one by chance."""
_PORT = re.compile("[0-9]{5}")
_CONNECT_S = 5.0
_SHARED_MEMORY = Path("/dev/shm")


@dataclass(kw_only=True)
class PortLease:
    """One port, held until `release`."""

    port: int
    address: str
    _name: socket.socket

    def release(self) -> None:
        """Give the port back, and the shared memory that the trial on it left."""
        remove_segments(self.port, self.address)
        self._name.close()


def lease_port(address: str = LOOPBACK) -> PortLease:
    """Find a port of an address of this node that nobody listens on and nobody leased.

    Raises:
        FleetError: None of 200 random ports is free, or see `check_reachable`.
    """
    check_reachable(address)
    for port in random.sample(PORTS, 200):
        if (lease := _try_lease(port, address)) is None:
            continue
        remove_segments(port, address)
        if not any(_left(port, address)):
            return lease
        # Another user's, whose name ours would have: the ranks would open it, or fail to.
        lease._name.close()
    raise FleetError.of("fleet.no_free_port", first=PORTS[0], last=PORTS[-1])


def check_reachable(address: str = LOOPBACK) -> None:
    """See that processes here meet at an address of this machine, as the ranks of a trial do.

    Raises:
        FleetError: It is no address of this machine, or its interface is down.
    """
    try:
        with (
            socket.create_server((address, 0), family=family_of(address)) as server,
            socket.create_connection(server.getsockname()[:2], timeout=_CONNECT_S),
        ):
            return
    except OSError as error:
        why = error.strerror or error
        if address == LOOPBACK:
            raise FleetError.of("fleet.no_loopback", address=address, why=why) from error
        raise FleetError.of("fleet.no_meeting", address=address, why=why) from error


def remove_segments(port: int, address: str = LOOPBACK) -> None:
    """Remove those of this user's ended ranks; the caller holds the port's lease."""
    for path in _left(port, address):
        with suppress(OSError):
            path.unlink()


def _left(port: int, address: str) -> list[Path]:
    patterns = segments_at(port, address)
    return [path for pattern in patterns for path in _SHARED_MEMORY.glob(pattern)]


def segments_at(port: int, address: str = LOOPBACK) -> list[str]:
    """Patterns of the segments that ranks at a port make, below /dev/shm."""
    return [f"{start}{port}_*" for start in _segments(address)]


def sweep_segments() -> None:
    """Remove what trials left whose search was killed: segments of ports that nobody leases."""
    for port in ports_of_segments():
        if (lease := _try_lease(port, LOOPBACK)) is not None:
            lease.release()


def ports_of_segments() -> set[int]:
    """Ports that may be leased, of which segments are left."""
    ports = [
        path.name.removeprefix(start).partition("_")[0]
        for start in _segments(LOOPBACK)
        for path in _SHARED_MEMORY.glob(f"{start}*_*")
    ]
    return {int(port) for port in ports if _PORT.fullmatch(port) and int(port) in PORTS}


def _segments(address: str) -> list[str]:
    """How the names of this user's segments begin, before the port."""
    return [name.format(user=os.getuid(), address=address) for name in _named_by_drivers()]


@cache
def _named_by_drivers() -> list[str]:
    found = []
    for driver in entry_points(group="autotune.drivers"):
        with suppress(Exception):  # one that cannot be loaded never ran
            found.append(getattr(driver.load(), "SEGMENTS", ""))
    return list(filter(None, found))


def _try_lease(port: int, address: str) -> PortLease | None:
    name = socket.socket(socket.AF_UNIX)
    with suppress(OSError):
        name.bind(f"\0autotune-port-{port}")
        if _is_free(port, address):
            return PortLease(port=port, address=address, _name=name)
    name.close()
    return None


def _is_free(port: int, address: str) -> bool:
    with socket.socket(family_of(address), socket.SOCK_STREAM) as probe:
        # The listener will set it too: for a minute after a killed trial the kernel keeps its
        # connections, and the shared memory that the trial left would not be swept.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
