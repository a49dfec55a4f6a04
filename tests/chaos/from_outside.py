"""Faults that somebody else brings: strangers at a probe, nodes that lie, jobs and secrets."""

import contextlib
import functools
import json
import math
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from autotune.app.consent import agree_to_job
from autotune.base.errors import FleetError, JobError
from autotune.fleet.node.ports import lease_port
from autotune.job.origin import is_inside
from autotune.probe import wire
from autotune.probe.meeting import Meeting, MeetingError
from autotune.probe.nodes import Nodes
from autotune.probe.reports import check_reports
from autotune.probe.token import weakness
from tests.chaos import planted
from tests.chaos.arena import Ground
from tests.chaos.faults import Fault, must
from tests.probe.made_up import reports
from tests.trials import wait_until

TOKEN = "e3b7a91c5d20f846b1a7c2"
_ABOUT = {"ranks": 1}
_MAGIC = wire.MAGIC
_ANSWER = _MAGIC + bytes(wire.ANSWER_BYTES - len(_MAGIC))
_STRANGERS: dict[str, tuple[bytes, str]] = {
    "says nothing and goes": (b"", "said nothing"),
    "speaks TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), "spoke TLS"),
    "speaks HTTP": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "spoke HTTP"),
    "posts a form": (b"POST /x HTTP/1.0\r\nContent-Length: 9\r\n\r\n", "spoke HTTP"),
    "speaks SSH": (b"SSH-2.0-OpenSSH_9.6\r\n", "spoke another protocol"),
    "speaks torch's store": (b"\x00\x3c\x85\xf7\x12", "spoke another protocol"),
    "announces a huge length": (b"\xff\xff\xff\xff" + bytes(100), "spoke another protocol"),
    "sends zeros": (bytes(2**16), "spoke another protocol"),
    "sends a pickle": (b"\x80\x04\x95\x1b\x00" * 20, "spoke another protocol"),
    "has another token": (_ANSWER, "had another token"),
    "floods after its answer": (_ANSWER + b"\xff" * 2**16, "had another token"),
    "goes half-way": (_ANSWER[:40], "went before it had finished"),
    "is an older version": (b"autotune probe 1\n" + bytes(64), "spoke another protocol"),
    "sends escape sequences": (b"\x1b]0;owned\x07\x1b[2J", "spoke another protocol"),
}
_CLAIMS: dict[str, dict[str, Any]] = {
    "is a node that is none": {"node": 9, "local": 0},
    "is a node below zero": {"node": -1, "local": 0},
    "is a rank that is none": {"node": 1, "local": 4},
    "is a node by its name": {"node": "1", "local": 0},
    "is a node of a truth value": {"node": True, "local": 0},
    "is a node of many digits": {"node": 10**400, "local": 0},
    "is no node": {},
    "is node 0 as well": {"node": 0, "local": 0},
}
_FIGURES: dict[str, tuple[str, dict[str, Any]]] = {
    "a time below zero": ("all_reduce", {"seconds": -1.0}),
    "a time of zero": ("stream", {"seconds": 0.0}),
    "a time that is not a number": ("matmul", {"seconds": math.nan}),
    "a time without an end": ("send", {"seconds": math.inf}),
    "a time beyond the probe's": ("send", {"seconds": 1e9}),
    "a time as text": ("stream", {"seconds": "1"}),
    "a scatter below zero": ("stream", {"scatter": -0.1}),
    "bytes below zero": ("all_gather", {"bytes": -1}),
    "more bytes a second than there are": ("all_gather", {"bytes": 2**45, "seconds": 1e-3}),
    "a shape without sides": ("matmul", {"shape": []}),
    "a shape of zero": ("matmul", {"shape": [0, 1, 1]}),
    "a rank that is none": ("pair", {"ranks": [2, 99]}),
    "a pair with itself": ("pair", {"ranks": [2, 2]}),
    "a pair of others": ("pair", {"ranks": [0, 1]}),
    "an unknown kind": ("send", {"kind": "owned"}),
    "a precision of escape sequences": ("matmul", {"dtype": "\x1b[31m"}),
    "a field of its own": ("send", {"more": 1}),
}
_WEAK = {
    "empty": "",
    "blank": " " * 20,
    "short": "k3JxQ9rT",
    "one character": "a" * 40,
    "a word, repeated": "password" * 3,
    "a word with a year": "my-secret-token-2026",
    "a word in digits": "p@ssw0rdP@ssw0rd",
    "a sequence": "0123456789abcdef",
    "a row of keys": "qwertyuiopasdfgh",
    "a good one, twice": "k3JxQ9rTk3JxQ9rT",
    "two sequences, mixed": "a1b2c3d4e5f6g7h8",
    "columns of keys": "1qaz2wsx3edc4rfv",
    "a word in base 64": "cGFzc3dvcmRwYXNzd29yZA==",
    "a word backwards": "drowssapdrowssapx",
    "a date": "2026-11-24T12:00:00",
    "an address": "localhost:29500-node0",
    "words of a book": "correct horse battery staple",
    "the digest of nothing": "d41d8cd98f00b204e9800998ecf8427e",
    "the digest of a word": "098f6bcd4621d373cade4e832627b4f6",
    "a line of a play": "tobeornottobethatisthequestion",
    "a club and a year": "Liverpool1892champ",
    "the address of a card": "00:1a:2b:3c:4d:5e",
    "a path": "/home/user/.ssh/id_rsa",
    "an example of a manual": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
}
_JOB: dict[str, Any] = {"model": "gpt2", "seq_len": 8, "global_batch": 2, "world": 2}
_DEEDS: dict[str, dict[str, Any]] = {
    "a factory": {"model": "evil:build"},
    "a factory in a package": {"model": "evil.deep.models:build"},
    "a model's folder": {"model": "./model"},
    "templates": {"templates": "t"},
    "a baseline": {"baseline": "/etc/shadow"},
    "a base configuration": {"base_config": "../ds.json"},
    "accelerators": {"accelerators": "a.yaml"},
    "lengths": {"lengths": "l.csv"},
    "a histogram": {"lengths": {"histogram": "l.csv"}},
    "a disk": {"nvme_path": "/"},
}


def faults() -> Iterator[Fault]:
    """All of them."""
    for subject, cases, inject in (
        ("stranger at a probe", _STRANGERS, _stranger),
        ("node that claims what it is not", _CLAIMS, _claim),
        ("figures that cannot be of a node", _FIGURES, _figure),
        ("token that can be guessed", _WEAK, _weak),
        ("job of somebody else", _DEEDS, _deed),
        ("secret in a configuration", planted.SECRETS, planted.plant),
    ):
        for number, case in enumerate(cases):
            yield Fault(
                name=f"{subject}: {case}",
                inject=functools.partial(inject, case),
                in_short=number == 0,
            )
    for subject, name, inject_one in (
        ("stranger at a probe", "more than may stay, while nodes come", _crowd),
        ("stranger at a probe", "in place of node 0", _false_node_0),
        ("message of a probe", "changed on its way", _changed),
        ("message of a probe", "sent once more", _replayed),
        ("message of a probe", "sent back to where it is from", _reflected),
        ("message of a probe", "of another meeting", _of_another_meeting),
        ("message of a probe", "longer than any", _too_long),
        ("node that claims what it is not", "twice the same", _twice),
        ("job of somebody else", "through a link", _linked),
        ("job of somebody else", "one's own, which everybody may write", _anybodys),
    ):
        yield Fault(name=f"{subject}: {name}", inject=inject_one, in_short=inject_one is _changed)


class _Probe:
    """Node 0 of a meeting of two, and ways to come to it; what came leaves at the end."""

    def __enter__(self) -> "_Probe":
        self._lease = lease_port()
        self.port = self._lease.port
        self._met: list[Meeting] = []
        self.first = self.come(0)
        return self

    def __exit__(self, *_: object) -> None:
        for meeting in self._met:
            meeting.leave()
        self._lease.release()

    def come(self, rank: int) -> Meeting:
        """Come with the token, as a node of that number."""
        place = Nodes(
            count=2,
            rank=rank,
            address="127.0.0.1",
            port=self.port,
            interface="lo",
            token=TOKEN,
            wait_s=60.0,
        )
        made = Meeting(place, local_rank=0, per_node=1, about=_ABOUT)
        self._met.append(made)
        return made

    def call(self, said: bytes) -> socket.socket:
        """Come without the token."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.sendall(said)
        return connection

    def must_meet(self) -> None:
        """See that both nodes meet as if nobody else had come."""
        second = self.come(1)
        found: list[Any] = []
        other = threading.Thread(target=lambda: found.append(second.agree({})))
        other.start()
        must(self.first.agree({"quick": True}) == {"quick": True}, "node 0 met nobody")
        other.join()
        must(found == [{"quick": True}], f"node 1 heard {found}")


def _stranger(case: str, _: Ground) -> None:
    said, named = _STRANGERS[case]
    with _Probe() as probe:
        with probe.call(said) as connection:
            with contextlib.suppress(OSError):  # it may have been turned away already
                connection.shutdown(socket.SHUT_WR)
            wait_until(probe.first.strangers, "the stranger is turned away")
        probe.must_meet()
        (line,) = probe.first.strangers()
        must(line.isprintable(), f"not safe to show: {line!r}")
        must(line.startswith("a stranger at 127.0.0.1 did not know the token"), line)
        must(named in line, line)


def _crowd(_: Ground) -> None:
    with _Probe() as probe:
        crowd = [probe.call(_ANSWER[: number % 80]) for number in range(90)]
        probe.must_meet()
        (line,) = probe.first.strangers()
        must("too many connections at once" in line, line)
        for connection in crowd:
            connection.close()


def _false_node_0(_: Ground) -> None:
    heard = bytearray()
    with _Probe() as probe:
        lease = lease_port()
        with socket.create_server(("127.0.0.1", lease.port)) as listener:

            def pretend() -> None:
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(wire.Greeting.new(wire.new_session()).encode())
                    heard.extend(connection.recv(4096))
                    connection.sendall(b"+" + bytes(wire.VERDICT_BYTES - 1))

            thread = threading.Thread(target=pretend)
            thread.start()
            there, probe.port = probe.port, lease.port
            _refused(MeetingError, lambda: probe.come(1), "does not know the token")
            probe.port = there
            thread.join()
        lease.release()
        must(TOKEN.encode() not in heard, "the token was sent")
        probe.must_meet()


def _claim(case: str, _: Ground) -> None:
    with _Probe() as probe:
        if case == "is node 0 as well":
            probe.first._link.ask("join", node=0, local=0, about=probe.first._about)
        odd = probe.come(1)
        claim = {"about": odd._about, **_CLAIMS[case]}
        _refused(MeetingError, lambda: odd._link.ask("join", **claim), "node")
        (line,) = probe.first.strangers()
        must(line.isprintable() and len(line) < 300, f"not safe to show: {line!r}")
        must(line.startswith("a node at 127.0.0.1 knew the token and was refused"), line)
        if case != "is node 0 as well":
            probe.must_meet()


def _twice(_: Ground) -> None:
    with _Probe() as probe:
        one, other = probe.come(1), probe.come(1)
        one._link.ask("join", node=1, local=0, about=one._about)
        told = {"node": 1, "local": 0, "about": other._about}
        _refused(MeetingError, lambda: other._link.ask("join", **told), "two nodes say that they")
        must(probe.first.agree({}) == {}, "those that were there first do not go on")


def _figure(case: str, _: Ground) -> None:
    kind, changes = _FIGURES[case]
    found = [
        {"host": "n", "device": "", "place": 0, **report}
        for report in reports(2, n_nodes=2, layer_s=1e-4)
    ]
    check = functools.partial(check_reports, world=4, per_node=2, most_s=100.0)
    check(found)
    next(point for point in found[2]["points"] if point["kind"] == kind).update(changes)
    # As it comes from another node: JSON has these numbers too.
    _refused(FleetError, lambda: check(json.loads(json.dumps(found))), "node 1, rank 2: ")


def _weak(case: str, _: Ground) -> None:
    token = _WEAK[case]
    why = weakness(token)
    must(why, "it was taken")
    must(not token.strip() or token not in why, f"the reason shows it: {why}")


def _channels() -> tuple[wire.Channel, wire.Channel]:
    key, greeting = wire.key_of(TOKEN), wire.Greeting.new(wire.new_session())
    node = wire.Handshake.answering(key, greeting)
    hub = wire.Handshake.challenging(key, greeting, node.answer())
    return hub.channel(wire.HUB), node.channel(wire.NODE)


def _must_refuse(hub: wire.Channel, frame: bytes) -> None:
    hub.feed(frame)
    _refused(wire.WireError, hub.next_message, "not signed with the token")


def _changed(_: Ground) -> None:
    frame = _channels()[1].encode({"seconds": 0.5})
    for at in range(4, len(frame), 7):
        hub, node = _channels()
        frame = node.encode({"seconds": 0.5})
        _must_refuse(hub, frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :])


def _replayed(_: Ground) -> None:
    hub, node = _channels()
    frame = node.encode({"n": 1})
    hub.feed(frame)
    must(hub.next_message() == {"n": 1}, "a sound message is refused")
    _must_refuse(hub, frame)


def _reflected(_: Ground) -> None:
    hub, _node = _channels()
    _must_refuse(hub, hub.encode({"n": 1}))


def _of_another_meeting(_: Ground) -> None:
    _must_refuse(_channels()[0], _channels()[1].encode({"n": 1}))


def _too_long(_: Ground) -> None:
    hub, _node = _channels()
    hub.feed(b"\xff\xff\xff\xff")
    _refused(wire.WireError, hub.next_message, "at most")


def _deed(case: str, ground: Ground) -> None:
    job = ground.folder() / "job.yaml"
    job.write_text(json.dumps({**_JOB, **_DEEDS[case]}))
    _must_ask(job)


def _linked(ground: Ground) -> None:
    job, here = ground.folder() / "job.yaml", ground.folder()
    job.write_text(json.dumps({**_JOB, **_DEEDS["a factory"]}))
    link = here / "job.yaml"
    link.symlink_to(job)
    must(not is_inside(link, here), "a link is taken for a file of one's own")
    _must_ask(job)


def _anybodys(ground: Ground) -> None:
    job = ground.folder() / "job.yaml"
    job.write_text(json.dumps({**_JOB, **_DEEDS["a factory"]}))
    must(is_inside(job, job.parent), "one's own file is none")
    job.chmod(0o666)
    must(not is_inside(job, job.parent), "a file that everybody may write is taken for one's own")
    _must_ask(job)


def _must_ask(job: Path) -> None:
    """See that a job is refused with nobody there, and read when somebody agrees."""
    said: list[str] = []
    agree = functools.partial(agree_to_job, job, {}, is_trusted=False, say=said.append)
    _refused(JobError, lambda: agree(ask=None), "--trust-job")
    must(said == [], f"something was done: {said}")
    _refused(JobError, lambda: agree(ask=lambda _: False), "not trusted")
    must(agree(ask=lambda _: True), "an agreed job is not read")


def _refused(kind: type[Exception], call: Callable[[], object], said: str) -> None:
    try:
        call()
    except kind as error:
        must(said in str(error), f"the reason is another: {error}")
    else:
        must(False, "it was believed")
