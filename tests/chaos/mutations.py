"""Broken variants of a valid text, drawn from a seed: of its structure, its bytes, its file."""

import contextlib
import copy
import json
import os
import random
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

Data = Any

WEIRD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 7, 2**31, 2**63, -(2**63), 10**30, 10**400),
    *(0.5, -0.0, 1e-320, 1e308, float("inf"), float("-inf"), float("nan")),
    *("", " ", "auto", "none", "0", "1e400", "-1", "NaN", "yes", "\0", "\ud800", "é" * 300),
    *("a" * 10_000, "../../etc/passwd", "{{ x }}", "%s%n", "9" * 5_000, "\u202eabc", "🦄"),
    *([], {}, [[]], [None], {"": None}, [1, "a", None], {"a": {"b": {"c": []}}}, [{}] * 50),
)
"""Values that nobody expects in a place."""

_LAUGHS = b"x0: &x0 lol\n" + b"".join(
    b"x%d: &x%d [%s]\n" % (level, level, b",".join([b"*x%d" % (level - 1)] * 9))
    for level in range(1, 12)
)
"""A billion of them, by aliases of aliases."""

TEXTS: tuple[bytes, ...] = (
    *(b"", b" ", b"\n", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xef\xbb\xbf{}", b"null", b"[]"),
    *(b"3", b'"text"', b"{", b"}", b"{}", b"---", b"--- {}\n--- {}\n", b"- a\n- b\n", b"a: b: c"),
    *(b"\xff" * 100, b"\x80abc", "{}".encode("utf-16"), "a: ü".encode("latin-1")),
    *(b"[" * 100_000, b"{" * 100_000, b'{"a":' * 50_000, b"a:\n " * 2_000, b"- " * 20_000),
    b"1" * 100_000,
    b"1e" + b"9" * 1_000,
    b'{"a": 1, "a": 2}',
    b"a: 1\na: 2\n",
    b"? {a: 1}\n: 2\n",
    b"? [a, b]\n: 2\n",
    b"!!python/object/apply:os.system ['true']\n",
    b"a: !!python/object/new:os.system [true]\n",
    b"a: !!binary '////'\nb: !!timestamp 2001-99-99\n",
    b"a: 2001-99-99\n",
    b"a: 0x" + b"f" * 10_000 + b"\n",
    b"a: 1:" + b"59:" * 4_000 + b"59\n",
    b"a: .nan\nb: .inf\nc: 0o17\nd: 1_000\n",
    b"<<: {a: 1}\nb: 2\n",
    b"a: &a [*a]\n",
    b"%YAML 9.9\n---\na: 1\n",
    b"a: |\n" + b"  x\n" * 20_000,
    _LAUGHS,
    b"a: 1\n" + b"#" * 2_000_000,
    b'{"a": "' + b"x" * 3_000_000 + b'"}',
    *(b"NaN", b'{"a": NaN}', b'{"a": 1e999}', b"{'a': 1}", b'{"a": 1,}', b'{"a": "\\ud800"}'),
)
"""Whole files that break readers of their kind: bombs, tags, depths, encodings."""


def mutate(seed: bytes, draw: random.Random, dump: Callable[[Data], str]) -> bytes:
    """One broken variant of a text.

    Args:
        seed: A valid one.
        draw: Where chance comes from.
        dump: From data to the format of the text.
    """
    kind = draw.random()
    if kind < 0.08:
        return draw.choice(TEXTS)
    if kind < 0.75:
        return _of_structure(seed, draw, dump)
    return of_bytes(seed, draw)


def dump_json(data: Data) -> str:
    """As JSON, with what JSON has not (NaN)."""
    return json.dumps(data, indent=1)


def dump_yaml(data: Data) -> str:
    """As YAML."""
    return yaml.safe_dump(data, sort_keys=False)


def _socket(path: Path) -> None:
    # The name of a socket is short, and a folder's may be long.
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/socket")
        shutil.move(f"{folder}/socket", path)


def _link_to_pipe(path: Path) -> None:
    pipe = path.with_name(f"{path.name}.pipe")
    if not pipe.exists():
        os.mkfifo(pipe)
    path.symlink_to(pipe)


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)  # it holds nothing, and takes no room


NO_FILES: dict[str, Callable[[Path], object]] = {
    "a folder": Path.mkdir,
    "a dangling link": lambda path: path.symlink_to(path.with_name("nowhere")),
    "a circular link": lambda path: path.symlink_to(path),
    "nothing": lambda path: None,
    "an empty file": Path.touch,
    "a file of a tebibyte": _huge,
    "a device without an end": lambda path: path.symlink_to("/dev/zero"),
    "a terminal": lambda path: path.symlink_to("/dev/tty"),
    "a pipe": os.mkfifo,
    "a link to a pipe": _link_to_pipe,
    "a socket": _socket,
}
"""What it is -> how it comes to a path that is free."""


def _of_structure(seed: bytes, draw: random.Random, dump: Callable[[Data], str]) -> bytes:
    """One to three nodes replaced, removed, renamed, doubled or buried."""
    data = yaml.safe_load(seed) if dump is dump_yaml else json.loads(seed)
    try:
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            data = with_one_change(copy.deepcopy(data), draw)
        return dump(data).encode("utf-8", "surrogatepass")
    # Such as a number too long to be written, or more levels than the writer can go down.
    except (yaml.YAMLError, ValueError, RecursionError):
        return of_bytes(seed, draw)


def with_one_change(data: Data, draw: random.Random) -> Data:
    places = [place for place in _places(data) if place]
    if not places:
        return draw.choice(WEIRD)
    *way, last = draw.choice(places)
    owner = data
    for key in way:
        owner = owner[key]
    match draw.randrange(8):
        case 0:
            del owner[last]
        case 1 if isinstance(owner, dict):
            owner[draw.choice(("x", "", str(last).upper(), f"{last} ", 7, None))] = owner.pop(last)
        case 2 if isinstance(owner, list):
            owner[last:last] = [owner[last]] * draw.choice((1, 100))
        case 3:
            for _ in range(draw.choice((1, 50, 400))):
                owner[last] = draw.choice(([owner[last]], {"a": owner[last]}))
        case 4:
            with contextlib.suppress(ValueError):  # an earlier change has left too many digits
                owner[last] = str(owner[last])
        case 5 if isinstance(owner[last], int | float) and not isinstance(owner[last], bool):
            with contextlib.suppress(OverflowError):
                owner[last] *= draw.choice((-1, 0, 1.5, 10**6, 10**20))
        case _:
            owner[last] = copy.deepcopy(draw.choice(WEIRD))
    return data


def _places(data: Data, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items: Any = ()
    if isinstance(data, dict | list):
        items = data.items() if isinstance(data, dict) else enumerate(data)
    return [way, *(place for key, value in items for place in _places(value, (*way, key)))]


def of_bytes(seed: bytes, draw: random.Random) -> bytes:
    """Cut, overwritten, doubled, in another encoding."""
    at = draw.randrange(len(seed) + 1)
    match draw.randrange(7):
        case 0:
            return seed[:at]
        case 1:
            return seed[:at] + draw.randbytes(draw.choice((1, 2, 40))) + seed[at:]
        case 2:
            return seed[:at] + draw.randbytes(draw.choice((1, 2, 40))) + seed[at + 1 :]
        case 3:
            return seed[:at] + draw.choice(TEXTS[:30]) + seed[at:]
        case 4:
            return seed[at:] + seed
        case 5:
            encoding = draw.choice(("utf-16", "utf-32", "utf-8-sig"))
            return seed.decode("utf-8", "replace").encode(encoding)
        case _:
            return seed[:at] + bytes(len(seed) - at)
