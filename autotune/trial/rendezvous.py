"""How the ranks of a trial find one another: by a store, which the first rank keeps.

The launcher of the first node listens before any rank starts, and hands the socket to the first
rank. A rank that connects before the first one serves the store waits.
"""

import contextlib
import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from autotune.trial.variables import STORE_ENV

LOOPBACK = "127.0.0.1"
"""Where the ranks of one node find one another: no other machine reaches it."""

_ASYNC_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_ENDED, _ALL_ENDED = "autotune/ended", "autotune/all ended"
"""Keys of the store: how many ranks have ended, and that all have."""
_OTHERS_WAIT_S = 10.0
"""Time for all ranks to end once the first one has: its store is theirs, too."""
_MEET_WAIT_S = 300.0
"""Time for the first rank to serve the store, once the others connect to it."""
_BACKLOG = 4096
"""Most ranks that connect while the first one still imports; the kernel may allow fewer."""


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
        return self.world // self.n_nodes

    @property
    def ranks(self) -> range:
        return range(self.node * self.n_local, (self.node + 1) * self.n_local)

    def listen(self) -> socket.socket | None:
        """What the ranks meet at, for the first rank; None on any other node.

        Raises:
            OSError: See `listen_on`.
        """
        return listen_on(self.port, self.address) if self.node == 0 else None

    def variables(self, rank: int, listener: socket.socket | None) -> dict[str, str]:
        """Environment of a rank, as torchrun would set it; the first one gets the listener.

        torchrun's file for errors is left out: only scripts that ask torch for it write to it.
        """
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
            _ASYNC_ERRORS: os.environ.get(_ASYNC_ERRORS, "1"),
        }

    def take_part(self, rank: int, listener: socket.socket | None) -> None:
        """Make this forked process a rank; what it has of the listener is its `RankStore`'s."""
        os.environ.update(self.variables(rank, listener))
        if listener is not None and rank == 0:
            listener.detach()
        elif listener is not None:
            listener.close()


class RankStore:
    """The ranks' store, as one rank has it."""

    def __init__(self) -> None:
        """`open` makes the store: it imports torch."""
        self._store: Any = None
        self._is_first = False
        self._world = 0

    def open(self) -> None:
        """Serve the store in the first rank, and connect to it in any other.

        Call it before torch makes a process group, and before memory counts: it has a thread.

        Raises:
            RuntimeError: It cannot be served, or the first rank is gone.
        """
        import torch.distributed as dist

        served: dict[str, int] = {}
        if STORE_ENV in os.environ:
            descriptor = int(os.environ.pop(STORE_ENV))  # what this rank starts serves nothing
            os.set_inheritable(descriptor, False)
            served["master_listen_fd"] = descriptor
        self._is_first, self._world = bool(served), int(os.environ["WORLD_SIZE"])
        self._store = dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=self._is_first,
            wait_for_workers=False,
            timeout=timedelta(seconds=_MEET_WAIT_S),
            **served,
        )

    def leave(self) -> None:
        """Say that this rank has ended; the first one keeps the store until all have said so.

        Where the first rank is gone there is nobody to tell. Where another one went without a word
        the first one waits for `_OTHERS_WAIT_S`.
        """
        if self._store is None:
            return
        with contextlib.suppress(RuntimeError):
            if self._store.add(_ENDED, 1) == self._world:
                self._store.set(_ALL_ENDED, "")
            elif self._is_first:
                self._store.wait([_ALL_ENDED], timedelta(seconds=_OTHERS_WAIT_S))


def listen_on(port: int, address: str = LOOPBACK) -> socket.socket:
    """Where ranks find one another: a socket on one address, and nowhere else.

    Raises:
        OSError: The address is not of this machine, or somebody else has the port.
    """
    return socket.create_server((address, port), family=family_of(address), backlog=_BACKLOG)


def family_of(address: str) -> socket.AddressFamily:
    """Whether a numeric address is one of IPv6 or IPv4."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET
