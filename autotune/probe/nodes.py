"""Several nodes that are measured together: where they meet, and by which interface they talk."""

import dataclasses
import ipaddress
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from autotune.base.errors import JobError
from autotune.probe.token import read_token
from autotune.trial.rendezvous import listen_on

_HOST_HINT = "name node 0 by an address that the other nodes reach, as HOST:PORT"


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Number of this node, and the address where all of them meet."""

    count: int
    rank: int
    address: str
    """Address of node 0, in digits."""
    port: int
    interface: str
    """Interface of this node by which it reaches that address."""
    token: str = field(repr=False)
    """The secret by which they know each other."""
    wait_s: float = 120.0
    """Time for the other nodes to come: people start them one after the other."""

    def without_token(self) -> dict[str, Any]:
        """Its fields but the secret, for a command line: every user of the machine reads those."""
        found = dataclasses.asdict(self)
        del found["token"]
        return found


def nodes_of(
    count: int, rank: int | None, master: str | None, token_file: Path | None = None
) -> Nodes | None:
    """Read what the command line says of the nodes; None where this machine is all there is.

    Raises:
        JobError: A flag is missing or makes no sense, there is no token or one that can be
            guessed, or the address is not reached from here or, on node 0, not its own.
    """
    if count < 1:
        raise JobError(f"--nodes {count}: not above zero", "how many nodes take part")
    if count == 1:
        given = (("--node-rank", rank), ("--master", master), ("--token-file", token_file))
        for flag, value in given:
            if value is not None:
                raise JobError(f"{flag} {value}: with one node", "say how many with --nodes")
        return None
    if rank is None or not 0 <= rank < count:
        said = "missing" if rank is None else f"{rank}"
        raise JobError(
            f"--node-rank: {said}, of {count} nodes", f"0 to {count - 1}, each on one node"
        )
    token = read_token(token_file)
    address, port = _resolved(master)
    if rank == 0:
        _check_own(address, port)
    return Nodes(
        count=count,
        rank=rank,
        address=address,
        port=port,
        interface=_interface_towards(address, port),
        token=token,
    )


def _resolved(master: str | None) -> tuple[str, int]:
    if master is None:
        raise JobError("--master: missing", _HOST_HINT)
    try:
        parts = urlsplit(f"//{master}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    beside = (parts.path, parts.query, parts.fragment, parts.username)
    if not host or not port or any(beside):
        raise JobError(f"--master {master!r}: is no HOST:PORT", _HOST_HINT)
    try:
        address = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError) as error:
        raise JobError(f"--master {master}: {host} is not found: {error}", _HOST_HINT) from error
    found = ipaddress.ip_address(address.split("%")[0])
    # The unspecified address is all of this machine's: the store would be open to every network.
    if found.is_loopback or found.is_unspecified or found.is_multicast:
        raise JobError(
            f"--master {master}: {host} is {address} here, by which no other node reaches it",
            _HOST_HINT,
        )
    return address, port


def _check_own(address: str, port: int) -> None:
    try:
        listen_on(port, address).close()
    except OSError as error:
        raise JobError(
            f"--master: node 0 cannot listen on port {port} of {address}: "
            f"{error.strerror or error}",
            "node 0 is the machine with that address: give any other one another --node-rank; on "
            "node 0 choose a port that is free",
        ) from error


def _interface_towards(address: str, port: int) -> str:
    """Interface of this machine by which packets to an address leave it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asked:
            asked.connect((address, port))  # sends nothing
            own = asked.getsockname()[0]
    except OSError as error:
        raise JobError(
            f"--master {address}: no way there from here: {error.strerror or error}", _HOST_HINT
        ) from error
    found = [
        name
        for name, addresses in psutil.net_if_addrs().items()
        if own in [each.address.split("%")[0] for each in addresses]
    ]
    if not found:
        raise JobError(f"--master {address}: no interface here has {own}", _HOST_HINT)
    return found[0]
