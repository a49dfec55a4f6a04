"""What a node has: devices, memory, releases, addresses; asked once, before a search.

`python -m autotune.fleet.node.inventory [INTERFACE]` answers it.
"""

import contextlib
import os
import shutil
import socket
import sys
import tempfile
import time
from dataclasses import dataclass, replace

import psutil

from autotune.base.errors import FleetError
from autotune.devices.hardware import Environment, detect_environment, version_of
from autotune.fleet.node.answers import answer
from autotune.fleet.node.places import DevicePlace, devices_here
from autotune.trial.rendezvous import LOOPBACK, family_of

REPORTED = (
    *("deepspeed", "megatron-core", "torch", "transformers", "accelerate", "peft", "psutil"),
    "pydantic",
)
"""Packages whose releases are told, beside Python's own."""


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """What a node has."""

    environment: Environment
    devices: tuple[str, ...]
    """UUIDs of its GPUs, or numbers of its cores."""
    places: tuple[DevicePlace, ...]
    """Place of each device among the others."""
    host: str
    address: str
    """Address by which others reach it."""
    interface: str
    """Network interface that has the address."""
    releases: dict[str, str]
    unix_s: float
    free_disk_bytes: int
    """Space for temporary files."""
    addresses: dict[str, list[str]]


def take_inventory(interface: str = "") -> Inventory:
    """Look at this node.

    Args:
        interface: Network interface by which the nodes reach one another; empty: the one by which
            this node was reached, or that has the address of its name.

    Raises:
        FleetError: torch is missing, or there is no such device or interface.
    """
    environment = detect_environment()
    address, found = address_of(interface)
    devices, places = devices_here(environment.accelerator)
    if environment.accelerator == "cpu":
        # Whatever trains on the cores of a node talks to others by its one interface.
        shares = (f"network interface {found}",)
        places = tuple(replace(place, shares=shares) for place in places)
    return Inventory(
        environment=environment,
        devices=devices,
        places=places,
        host=socket.gethostname(),
        address=address,
        interface=found,
        releases=releases_here(),
        unix_s=time.time(),
        free_disk_bytes=shutil.disk_usage(tempfile.gettempdir()).free,
        addresses=_addresses(),
    )


def address_of(interface: str) -> tuple[str, str]:
    """Address of this node for others, and the interface that has it.

    Raises:
        FleetError: There is no such interface, or it has no address.
    """
    known = _addresses()
    if interface:
        if not known.get(interface):
            raise FleetError(
                f"{socket.gethostname()} has no interface {interface!r} with an address",
                f"name one that every node has; here: {', '.join(sorted(known))}",
            )
        return known[interface][0], interface
    # sshd tells by which address it was reached: CLIENT PORT SERVER PORT.
    reached = os.environ.get("SSH_CONNECTION", "").split()
    wished = [reached[2]] if len(reached) == 4 else []
    with contextlib.suppress(OSError):
        for info in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            wished.append(str(info[4][0]))
    by_address = {ip: name for name, found in known.items() for ip in found}
    usable = [ip for ip in wished if ip in by_address]
    # A host's name often leads to loopback, where no other node finds it.
    outward = [ip for ip in usable if by_address[ip] != "lo"]
    elsewhere = [ip for name, found in known.items() if name != "lo" for ip in found]
    address = next(iter([*outward, *elsewhere, *usable]), LOOPBACK)
    return address, by_address.get(address, "lo")


def _addresses() -> dict[str, list[str]]:
    """Addresses by interface; those that lead nowhere else (IPv6 link-local) are left out."""
    found: dict[str, list[str]] = {}
    for name, entries in sorted(psutil.net_if_addrs().items()):
        for kind in (socket.AF_INET, socket.AF_INET6):
            of_kind = (e.address for e in entries if e.family == kind == family_of(e.address))
            if addresses := [address for address in of_kind if "%" not in address]:
                found.setdefault(name, []).extend(addresses)
    return found


def releases_here() -> dict[str, str]:
    """Releases of Python and of what is `REPORTED`, as far as it is there."""
    found = {package: version_of(package) for package in REPORTED}
    return {"python": sys.version.split()[0], **{p: v for p, v in found.items() if v is not None}}


if __name__ == "__main__":
    answer(lambda: take_inventory(*sys.argv[1:]))
