"""How ranks of several nodes find each other, and what they tell each other besides measuring.

Node 0's first rank serves one address (`autotune.probe.hub`); all ranks of all nodes, itself too,
connect there and show that they know the token. What they say from then on is signed
(`autotune.probe.wire`), also what torch says to set up its communication.
"""

import datetime
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch import distributed

from autotune.probe.hub import POLL_S, STRANGER_S, Hub
from autotune.probe.nodes import Nodes
from autotune.probe.token import TOKEN_ENV
from autotune.probe.wire import (
    GREETING_BYTES,
    NODE,
    VERDICT_BYTES,
    Channel,
    Greeting,
    Handshake,
    WireError,
    key_of,
)
from autotune.trial.rendezvous import listen_on

_ANSWER_S = 60.0
"""Time for an answer, beyond `POLL_S`: node 0 may be busy measuring."""
_AGAIN_S = 0.1
_READ_BYTES = 2**16


class MeetingError(Exception):
    """The nodes did not come together, or do not fit together."""


class Meeting:
    """The ranks of all nodes, once they have found each other."""

    def __init__(
        self, nodes: Nodes, *, local_rank: int, per_node: int, about: Mapping[str, Any]
    ) -> None:
        """Come; node 0's first rank serves. `about` has to be the same on all nodes.

        Raises:
            MeetingError: Node 0 is not there, cannot listen, or has another token.
        """
        self.nodes = nodes
        self.rank = nodes.rank * per_node + local_rank
        self.world = nodes.count * per_node
        self._local = local_rank
        self._about = {"nodes": nodes.count, **about}
        key = key_of(nodes.token)
        self._hub: Hub | None = None
        if self.rank == 0:
            try:
                listener = listen_on(nodes.port, nodes.address)
            except OSError as error:
                raise MeetingError(f"cannot listen at {self._where}: {error}") from error
            self._hub = Hub(listener, key, count=nodes.count, per_node=per_node, about=self._about)
        self._link = _connected(nodes, key, self._where)
        self._store = _Store(self._link)

    def agree(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Wait for all nodes, and see that they fit together.

        What node 0 wants measured is returned.

        Raises:
            MeetingError: A node did not come, came twice, or differs.
        """
        place = self.nodes
        until_s = time.monotonic() + place.wait_s
        self._link.ask(
            "join", node=place.rank, local=self._local, about=self._about, wanted=dict(wanted)
        )
        while "missing" in (answer := self._link.answer_to("gathered")):
            if time.monotonic() > until_s:
                missing = ", ".join(map(str, answer["missing"]))
                beside = "".join(f"; {line}" for line in self.strangers())
                raise MeetingError(
                    f"no sign of node {missing} of {place.count} at {self._where} within "
                    f"{place.wait_s:.0f} s; start the same command there with that --node-rank"
                    f"{beside}"
                )
        found: dict[str, Any] = answer["ok"]
        return found

    def store(self) -> Any:
        """The store by which torch sets up its communication."""
        # Kept here: torch holds on to its own half of the object alone.
        return distributed.PrefixStore("torch", self._store)

    def gather(self, report: Mapping[str, Any]) -> list[dict[str, Any]]:
        """On the first rank of all, the reports of all ranks in their order; elsewhere nothing.

        Raises:
            MeetingError: Node 0 has ended.
        """
        self._link.ask("report", report=dict(report))
        # Nobody may need node 0 any more once its first rank leaves.
        distributed.barrier()
        if self._hub is None:
            return []
        reports = self._hub.reports()
        return [reports[rank] for rank in range(self.world)]

    def strangers(self) -> list[str]:
        """On the first rank of all, a line for each address that was turned away."""
        return [] if self._hub is None else self._hub.strangers()

    def leave(self) -> None:
        """End the connection; on the first rank of all, everybody's."""
        self._link.close()
        if self._hub is not None:
            self._hub.close()

    @property
    def _where(self) -> str:
        return f"port {self.nodes.port} of {self.nodes.address}"


class _ToNodeZero:
    """A rank's connection to node 0, on which it asks one thing at a time."""

    def __init__(self, connection: socket.socket, channel: Channel) -> None:
        self._connection, self._channel = connection, channel
        self._lock = threading.Lock()  # torch asks from threads of its own, too

    def ask(self, what: str, **about: Any) -> Any:
        """Answer of node 0.

        Raises:
            MeetingError: It refuses, with the reason, or is not there any more.
        """
        return self.answer_to(what, **about).get("ok")

    def answer_to(self, what: str, **about: Any) -> dict[str, Any]:
        """The same as it came: with `ok`, or with `missing`."""
        with self._lock:
            try:
                self._connection.sendall(self._channel.encode({"do": what, **about}))
                answer = self._received()
            except (OSError, WireError) as error:
                self._connection.close()  # what is open on it can have no answer
                raise MeetingError(
                    f"node 0 has ended; its own output names the cause ({error})"
                ) from error
        if "error" in answer:
            raise MeetingError(str(answer["error"]))
        return answer

    def close(self) -> None:
        """End it."""
        self._connection.close()

    def _received(self) -> dict[str, Any]:
        while (message := self._channel.next_message()) is None:
            data = self._connection.recv(_READ_BYTES)
            if not data:
                raise ConnectionError("the connection was closed")
            self._channel.feed(data)
        return message


def _connected(place: Nodes, key: bytes, where: str) -> _ToNodeZero:
    """Connect, and know each other; node 0 may come later, and may be busy with strangers."""
    until_s = time.monotonic() + place.wait_s
    while True:
        try:
            return _known(place, key)
        except WireError as error:
            raise MeetingError(
                f"the program at {where} is not node 0 of this probe: {error}; give the same "
                f"{TOKEN_ENV} and the same version to all nodes"
            ) from error
        except OSError as error:
            if time.monotonic() > until_s:
                raise MeetingError(
                    f"node 0 did not answer at {where} within {place.wait_s:.0f} s, or its nodes "
                    f"are all there already ({error}); start the same command there with "
                    "--node-rank 0"
                ) from error
        time.sleep(_AGAIN_S)


def _known(place: Nodes, key: bytes) -> _ToNodeZero:
    connection = socket.create_connection((place.address, place.port), timeout=STRANGER_S)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        shaken = Handshake.answering(key, Greeting.decode(_exactly(connection, GREETING_BYTES)))
        connection.sendall(shaken.answer())
        shaken.check_verdict(_exactly(connection, VERDICT_BYTES))
        connection.settimeout(POLL_S + _ANSWER_S)
    except BaseException:
        connection.close()
        raise
    return _ToNodeZero(connection, shaken.channel(NODE))


def _exactly(connection: socket.socket, n_bytes: int) -> bytes:
    until_s = time.monotonic() + STRANGER_S
    found = b""
    while len(found) < n_bytes:
        if time.monotonic() > until_s:
            raise TimeoutError("it sends too slowly")
        data = connection.recv(n_bytes - len(found))
        if not data:
            raise ConnectionError("it closed the connection")
        found += data
    return found


class _Store(distributed.Store):  # type: ignore[misc]  # mypy does not read torch
    """torch's key-value store, held by node 0 behind the token."""

    def __init__(self, link: _ToNodeZero) -> None:
        super().__init__()
        self._link = link

    def set(self, key: str, value: str | bytes) -> None:
        """Put a value."""
        self._link.ask("set", keys=[key], value=_bytes(value).hex())

    def get(self, key: str) -> bytes:
        """A value, once it is there."""
        self.wait([key])
        return bytes.fromhex(self._link.ask("get", keys=[key]))

    def add(self, key: str, amount: int) -> int:
        """Add to a number."""
        return int(self._link.ask("add", keys=[key], amount=amount))

    def compare_set(self, key: str, expected: str | bytes, value: str | bytes) -> bytes:
        """Put a value where the expected one is; what is there then."""
        told = {"expected": _bytes(expected).hex(), "value": _bytes(value).hex()}
        return bytes.fromhex(self._link.ask("swap", keys=[key], **told))

    def delete_key(self, key: str) -> bool:
        """Remove a value; whether there was one."""
        return bool(self._link.ask("delete", keys=[key]))

    def num_keys(self) -> int:
        """How many there are."""
        return int(self._link.ask("keys", keys=[]))

    # torch's C++ asks for these two by other names than its Python.
    deleteKey, getNumKeys = delete_key, num_keys

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all are there."""
        return bool(self._link.ask("check", keys=list(keys)))

    def wait(self, keys: Sequence[str], timeout: datetime.timedelta | None = None) -> None:
        """Return once all are there."""
        until_s = time.monotonic() + (timeout or self.timeout).total_seconds()
        while not self._link.ask("wait", keys=list(keys)):
            if time.monotonic() > until_s:
                raise distributed.DistStoreError(f"{', '.join(keys)}: not there in time")

    def clone(self) -> "_Store":
        """Itself: it may be asked from any thread."""
        return self


def _bytes(value: str | bytes) -> bytes:
    return value.encode("utf-8") if isinstance(value, str) else value
