"""How the ranks of a trial find one another: by a store, which the first rank keeps.

The launcher of the first node listens before any rank starts, and its first rank serves what came
in: a rank that is earlier waits.
"""

import contextlib
import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

LOOPBACK = "127.0.0.1"
"""Where the ranks of one node find one another: no other machine reaches it."""
STORE_ENV = "AUTOTUNE_STORE"
"""Variable of the first rank alone: the number of the file by which its launcher listens."""

_ENDED, _ALL_ENDED = "autotune/ended", "autotune/all ended"
"""Keys of the store: how many ranks have ended, and that all have."""
_OTHERS_WAIT_S = 10.0
"""Time for all ranks to end once the first one has: its store is theirs, too."""
_MEET_WAIT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """Where the ranks of a trial find one another, and which of them are here."""

    address: str
    port: int
    world: int
    node: int
    """Place of this node in the gang."""
    n_nodes: int

    @property
    def n_local(self) -> int:
        """Ranks of each node."""
        return self.world // self.n_nodes

    @property
    def ranks(self) -> range:
        """Ranks here."""
        return range(self.node * self.n_local, (self.node + 1) * self.n_local)

    def listen(self) -> socket.socket | None:
        """What the ranks meet at, for the first rank; None on any other node.

        Raises:
            OSError: See `listen_on`.
        """
        return listen_on(self.port, self.address) if self.node == 0 else None

    def variables(self, rank: int, listener: socket.socket | None) -> dict[str, str]:
        """Environment of a rank, as torchrun would set it; the first one gets the listener."""
        serves = {STORE_ENV: str(listener.fileno())} if listener is not None and rank == 0 else {}
        return serves | {
            **{name: str(rank) for name in ("RANK", "ROLE_RANK")},
            "LOCAL_RANK": str(rank - self.ranks.start),
            **{name: str(self.world) for name in ("WORLD_SIZE", "ROLE_WORLD_SIZE")},
            "LOCAL_WORLD_SIZE": str(self.n_local),
            "GROUP_RANK": str(self.node),
            "GROUP_WORLD_SIZE": str(self.n_nodes),
            "ROLE_NAME": "default",
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": "none",
            # A store is there: torch must make none of its own, which every interface would reach.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }


class RankStore:
    """The ranks' store, as one rank sees it; without `open` it is nothing."""

    def __init__(self) -> None:
        """Make nothing yet: `open` imports torch."""
        self._store: Any = None

    def open(self) -> None:
        """Serve the store, in the first rank; call it before torch makes a process group.

        Raises:
            RuntimeError: It cannot be served.
        """
        if STORE_ENV in os.environ:
            file = int(os.environ.pop(STORE_ENV))  # what this rank starts serves nothing
            os.set_inheritable(file, False)
            self._store = _store(master_listen_fd=file)

    def leave(self) -> None:
        """Say that this rank has ended; the first one keeps the store until all have said so.

        Where the first rank is gone there is nobody to tell, and where another one is gone the
        first one waits for a while.
        """
        with contextlib.suppress(RuntimeError):
            store = self._store or _store()
            if store.add(_ENDED, 1) == int(os.environ["WORLD_SIZE"]):
                store.set(_ALL_ENDED, "")
            elif self._store:
                store.wait([_ALL_ENDED], timedelta(seconds=_OTHERS_WAIT_S))


def listen_on(port: int, address: str = LOOPBACK) -> socket.socket:
    """Where ranks find one another: a socket on one address, and nowhere else.

    Raises:
        OSError: The address is not of this machine, or somebody else has the port.
    """
    return socket.create_server((address, port), family=family_of(address), backlog=128)


def family_of(address: str) -> socket.AddressFamily:
    """Whether a numeric address is one of IPv6 or IPv4."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _store(**own: int) -> Any:
    """The store itself, given what listens for it, or else the way to it."""
    import torch.distributed as dist

    return dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=bool(own),
        wait_for_workers=False,
        timeout=timedelta(seconds=_MEET_WAIT_S),
        **own,
    )
