"""The files of a trial: their names, and JSON that is written whole and read with suspicion.

Files are versioned: a reader refuses a version it does not know instead of guessing.
"""

import dataclasses
import errno
import json
import os
import tempfile
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

SCHEMA_VERSION = 1
"""Version of `result.json` and of the ranks' reports."""
_MAX_INT = 2**63 - 1
"""Largest whole number of the table, and of whatever else counts in 64 bits."""
MAX_FILE_BYTES = 64 * 2**20
"""Largest file that is read whole; a soak of days leaves reports of a few of these bytes."""

_MAX_FIGURE = 1e30
"""Largest time, rate or number of bytes; a larger one comes of damage, and its square may
overflow."""

SPEC_FILE = "spec.json"
RESULT_FILE = "result.json"
RANKS_DIR = "ranks"
STDOUT_FILE = "stdout.log"
STDERR_FILE = "stderr.log"
STACKS_FILE = "{rank:02d}.stacks"
"""File in `RANKS_DIR`: where each thread of a rank stood, once the rank is asked for it."""
NODE_FILE = "node_{node:02d}.json"
"""File in `RANKS_DIR`: what each node of a trial's gang saw of its ranks."""
CONFIG_DIR = "config"
"""The engine's configuration files, in a trial's folder."""

TRIAL_ENV = "AUTOTUNE_TRIAL_DIR"
"""Environment variable of every process of a trial: the sweep for orphans looks for it."""


class ContractError(ValueError):
    """A spec, report or result file is missing, cut short, or of another schema."""


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write a JSON file so that a reader sees the old one or the new one, never a part.

    Raises:
        OSError: The disk is full or the folder cannot be written; the old file still stands.
    """
    text = json.dumps(data, indent=2, sort_keys=True, allow_nan=True) + "\n"
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, mode_of(path))
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def mode_of(path: Path) -> int:
    """Permissions for what is written aside and then moved to a path; mkstemp makes it private.

    A file that is there keeps its own, a new one is as readable as its neighbours.
    """
    if path.exists():
        return path.stat().st_mode
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def read_bounded(path: Path) -> bytes:
    """What a file holds; a link to a device may have no end.

    Raises:
        OSError: It cannot be read, or is larger than `MAX_FILE_BYTES`.
    """
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return data


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ContractError: There is no such file, or it does not hold one JSON object.
    """
    try:
        data = json.loads(read_bounded(path).decode("utf-8"))
    except FileNotFoundError as error:
        raise ContractError(f"{path}: no such file") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ContractError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(data, dict):
        raise ContractError(f"{path}: holds a {type(data).__name__}, not an object")
    return data


def checked_fields(cls: type, data: dict[str, Any], *, version: int) -> dict[str, Any]:
    """JSON data as a dataclass's fields, nested dataclasses and enums made again.

    Raises:
        ContractError: A field is missing, unknown or of another type, or the schema is another.
    """
    theirs = data.get("schema_version")
    if theirs != version:
        raise ContractError(f"{cls.__name__}: schema {theirs!r}, this is {version}")
    known = {f.name: f for f in dataclasses.fields(cls)}
    unknown = sorted(set(data) - set(known))
    missing = sorted(
        name
        for name, f in known.items()
        if name not in data
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    )
    if unknown or missing:
        raise ContractError(f"{cls.__name__}: unknown fields {unknown}, missing fields {missing}")
    for name, value in data.items():
        if not _fits(value, known[name].type):
            raise ContractError(f"{cls.__name__}: {name}: {str(value)[:60]!r} is of another type")
    try:
        return {name: _rebuilt(known[name].type, value) for name, value in data.items()}
    except (TypeError, ValueError) as error:
        raise ContractError(f"{cls.__name__}: {error}") from error


def _rebuilt(kind: Any, data: Any) -> Any:
    """JSON data that fits a type, with its dataclasses and enums made again.

    Raises:
        TypeError: A nested field is missing or unknown.
        ValueError: It is no value of an enum.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return None if data is None else _rebuilt(arguments[0], data)
    if origin is list and dataclasses.is_dataclass(arguments[0]):
        return [_rebuilt(arguments[0], item) for item in data]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(data)
    if not dataclasses.is_dataclass(kind):
        return data
    types = {f.name: f.type for f in dataclasses.fields(kind)}
    fields = {name: _rebuilt(types.get(name, Any), value) for name, value in data.items()}
    return kind(**fields)  # type: ignore[operator]  # it is a class, not an instance


def _fits(value: Any, kind: Any) -> bool:
    """Whether JSON data has the type of a field, all the way down."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin is UnionType:
        return any(_fits(value, argument) for argument in arguments)
    if origin is list:
        return isinstance(value, list) and all(_fits(item, arguments[0]) for item in value)
    if origin is dict:
        items = value.values() if isinstance(value, dict) else ()
        return isinstance(value, dict) and all(_fits(item, arguments[1]) for item in items)
    if dataclasses.is_dataclass(kind):
        types = {f.name: f.type for f in dataclasses.fields(kind)}
        return isinstance(value, dict) and all(
            _fits(item, types.get(name, Any)) for name, item in value.items()
        )
    if isinstance(value, bool):  # Python calls it an int, too
        return kind is bool
    if isinstance(value, int) and not -_MAX_INT <= value <= _MAX_INT:
        return False
    if kind is float:
        return isinstance(value, int | float)
    return isinstance(value, str if issubclass(kind, StrEnum) else kind)


def check_not_negative(name: str, values: Iterable[float]) -> None:
    """Check that durations or counts can be such; others come of damage.

    Raises:
        ContractError: One is below 0, no number, or absurdly large.
    """
    for value in values:
        if not 0 <= value <= _MAX_FIGURE:
            raise ContractError(f"{name}: {value} is not from 0 to {_MAX_FIGURE:.0e}")


def check_positive(name: str, values: Iterable[float | None]) -> None:
    """Check that times or rates, where there are any, can be such; others come of damage.

    Raises:
        ContractError: One is not above 0, no number, or absurdly large.
    """
    for value in values:
        if value is not None and not 0 < value <= _MAX_FIGURE:
            raise ContractError(f"{name}: {value} is not above 0 and up to {_MAX_FIGURE:.0e}")
