"""Handshake and frames by which nodes of a probe know each other, and what they exchange.

Node 0 challenges whoever connects; who answers has to know the token, and so has node 0. Every
frame after that carries an HMAC over the meeting, its sender, its number and its payload, with
keys of this connection alone: a frame of another meeting, of the other direction, or one that
comes twice, is refused. Lengths are bounded before anything is read, and payloads are JSON.

Nothing here opens a socket: `autotune.probe.hub` serves, `autotune.probe.meeting` connects.
"""

import hashlib
import hmac
import json
import secrets
import struct
from dataclasses import dataclass
from typing import Any

MAGIC = b"autotune probe 2\n"
_SESSION_BYTES, _NONCE_BYTES = 16, 32
_MAC_BYTES = hashlib.sha256().digest_size
GREETING_BYTES = len(MAGIC) + _SESSION_BYTES + _NONCE_BYTES
ANSWER_BYTES = len(MAGIC) + _NONCE_BYTES + _MAC_BYTES
VERDICT_BYTES = 1 + _MAC_BYTES
MAX_PAYLOAD_BYTES = 8 * 2**20
"""Largest payload: a rank's report has a few hundred points, of about a hundred bytes."""
_LENGTH = struct.Struct(">I")
HUB, NODE = b"hub", b"node"
"""Sender of a frame."""


class WireError(Exception):
    """Bytes that came are no message of this meeting; the error says why."""


def new_session() -> bytes:
    """Number of a meeting."""
    return secrets.token_bytes(_SESSION_BYTES)


def key_of(token: str) -> bytes:
    """The key of a token, slow to compute: one that was seen at work is slow to guess."""
    salt = b"autotune probe"
    return hashlib.scrypt(token.encode("utf-8"), salt=salt, n=2**14, r=8, p=1, dklen=32)


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """First message of node 0: the meeting, and a challenge for this connection."""

    session: bytes
    challenge: bytes

    @classmethod
    def new(cls, session: bytes) -> "Greeting":
        """One with a challenge that was never there before."""
        return cls(session=session, challenge=secrets.token_bytes(_NONCE_BYTES))

    def encode(self) -> bytes:
        """As it is sent."""
        return MAGIC + self.session + self.challenge

    @classmethod
    def decode(cls, data: bytes) -> "Greeting":
        """Read one of `GREETING_BYTES`.

        Raises:
            WireError: It is none.
        """
        if not data.startswith(MAGIC) or len(data) != GREETING_BYTES:
            raise WireError("it is no probe of this version")
        said = data[len(MAGIC) :]
        return cls(session=said[:_SESSION_BYTES], challenge=said[_SESSION_BYTES:])


class Handshake:
    """What both sides compute of a greeting, the token's key and the nonce of who connects."""

    def __init__(self, key: bytes, greeting: Greeting, nonce: bytes) -> None:
        self._key = key
        self._session = greeting.session
        self._transcript = greeting.session + greeting.challenge + nonce
        self._nonce = nonce

    @classmethod
    def answering(cls, key: bytes, greeting: Greeting) -> "Handshake":
        """Proof of the node that connects."""
        return cls(key, greeting, secrets.token_bytes(_NONCE_BYTES))

    @classmethod
    def challenging(cls, key: bytes, greeting: Greeting, answer: bytes) -> "Handshake":
        """That of node 0, from an answer of `ANSWER_BYTES`.

        Raises:
            WireError: Who answered does not know the token, or speaks something else.
        """
        if not answer.startswith(MAGIC):
            raise WireError("spoke another protocol")
        nonce = answer[len(MAGIC) : len(MAGIC) + _NONCE_BYTES]
        made = cls(key, greeting, nonce)
        if not hmac.compare_digest(answer[-_MAC_BYTES:], made._proof(NODE)):
            raise WireError("had another token")
        return made

    def answer(self) -> bytes:
        """Proof for node 0 that the token is known."""
        return MAGIC + self._nonce + self._proof(NODE)

    def verdict(self) -> bytes:
        """Proof for the node that connects that node 0 knows the token."""
        return b"+" + self._proof(HUB)

    def check_verdict(self, verdict: bytes) -> None:
        """See that node 0 knows the token, and has taken this answer for one that does.

        Raises:
            WireError: It does not, or has not.
        """
        if verdict == REFUSAL:
            raise WireError("it has another token than this node")
        if not hmac.compare_digest(verdict, self.verdict()):
            raise WireError("it does not know the token")

    def channel(self, sender: bytes) -> "Channel":
        """The frames from here on, for the side of that name."""
        other = NODE if sender == HUB else HUB
        return Channel(
            outgoing=_OneWay(self._line_key(sender), self._session, sender),
            incoming=_OneWay(self._line_key(other), self._session, other),
        )

    def _proof(self, sender: bytes) -> bytes:
        return _mac(self._key, b"proof", sender, self._transcript)

    def _line_key(self, sender: bytes) -> bytes:
        return _mac(self._key, b"frames", sender, self._transcript)


REFUSAL = b"-" + bytes(_MAC_BYTES)
"""Verdict over an answer without the token."""


class _OneWay:
    """One direction of a connection, which counts its frames."""

    def __init__(self, key: bytes, session: bytes, sender: bytes) -> None:
        self._key, self._session, self._sender = key, session, sender
        self._count = 0

    def mac(self, payload: bytes) -> bytes:
        """HMAC of the next frame."""
        count = self._count.to_bytes(8, "big")
        self._count += 1
        return _mac(self._key, self._session, self._sender, count, payload)


class Channel:
    """Frames of a connection whose two sides know each other."""

    def __init__(self, *, outgoing: _OneWay, incoming: _OneWay) -> None:
        self._outgoing, self._incoming = outgoing, incoming
        self._buffer = bytearray()

    def encode(self, message: dict[str, Any]) -> bytes:
        """A message as it is sent.

        Raises:
            WireError: It is too long.
        """
        payload = json.dumps(message).encode("ascii")
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise WireError(f"a message of {len(payload)} bytes: at most {MAX_PAYLOAD_BYTES}")
        return _LENGTH.pack(len(payload)) + payload + self._outgoing.mac(payload)

    def feed(self, data: bytes) -> None:
        """Take bytes that came.

        Raises:
            WireError: They are more than two messages of the largest size.
        """
        self._buffer += data
        if len(self._buffer) > 2 * (MAX_PAYLOAD_BYTES + _LENGTH.size + _MAC_BYTES):
            raise WireError("sends without waiting for answers")

    def next_message(self) -> dict[str, Any] | None:
        """The next whole message that came; None: none is there yet.

        Raises:
            WireError: It is too long, not of this connection, or no object.
        """
        if len(self._buffer) < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(self._buffer)
        if size > MAX_PAYLOAD_BYTES:
            raise WireError(f"announced a message of {size} bytes: at most {MAX_PAYLOAD_BYTES}")
        end = _LENGTH.size + size
        if len(self._buffer) < end + _MAC_BYTES:
            return None
        payload = bytes(self._buffer[_LENGTH.size : end])
        mac = bytes(self._buffer[end : end + _MAC_BYTES])
        del self._buffer[: end + _MAC_BYTES]
        if not hmac.compare_digest(mac, self._incoming.mac(payload)):
            raise WireError("sent a message that is not signed with the token")
        try:
            message = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise WireError("sent a message that is no JSON") from error
        if not isinstance(message, dict):
            raise WireError("sent a message that is no object")
        return message


def _mac(key: bytes, *parts: bytes) -> bytes:
    """HMAC over parts, each with its length: no two lists of parts read the same."""
    made = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        made.update(_LENGTH.pack(len(part)))
        made.update(part)
    return made.digest()
