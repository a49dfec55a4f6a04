"""Readers of what comes from other nodes of a probe, and of jobs that came from elsewhere."""

import functools
import json
import random
from pathlib import Path

from autotune.app.consent import agree_to_job
from autotune.base.errors import JobError
from autotune.contract import read_bounded
from autotune.probe import wire
from autotune.probe.figures import figures_of
from autotune.probe.points import points_of
from autotune.probe.reports import check_reports
from autotune.probe.token import read_token
from tests.chaos.mutations import dump_json, mutate, of_bytes
from tests.chaos.reader import Reader, at, json_reader
from tests.probe.made_up import reports

_KEY = wire.key_of("e3b7a91c5d20f846b1a7c2")
_GREETING = wire.Greeting(session=b"s" * 16, challenge=b"c" * 32)
_NODE = wire.Handshake(_KEY, _GREETING, b"n" * 32)


def make_probe_readers(folder: Path) -> list[Reader]:
    """All of them, each in a folder of its own below `folder`."""
    of_ranks = [
        {"host": "node", "device": "", "place": 0, **report}
        for report in reports(1, n_nodes=2, layer_s=1e-4)
    ]
    return [
        json_reader("probe report", folder, of_ranks, _read_reports),
        _frames(folder),
        _token(folder),
        _job_of_others(folder),
    ]


def _read_reports(path: Path) -> str:
    try:
        found = json.loads(_bytes(path))
    except (ValueError, RecursionError) as error:  # the wire takes nothing else
        raise JobError("no JSON", "the hub takes no such message") from error
    if not isinstance(found, list):
        raise JobError("no list of reports", "the hub makes one")
    check_reports(found, world=2, per_node=1, most_s=100.0)
    return json.dumps(repr(figures_of(points_of(found), 1, 2)))


def _frames(folder: Path) -> Reader:
    seed = _NODE.answer() + b"".join(
        _channel.encode({"do": "set", "keys": [f"{n}"], "value": "00" * n})
        for _channel in [_NODE.channel(wire.NODE)]
        for n in range(5)
    )
    return Reader(
        name="probe frames",
        path=at(folder, "probe frames", "said"),
        seed=seed,
        read=functools.partial(_read_frames, seed),
        mutate=functools.partial(_of_bytes, seed),
    )


def _read_frames(sound: bytes, path: Path) -> None:
    """Nothing but what was said in its order is ever taken."""
    said = _bytes(path)
    try:
        answer, rest = said[: wire.ANSWER_BYTES], said[wire.ANSWER_BYTES :]
        hub = wire.Handshake.challenging(_KEY, _GREETING, answer).channel(wire.HUB)
        hub.feed(rest)
        n_taken = 0
        while (message := hub.next_message()) is not None:
            if message["keys"] != [f"{n_taken}"] or answer != sound[: wire.ANSWER_BYTES]:
                raise AssertionError(f"taken: {message}")
            n_taken += 1
    except wire.WireError as error:
        raise JobError(str(error), "it was not sent so") from error


def _of_bytes(seed: bytes, draw: random.Random) -> bytes:
    return of_bytes(seed, draw)


def _token(folder: Path) -> Reader:
    seed = b"e3b7a91c5d20f846b1a7c2\n"
    return Reader(
        name="token file",
        path=at(folder, "token file", "token"),
        seed=seed,
        read=_read_token,
        mutate=functools.partial(_of_bytes, seed),
    )


def _read_token(path: Path) -> None:
    if path.is_file() and not path.is_symlink():
        path.chmod(0o600)
    token = read_token(path)
    if len(token) < 16 or not token.isprintable():
        raise AssertionError(f"taken: {token!r}")


def _job_of_others(folder: Path) -> Reader:
    data = {
        "model": "evil.models:build",
        "seq_len": 8,
        "space": "./space.yaml",
        "templates": "t",
        "lengths": {"histogram": "l.csv"},
        "nvme_path": "/",
    }
    seed = json.dumps(data).encode()
    return Reader(
        name="job of others",
        path=at(folder, "job of others", "job.yaml"),
        seed=seed,
        read=_read_job_of_others,
        mutate=lambda draw: mutate(seed, draw, dump_json),
    )


def _read_job_of_others(path: Path) -> None:
    """Nobody is there to agree: it is refused, or names nothing to agree to."""
    said: list[str] = []
    try:
        data = agree_to_job(path, {}, is_trusted=False, say=said.append, ask=None)
    except JobError as error:
        if "--trust-job" in error.hint:
            return  # what has to come of the sound one
        raise
    if said or (data is not None and data.get("templates") is not None):
        raise AssertionError(f"done without asking: {said} {data}")


def _bytes(path: Path) -> bytes:
    try:
        return read_bounded(path)
    except OSError as error:
        raise JobError(str(error), "it is there") from error
