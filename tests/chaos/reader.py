"""Who reads a file, with a valid one and how it is broken."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.mutations import dump_json, mutate


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Who reads a file."""

    name: str
    path: Path
    """Where the broken file is put."""
    seed: bytes
    """A valid one."""
    read: Callable[[Path], object]
    mutate: Callable[[random.Random], bytes]
    """Draws one."""


def json_reader(
    reader: str, folder: Path, data: Any, read: Callable[[Path], object], name: str = ""
) -> Reader:
    """Reader of a JSON file that holds `data`."""
    seed = json.dumps(data, indent=1).encode()
    return broken(reader, at(folder, reader, name or "file.json"), seed, read)


def broken(
    reader: str,
    path: Path,
    seed: bytes,
    read: Callable[[Path], object],
    dump: Callable[[Any], str] = dump_json,
) -> Reader:
    """Reader of a file that is broken as text, or as data of JSON or YAML."""
    return Reader(
        name=reader,
        path=path,
        seed=seed,
        read=read,
        mutate=lambda draw: mutate(seed, draw, dump),
    )


def at(folder: Path, reader: str, name: str) -> Path:
    """The file of a reader; its folder is made."""
    path = folder / reader / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
