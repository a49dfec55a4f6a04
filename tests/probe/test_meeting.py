"""Nodes that meet: by the token, with the same command, and with a reason where they do not."""

import datetime
import functools
import socket
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from torch import distributed

from autotune.fleet.node.ports import lease_port
from autotune.probe import hub, meeting, wire
from autotune.probe.meeting import Meeting, MeetingError
from autotune.probe.nodes import Nodes
from tests.trials import wait_until

TOKEN = "e3b7a91c5d20f846b1a7c2"
_KEY_OF = functools.cache(wire.key_of)  # slow on purpose
ABOUT = {"accelerator": "cpu", "ranks": 1}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "POLL_S", 0.1)
    monkeypatch.setattr(meeting, "key_of", _KEY_OF)
    monkeypatch.setattr(meeting, "_AGAIN_S", 0.02)


@pytest.fixture
def port() -> Any:
    lease = lease_port()
    yield lease.port
    lease.release()


@pytest.fixture
def come() -> Any:
    """Make one rank of a node come; who came leaves at the end."""
    met: list[Meeting] = []

    def make(
        place: Nodes, *, local_rank: int = 0, per_node: int = 1, about: Any = ABOUT
    ) -> Meeting:
        made = Meeting(place, local_rank=local_rank, per_node=per_node, about=about)
        met.append(made)
        return made

    yield make
    for each in met:
        each.leave()


def nodes(port: int, rank: int, **changes: Any) -> Nodes:
    about = {"count": 2, "rank": rank, "address": "127.0.0.1", "port": port, "interface": "lo"}
    return Nodes(**{**about, "token": TOKEN, "wait_s": 20.0, **changes})


def both(*calls: Callable[[], Any]) -> list[Any]:
    """What each call returned or raised, all at the same time."""
    found: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        try:
            found[index] = calls[index]()
        except MeetingError as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def agreed(*met: Meeting) -> list[Any]:
    return both(*(lambda one=one: one.agree({"quick": one.rank == 0}) for one in met))


def test_all_measure_what_node_0_wants(port: int, come: Any) -> None:
    found = agreed(come(nodes(port, 0)), come(nodes(port, 1)))
    assert found == [{"quick": True}, {"quick": True}]


def test_a_node_may_come_before_node_0(port: int, come: Any) -> None:
    second = both(lambda: come(nodes(port, 1)), lambda: come(nodes(port, 0)))
    assert agreed(*second) == [{"quick": True}, {"quick": True}]


def test_another_token_is_refused_at_once_and_told_to_node_0(port: int, come: Any) -> None:
    first = come(nodes(port, 0, wait_s=0.2))
    with pytest.raises(MeetingError, match="another token than this node") as refused:
        come(nodes(port, 1, token="0f9b7c2d4e6a81357924ce"))
    assert TOKEN not in str(refused.value)
    wait_until(first.strangers, "the stranger is noted")
    (line,) = first.strangers()
    assert line == "a stranger at 127.0.0.1 did not know the token (once: had another token)"
    with pytest.raises(MeetingError, match=r"no sign of node 1 of 2.*; a stranger at 127"):
        first.agree({})


@pytest.mark.parametrize(
    ("place", "about", "said"),
    [
        ({}, {"ranks": 4}, "ranks: 4 on node 1, 1 on node 0"),
        ({}, {"accelerator": "cuda"}, "accelerator: cuda on node 1, cpu on node 0"),
        ({}, {"accelerator": "\x1b[31m"}, 'accelerator: "\\u001b[31m" on node 1, cpu on node 0'),
        ({}, {"accelerator": ["x" * 5000]}, 'accelerator: ["xxx'),
        ({"count": 3}, {}, "nodes: 3 on node 1, 2 on node 0"),
    ],
)
def test_what_differs_is_named(place: Any, about: Any, said: str, port: int, come: Any) -> None:
    found = agreed(come(nodes(port, 0)), come(nodes(port, 1, **place), about={**ABOUT, **about}))
    for error in map(str, found):
        assert said in error
        assert error.isprintable()
        assert len(error) < 300


def test_a_node_that_does_not_come_is_named(port: int, come: Any) -> None:
    with pytest.raises(MeetingError, match="node 0 did not answer"):
        come(nodes(port, 1, wait_s=0.2))
    with pytest.raises(MeetingError, match=f"no sign of node 1, 2 of 3 at port {port}"):
        come(nodes(port, 0, count=3, wait_s=0.2)).agree({})


def claimed(first: Meeting, node: int) -> None:
    """Wait until a node is known to node 0."""
    served = first._hub
    assert served is not None
    wait_until(lambda: (node, 0) in served._ranks, f"node {node} is there")


def test_a_number_is_one_node_s_alone(port: int, come: Any) -> None:
    first, second, again, third = (come(nodes(port, rank, count=3)) for rank in (0, 1, 1, 2))

    def newcomer() -> None:
        claimed(first, 1)
        with pytest.raises(MeetingError, match="two nodes say that they are --node-rank 1"):
            again.agree({})
        # The one that was there first goes on, and so do all the others.
        assert agreed(first, third) == [{"quick": True}] * 2

    found = both(newcomer, lambda: second.agree({}))
    assert found == [None, {"quick": True}]
    assert first.strangers() == [
        "a node at 127.0.0.1 knew the token and was refused (once: says that it is node 1, which "
        "is there already)"
    ]


@pytest.mark.parametrize(
    ("node", "local"),
    [(2, 0), (-1, 0), (0, 1), (1, 2), (2**70, 0), ("1", 0), (True, 0), (1, None)],
)
def test_a_rank_out_of_range_is_refused_and_named(
    node: Any, local: Any, port: int, come: Any
) -> None:
    first, second, odd = (come(nodes(port, rank)) for rank in (0, 1, 1))
    with pytest.raises(MeetingError, match="node 0 refused this node: it"):
        odd._link.ask("join", node=node, local=local, about=odd._about)
    assert agreed(first, second) == [{"quick": True}] * 2
    (line,) = first.strangers()
    assert line.startswith("a node at 127.0.0.1 knew the token and was refused")


def test_a_node_that_ends_is_named_to_those_that_wait(port: int, come: Any) -> None:
    # The fourth never comes.
    first, second, third = (come(nodes(port, rank, count=4)) for rank in (0, 1, 2))

    def ends() -> None:
        claimed(first, 1)
        second._link._connection.shutdown(socket.SHUT_RDWR)

    found = both(lambda: first.agree({}), lambda: second.agree({}), lambda: third.agree({}), ends)
    assert str(found[0]) == str(found[2]) == "node 1 has ended; its own output names the cause"


def test_a_node_whose_first_has_gone_says_so(port: int, come: Any) -> None:
    first, second = come(nodes(port, 0)), come(nodes(port, 1))
    first.leave()
    with pytest.raises(MeetingError, match="node 0 has ended"):
        second.agree({})


def test_torch_s_store_keeps_what_ranks_tell_each_other(port: int, come: Any) -> None:
    first, second = come(nodes(port, 0)), come(nodes(port, 1))
    agreed(first, second)
    ours, theirs = first.store(), second.store()
    ours.set("a", b"\x00\xff")
    assert theirs.get("a") == b"\x00\xff"
    assert [ours.add("n", 2), theirs.add("n", 3)] == [2, 5]
    assert ours.check(["a"])
    assert not ours.check(["a", "b"])
    assert ours.compare_set("c", "", "1") == b"1"
    assert theirs.compare_set("c", "2", "3") == b"1"
    assert ours.delete_key("c")
    assert not ours.delete_key("c")
    assert ours.num_keys() == 2
    found = both(lambda: ours.get("late"), lambda: theirs.set("late", "here"))
    assert found == [b"here", None]
    with pytest.raises(distributed.DistStoreError):
        ours.wait(["never"], datetime.timedelta(seconds=0.05))
    for question in ({}, {"keys": 3}, {"keys": ["x" * 9000]}, {"keys": ["torch/a"], "amount": 1}):
        with pytest.raises(MeetingError, match="question"):
            first._link.ask("add", **question)


def test_who_has_the_token_and_has_not_joined_is_told_nothing(port: int, come: Any) -> None:
    first, second, third = (come(nodes(port, rank, count=3)) for rank in (0, 1, 2))
    for question in ("gathered", "report", "get", "set"):
        with pytest.raises(MeetingError, match="a rank joins first"):
            third._link.ask(question, keys=["a"], value="")
    assert agreed(first, second, third) == [{"quick": True}] * 3


HELLO = wire.MAGIC + bytes(wire.ANSWER_BYTES - len(wire.MAGIC))
STRANGERS = {
    "spoke TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "spoke HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "spoke another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "had another token": HELLO,
    "went before it had finished": HELLO[:40],
    "said nothing": b"",
}


def called(port: int, said: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.sendall(said)
    return connection


@pytest.mark.parametrize("said", STRANGERS)
def test_a_stranger_is_named_by_what_it_did_and_never_by_its_words(
    said: str, port: int, come: Any
) -> None:
    first = come(nodes(port, 0))
    with called(port, STRANGERS[said]) as connection:
        connection.shutdown(socket.SHUT_WR)
        wait_until(first.strangers, "the stranger is turned away")
    second = come(nodes(port, 1))
    assert agreed(first, second) == [{"quick": True}] * 2
    assert first.strangers() == [f"a stranger at 127.0.0.1 did not know the token (once: {said})"]


@pytest.mark.parametrize(
    "said",
    [
        *(b"\0" * 4096, b"\xff" * 4096, b"\xff\xff\xff\xff" + b"x" * 100, b"\n" * 9, b"\x80\x04."),
        *(HELLO + b"\xff" * 5000, HELLO * 50, wire.MAGIC[:-1] + b"!", b'{"do": "join"}' * 20),
    ],
)
def test_garbage_ends_its_own_connection_alone(said: bytes, port: int, come: Any) -> None:
    first = come(nodes(port, 0))
    with called(port, said):
        wait_until(first.strangers, "the stranger is turned away")
        assert agreed(first, come(nodes(port, 1))) == [{"quick": True}] * 2
    (line,) = first.strangers()
    assert line.isprintable()


def test_strangers_that_stay_delay_no_node(
    port: int, come: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than may be open, half-open and slow ones, before, between and while nodes come."""
    monkeypatch.setattr(hub, "MAX_STRANGERS", 4)
    first = come(nodes(port, 0))
    silent = [called(port, b"") for _ in range(10)]
    slow = [called(port, HELLO[:n]) for n in range(1, 10)]
    second = come(nodes(port, 1))
    assert agreed(first, second) == [{"quick": True}] * 2
    (line,) = first.strangers()
    assert "too many connections at once" in line
    served = first._hub
    assert served is not None
    # Once all are there, nobody listens, and no stranger is left.
    wait_until(lambda: len(served._peers) == 2, "strangers are let go")
    with pytest.raises(OSError, match="refused"):
        called(port, b"")
    for connection in (*silent, *slow):
        connection.close()


def test_a_stranger_that_is_late_is_turned_away(
    port: int, come: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = come(nodes(port, 0))
    served = first._hub
    assert served is not None
    with called(port, b""), called(port, HELLO[:20]):
        wait_until(
            lambda: len(served._peers) == 3 and any(peer.said for peer in [*served._peers]),
            "both are there, and one has begun",
        )
        monkeypatch.setattr(hub, "STRANGER_S", 0.0)
        wait_until(lambda: len(served._peers) == 1, "both are turned away")
    assert first.strangers() == [
        "a stranger at 127.0.0.1 did not know the token (2 times: did not finish in time, said "
        "nothing)"
    ]


def test_addresses_of_strangers_are_bounded(port: int, come: Any) -> None:
    first = come(nodes(port, 0))
    served = first._hub
    assert served is not None
    for number in range(hub.MAX_NAMED + 7):
        served._note(SimpleNamespace(address=f"10.0.0.{number}", channel=None), "said nothing")
    lines = first.strangers()
    assert len(lines) == hub.MAX_NAMED + 1
    assert lines[-1] == "others at more addresses were refused 7 times"


def test_a_room_that_is_full_is_the_crowd_s_own_loss() -> None:
    """Who comes from elsewhere is not turned away for those of one address."""
    crowd = [stranger("10.0.0.9", since_s) for since_s in range(hub.MAX_STRANGERS - 1)]
    alone = stranger("10.0.0.1", -1.0)
    turned_away: list[Any] = []
    served: Any = SimpleNamespace(
        _peers={*crowd, alone}, _turn_away=lambda peer, what: turned_away.append(peer)
    )
    hub.Hub._make_room(served)
    assert turned_away == crowd[:1]


def stranger(address: str, since_s: float) -> Any:
    made = hub._Peer.__new__(hub._Peer)
    made.address, made.since_s, made.channel = address, since_s, None
    return made


GREETING = wire.Greeting.new(wire.new_session()).encode()


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n" * 20, "no probe of this version"),
        (GREETING + b"+" + bytes(32), "does not know the token"),
    ],
    ids=["another protocol", "another token"],  # the greeting's own bytes are random
)
def test_what_answers_in_place_of_node_0_has_to_know_the_token(
    reply: bytes, said: str, port: int
) -> None:
    """Nothing is told to it."""
    heard = bytearray()

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(reply)
            try:
                while data := connection.recv(4096):
                    heard.extend(data)
            except ConnectionResetError:
                pass  # it went without reading all of this

    with socket.create_server(("127.0.0.1", port)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(MeetingError, match=said):
            Meeting(nodes(port, 1), local_rank=0, per_node=1, about=ABOUT)
        thread.join()
    assert TOKEN.encode() not in heard
    assert len(heard) <= wire.ANSWER_BYTES


def test_a_port_that_is_taken_is_named(port: int, come: Any) -> None:
    come(nodes(port, 0))
    with pytest.raises(MeetingError, match=f"cannot listen at port {port}"):
        come(nodes(port, 0))
