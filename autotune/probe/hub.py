"""Node 0's side of a meeting: it lets in who knows the token, and holds what the ranks tell.

One thread serves all connections without waiting for any of them. Connections that have not shown
the token have little time and little room; where too many are open, the oldest of the address with
the most is closed. So a stranger takes no time from the nodes. When all ranks are there, nothing
listens any more, and nobody disturbs what is measured.
"""

import json
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.probe.wire import (
    ANSWER_BYTES,
    HUB,
    MAGIC,
    REFUSAL,
    Channel,
    Greeting,
    Handshake,
    WireError,
    new_session,
)

STRANGER_S = 5.0
"""Time for a connection to show the token."""
MAX_STRANGERS = 64
"""Connections that may be open without having shown it."""
MAX_NAMED = 20
"""Addresses of strangers that are told one by one."""
POLL_S = 1.0
"""Longest that a question waits here for what is not there yet."""
_TICK_S = 0.1
_READ_BYTES = 2**16
_MAX_KEY, _MAX_KEYS = 2_000, 200_000


class Hub:
    """Serves one meeting until it is closed."""

    def __init__(
        self, listener: socket.socket, key: bytes, *, count: int, per_node: int, about: Any
    ) -> None:
        """Serve.

        Args:
            listener: Where; closed as soon as all ranks are there.
            key: Of the token.
            count: Nodes.
            per_node: Ranks of each.
            about: What has to be the same on all of them, as `differs_of` compares it.
        """
        self.session = new_session()
        self._key = key
        self._count, self._per_node = count, per_node
        self._about = dict(about)
        self._lock = threading.Lock()
        self._strangers: dict[tuple[str, bool], Counter[str]] = {}
        """By address, and whether the token was known there, how often what was said."""
        self._n_unnamed = 0
        self._ranks: dict[tuple[int, int], _Peer] = {}
        self._values: dict[str, str] = {}
        self._wanted: Any = None
        self._reports: dict[int, Any] = {}
        self._failure = ""
        self._peers: set[_Peer] = set()
        self._waiting: set[_Peer] = set()
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = listener
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="probe hub", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all connections."""
        self._wake.close()
        self._thread.join()

    def strangers(self) -> list[str]:
        """A line for each address from which somebody came who was turned away."""
        with self._lock:
            lines = [
                (
                    f"a node at {address} knew the token and was refused"
                    if is_known
                    else f"a stranger at {address} did not know the token"
                )
                + f" ({_times(said.total())}: {', '.join(sorted(said))})"
                for (address, is_known), said in self._strangers.items()
            ]
            if self._n_unnamed:
                lines.append(f"others at more addresses were refused {_times(self._n_unnamed)}")
        return lines

    def reports(self) -> dict[int, Any]:
        """By rank, what was reported so far."""
        with self._lock:
            return dict(self._reports)

    def _serve(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            for peer in [*self._peers]:
                self._drop(peer)
            self._stop_listening()
            self._selector.close()
            self._woken.close()

    def _turn(self) -> bool:
        """Do what there is to do; False: it is closed."""
        is_timed = self._waiting or any(peer.channel is None for peer in self._peers)
        # Nothing wakes this thread while the ranks measure.
        for key, events in self._selector.select(timeout=_TICK_S if is_timed else None):
            if key.fileobj is self._woken:
                return False
            if key.fileobj is self._listener:
                self._accept()
                continue
            peer: _Peer = key.data
            if peer in self._peers and events & selectors.EVENT_WRITE:
                self._write(peer)
            if peer in self._peers and events & selectors.EVENT_READ:
                self._read(peer)
        self._end_the_late()
        self._answer_the_waiting()
        return True

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, address = self._listener.accept()
        except OSError:
            return  # gone again, or no file is left for it: the next one may be more lucky
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = _Peer(connection, str(address[0]), Greeting.new(self.session))
        self._make_room()
        self._peers.add(peer)
        self._selector.register(connection, selectors.EVENT_READ, peer)
        self._send(peer, peer.greeting.encode())

    def _make_room(self) -> None:
        strangers = [peer for peer in self._peers if peer.channel is None]
        if len(strangers) < MAX_STRANGERS:
            return
        ((crowded, _),) = Counter(peer.address for peer in strangers).most_common(1)
        oldest = min((p for p in strangers if p.address == crowded), key=lambda p: p.since_s)
        self._turn_away(oldest, "too many connections at once")

    def _end_the_late(self) -> None:
        late_s = time.monotonic() - STRANGER_S
        for peer in [p for p in self._peers if p.channel is None and p.since_s < late_s]:
            self._turn_away(peer, "said nothing" if not peer.said else "did not finish in time")

    def _read(self, peer: "_Peer") -> None:
        try:
            data = peer.connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._gone(peer)
            return
        try:
            if peer.channel is None:
                data = self._let_in(peer, data)
            if peer.channel is not None:
                peer.channel.feed(data)
                self._take_next(peer, peer.channel)
        except WireError as error:
            if peer.who is None:
                self._turn_away(peer, str(error))
            else:
                # On the way from a node that is known: whoever it was, that node is lost.
                self._fail(f"node {peer.who[0]}, at {peer.address}: {error}")
                self._drop(peer)

    def _let_in(self, peer: "_Peer", data: bytes) -> bytes:
        """Take a part of an answer; what follows it, once the token was shown."""
        peer.said += data
        if strange := _other_protocol(peer.said):
            raise WireError(strange)
        if len(peer.said) < ANSWER_BYTES:
            return b""
        answer, rest = bytes(peer.said[:ANSWER_BYTES]), bytes(peer.said[ANSWER_BYTES:])
        try:
            shaken = Handshake.challenging(self._key, peer.greeting, answer)
        except WireError:
            self._send(peer, REFUSAL)
            raise
        self._send(peer, shaken.verdict())
        peer.channel = shaken.channel(HUB)
        return rest

    def _take_next(self, peer: "_Peer", channel: Channel) -> None:
        """Take the next question, if one is there and none is open."""
        if peer.waits_for is None and (message := channel.next_message()) is not None:
            peer.waits_for, peer.until_s = message, time.monotonic() + POLL_S
            self._waiting.add(peer)

    def _answer_the_waiting(self) -> None:
        """Answer every question that can be, again and again: one may be what others wait for."""
        is_new = True
        while is_new:
            is_new = False
            for peer in [*self._waiting]:
                if peer not in self._peers or peer.waits_for is None or peer.channel is None:
                    self._waiting.discard(peer)
                    continue
                try:
                    answer = self._answer(peer, peer.waits_for)
                except (ValueError, TypeError):  # such as to add to what is no number
                    answer = {"error": "an unknown question"}
                if answer is None:
                    continue
                is_new = True
                self._waiting.discard(peer)
                peer.waits_for = None
                try:
                    self._send(peer, peer.channel.encode(answer))
                    self._take_next(peer, peer.channel)
                except WireError as error:
                    self._fail(f"a node at {peer.address}: {error}")
                    self._drop(peer)

    def _answer(self, peer: "_Peer", message: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer to a question; None: it waits a little longer."""
        if self._failure:
            return {"error": self._failure}
        kind = message.get("do")
        if kind == "join":
            refused = self._join(peer, message)
            return {"error": refused} if refused else {"ok": True}
        if peer.who is None:
            return {"error": "a rank joins first"}
        is_late = time.monotonic() > peer.until_s
        if kind == "gathered":
            return self._gathered(is_late)
        if kind == "report":
            with self._lock:
                self._reports[peer.who[0] * self._per_node + peer.who[1]] = message.get("report")
            return {"ok": True}
        return self._of_store(kind, message, is_late)

    def _join(self, peer: "_Peer", message: Mapping[str, Any]) -> str:
        """Why a rank may not join; empty: it has."""
        node, local = message.get("node"), message.get("local")
        said = message.get("about")
        if not _is_number(node) or not _is_number(local) or not isinstance(said, dict):
            return self._refuse(peer, "did not say which rank it is")
        assert isinstance(node, int)
        assert isinstance(local, int)
        for name, value in self._about.items():
            if said.get(name) != value:
                self._fail(
                    f"{name}: {shown(said.get(name))} on node {node}, {shown(value)} on node 0; "
                    "start the same command with the same versions everywhere"
                )
                return self._failure
        if not (0 <= node < self._count and 0 <= local < self._per_node):
            return self._refuse(
                peer,
                f"says that it is rank {local} of node {node}, of {self._count} nodes with "
                f"{self._per_node} each",
            )
        if peer.who is not None or (node, local) in self._ranks:
            self._refuse(peer, f"says that it is node {node}, which is there already")
            return f"two nodes say that they are --node-rank {node}"
        peer.who = (node, local)
        self._ranks[peer.who] = peer
        if peer.who == (0, 0):
            self._wanted = message.get("wanted")
        if self._is_whole:
            self._stop_listening()
        return ""

    @property
    def _is_whole(self) -> bool:
        return len(self._ranks) == self._count * self._per_node

    def _gathered(self, is_late: bool) -> dict[str, Any] | None:
        if self._is_whole:
            return {"ok": self._wanted}
        if not is_late:
            return None
        missing = {
            node
            for node in range(self._count)
            for local in range(self._per_node)
            if (node, local) not in self._ranks
        }
        return {"missing": sorted(missing)}

    def _of_store(
        self, kind: object, message: Mapping[str, Any], is_late: bool
    ) -> dict[str, Any] | None:
        """What torch asks of its key-value store; values are hexadecimal."""
        keys, value = message.get("keys"), message.get("value")
        if not _are_keys(keys) or (value is not None and not isinstance(value, str)):
            return {"error": "a question without keys"}
        assert isinstance(keys, list)
        is_there = all(key in self._values for key in keys)
        if kind == "check":
            return {"ok": is_there}
        if kind == "wait":
            return {"ok": is_there} if is_there or is_late else None
        (key,) = keys[:1] or [""]
        if len(self._values) >= _MAX_KEYS and key not in self._values:
            return {"error": f"more than {_MAX_KEYS} keys"}
        if kind == "set" and value is not None:
            self._values[key] = value
            return {"ok": True}
        if kind == "get":
            return {"ok": self._values.get(key)}
        if kind == "delete":
            return {"ok": self._values.pop(key, None) is not None}
        if kind == "keys":
            return {"ok": len(self._values)}
        if kind == "swap" and value is not None and isinstance(message.get("expected"), str):
            # As torch's own: what is not there yet is taken for what nothing was expected of.
            if self._values.get(key, "") == message["expected"]:
                self._values[key] = value
            return {"ok": self._values.get(key, message["expected"])}
        if kind == "add" and _is_number(message.get("amount")):
            before = bytes.fromhex(self._values.get(key, ""))
            total = int(before or b"0") + int(message["amount"])
            self._values[key] = str(total).encode().hex()
            return {"ok": total}
        return {"error": "an unknown question"}

    def _gone(self, peer: "_Peer") -> None:
        if peer.channel is None:
            self._turn_away(
                peer, "said nothing" if not peer.said else "went before it had finished"
            )
            return
        if peer.who is not None:
            rank = peer.who[0] * self._per_node + peer.who[1]
            if rank not in self._reports:
                self._fail(f"node {peer.who[0]} has ended; its own output names the cause")
        self._drop(peer)

    def _fail(self, why: str) -> None:
        """End the meeting: every question from now on is answered with the reason."""
        self._failure = self._failure or why

    def _refuse(self, peer: "_Peer", what: str) -> str:
        """Turn away one that has the token; what it claimed is told beside the strangers."""
        self._note(peer, what)
        return f"node 0 refused this node: it {what}"

    def _turn_away(self, peer: "_Peer", what: str) -> None:
        self._note(peer, what)
        self._drop(peer)

    def _note(self, peer: "_Peer", what: str) -> None:
        who = (peer.address, peer.channel is not None)
        with self._lock:
            if who in self._strangers or len(self._strangers) < MAX_NAMED:
                self._strangers.setdefault(who, Counter())[what] += 1
            else:
                self._n_unnamed += 1

    def _send(self, peer: "_Peer", data: bytes) -> None:
        peer.unsent += data
        self._write(peer)

    def _write(self, peer: "_Peer") -> None:
        try:
            sent = peer.connection.send(peer.unsent) if peer.unsent else 0
            del peer.unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            return  # its end is read in its turn
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        if peer in self._peers:
            self._selector.modify(peer.connection, events, peer)

    def _drop(self, peer: "_Peer") -> None:
        self._peers.discard(peer)
        self._waiting.discard(peer)
        self._selector.unregister(peer.connection)
        peer.connection.close()

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
            for peer in [p for p in self._peers if p.channel is None]:
                self._drop(peer)


class _Peer:
    """A connection."""

    def __init__(self, connection: socket.socket, address: str, greeting: Greeting) -> None:
        self.connection, self.address, self.greeting = connection, address, greeting
        self.since_s = time.monotonic()
        self.said = bytearray()
        """Part of its answer."""
        self.unsent = bytearray()
        self.channel: Channel | None = None
        """None: it has not shown the token."""
        self.who: tuple[int, int] | None = None
        """Node and local rank; None: it has not joined."""
        self.waits_for: Mapping[str, Any] | None = None
        self.until_s = 0.0


def shown(value: Any) -> str:
    """A value of another node as a line may hold it."""
    is_plain = isinstance(value, str) and value.isascii() and value.isprintable()
    return (value if is_plain else json.dumps(value))[:80]


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62


def _are_keys(keys: object) -> bool:
    return isinstance(keys, Sequence) and all(
        isinstance(key, str) and len(key) <= _MAX_KEY for key in keys
    )


def _other_protocol(said: bytes | bytearray) -> str:
    """What somebody speaks that is no probe; empty: it may become one."""
    if MAGIC.startswith(bytes(said[: len(MAGIC)])):
        return ""
    if said[:1] == b"\x16":
        return "spoke TLS"
    if bytes(said[:4]) in (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"CONN", b"PRI "):
        return "spoke HTTP"
    return "spoke another protocol"
