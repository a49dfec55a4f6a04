"""What nodes send each other: nothing is believed that the other side did not sign just now."""

from collections.abc import Callable

import pytest

from autotune.probe import wire
from autotune.probe.wire import HUB, NODE, Channel, Greeting, Handshake, WireError

KEY, OTHER_KEY = (wire.key_of(token) for token in ("one token", "another token"))


def pair(session: bytes | None = None) -> tuple[Channel, Channel]:
    """Both ends of a connection: node 0's, and another node's."""
    greeting = Greeting.new(session or wire.new_session())
    mine = Handshake.answering(KEY, Greeting.decode(greeting.encode()))
    theirs = Handshake.challenging(KEY, greeting, mine.answer())
    mine.check_verdict(theirs.verdict())
    return theirs.channel(HUB), mine.channel(NODE)


def test_both_sides_hear_what_the_other_says() -> None:
    hub, node = pair()
    for number in range(3):
        hub.feed(node.encode({"do": "x", "number": number}))
        assert hub.next_message() == {"do": "x", "number": number}
        node.feed(hub.encode({"ok": number}))
        assert node.next_message() == {"ok": number}
    assert hub.next_message() is None


def test_a_message_comes_whole_however_it_is_cut() -> None:
    hub, node = pair()
    data = node.encode({"a": "b" * 100}) + node.encode({"c": 1})
    found = []
    for at in range(len(data)):
        hub.feed(data[at : at + 1])
        if (message := hub.next_message()) is not None:
            found.append(message)
    assert found == [{"a": "b" * 100}, {"c": 1}]


def test_who_does_not_know_the_token_is_no_node_and_no_node_0() -> None:
    greeting = Greeting.new(wire.new_session())
    stranger = Handshake.answering(OTHER_KEY, greeting)
    with pytest.raises(WireError, match="another token"):
        Handshake.challenging(KEY, greeting, stranger.answer())
    node = Handshake.answering(KEY, greeting)
    with pytest.raises(WireError, match="does not know the token"):
        node.check_verdict(stranger.verdict())
    # What the node said itself proves nothing of the other side.
    with pytest.raises(WireError, match="does not know the token"):
        node.check_verdict(b"+" + node.answer()[-32:])
    with pytest.raises(WireError, match="another token"):
        node.check_verdict(wire.REFUSAL)


def test_an_answer_that_was_seen_opens_no_second_connection() -> None:
    session = wire.new_session()
    first = Greeting.new(session)
    answer = Handshake.answering(KEY, first).answer()
    Handshake.challenging(KEY, first, answer)
    for other in (Greeting.new(session), Greeting.new(wire.new_session())):
        with pytest.raises(WireError, match="another token"):
            Handshake.challenging(KEY, other, answer)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_a_changed_byte_anywhere_is_seen() -> None:
    length = len(pair()[1].encode({"seconds": 0.5}))
    for at in range(4, length):
        hub, node = pair()
        hub.feed(flipped(node.encode({"seconds": 0.5}), at))
        with pytest.raises(WireError, match="not signed"):
            hub.next_message()


def replayed(hub: Channel, node: Channel) -> bytes:
    frame = node.encode({"n": 1})
    hub.feed(frame)
    hub.next_message()
    return frame


def skipped(hub: Channel, node: Channel) -> bytes:
    node.encode({"n": 1})
    return node.encode({"n": 2})


def own(hub: Channel, node: Channel) -> bytes:
    return hub.encode({"n": 1})


def of_another_connection(hub: Channel, node: Channel) -> bytes:
    return pair()[1].encode({"n": 1})


@pytest.mark.parametrize("frame", [replayed, skipped, own, of_another_connection])
def test_a_signed_message_counts_once_in_its_place(
    frame: Callable[[Channel, Channel], bytes],
) -> None:
    hub, node = pair()
    hub.feed(frame(hub, node))
    with pytest.raises(WireError, match="not signed"):
        hub.next_message()


def test_a_message_of_another_connection_of_the_same_meeting_is_refused() -> None:
    session = wire.new_session()
    (hub, _), (_, other) = pair(session), pair(session)
    hub.feed(other.encode({"n": 1}))
    with pytest.raises(WireError, match="not signed"):
        hub.next_message()


def test_sizes_are_bounded_before_anything_is_parsed() -> None:
    hub, node = pair()
    hub.feed((wire.MAX_PAYLOAD_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(WireError, match="at most"):
        hub.next_message()
    with pytest.raises(WireError, match="at most"):
        node.encode({"a": "b" * wire.MAX_PAYLOAD_BYTES})
    fed = pair()[0]
    fed.feed(bytes(2**24))
    with pytest.raises(WireError, match="without waiting"):
        fed.feed(bytes(2**10))


@pytest.mark.parametrize(
    "payload", [b"[1]", b"nothing", b"\xff", b"[" * 10_000, b"", b"\x80\x04N."]
)
def test_a_signed_message_that_is_no_object_is_refused(payload: bytes) -> None:
    hub, node = pair()
    mac = node._outgoing.mac(payload)
    hub.feed(len(payload).to_bytes(4, "big") + payload + mac)
    with pytest.raises(WireError, match=r"no JSON|no object"):
        hub.next_message()


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4, b"\x16\x03\x01" * 40]
)
def test_what_is_no_greeting_is_refused(said: bytes) -> None:
    with pytest.raises(WireError, match="no probe"):
        Greeting.decode(said[: wire.GREETING_BYTES])
