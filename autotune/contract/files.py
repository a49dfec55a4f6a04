"""The files of a trial: their names, and JSON that is written whole and read with suspicion.

Files are versioned: a reader refuses a version it does not know instead of guessing.
"""

import contextlib
import dataclasses
import errno
import functools
import json
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_args, get_origin

from autotune.contract.words import StrEnum

if TYPE_CHECKING:
    from typing import Self  # Python 3.10 lacks it, which a user's script may run in

T = TypeVar("T")

SCHEMA_VERSION = 1
"""Version of `result.json` and of the ranks' reports."""
_MAX_INT = 2**63 - 1
"""Largest whole number of the table, and of whatever else counts in 64 bits."""
MAX_FILE_BYTES = 64 * 2**20
"""Largest file that is read whole; a soak of days leaves reports of a few of these bytes."""
_PIECE_BYTES = 2**16
_HANDED = re.compile(r"/dev/stdin|/dev/fd/[0-9]{1,9}|/proc/(self|[0-9]{1,9})/fd/[0-9]{1,9}")
"""Pipes that a shell hands over, such as `<(command)`: they end. One with a name of its own may
have no writer."""
_COUNT = re.compile("[0-9]{1,8}")
_LONGEST_ASIDE = 200
"""Bytes of a name of at most 255: dots and what mkstemp draws come besides."""
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)

_MAX_FIGURE = 1e30
"""Largest time, rate or number of bytes; a larger one comes of damage, and its square may
overflow."""

PRIVATE_MODE = 0o600
"""Permissions of what may hold secrets: a user's command, logs."""
SPEC_FILE = "spec.json"
RESULT_FILE = "result.json"
RANKS_DIR = "ranks"
STDOUT_FILE = "stdout.log"
STDERR_FILE = "stderr.log"
STACKS_FILE = "{rank:02d}.stacks"
"""File in `RANKS_DIR`: where each thread of a rank stood, once the rank is asked for it."""
NODE_FILE = "node_{node:02d}.json"
"""File in `RANKS_DIR`: what each node of a trial's gang saw of its ranks."""
SETTINGS_FILE = "settings.json"
"""What DeepSpeed has no key for: the model, the layout. Beside its `ds_config.json`."""
CONFIG_DIR = "config"
"""The engine's configuration files, in a trial's folder."""

TRIAL_ENV = "AUTOTUNE_TRIAL_DIR"
"""Environment variable of every process of a trial: the sweep for orphans looks for it."""
PARENT_ENV = "AUTOTUNE_PARENT_PID"
"""Process id of what started a process that ends with it."""
SCRATCH_ENV = "AUTOTUNE_SCRATCH"
"""Folder for temporary files, which goes with the process that it was made for."""


class ContractError(ValueError):
    """A spec, report or result file is missing, cut short, or of another schema."""


class NotAFileError(OSError):
    """A folder, a pipe, a socket or a device stands where a file should: nothing is read there."""

    def __init__(self, path: Path, mode: int) -> None:
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "no file")
        super().__init__(errno.EINVAL, f"is {kind}, not a file", str(path))


def write_json(path: Path, data: dict[str, Any], *, is_private: bool = False) -> None:
    """Write a JSON file so that a reader sees the old one or the new one, never a part.

    Args:
        path: The file.
        data: Its object.
        is_private: Whether nobody but this user may read it.

    Raises:
        OSError: The disk is full or the folder cannot be written; the old file still stands.
    """
    text = json.dumps(data, indent=2, sort_keys=True, allow_nan=True) + "\n"
    mode = PRIVATE_MODE if is_private else None
    write_aside(path, lambda aside: aside.write_text(text, encoding="utf-8"), mode=mode)


def write_aside(path: Path, write: Callable[[Path], object], *, mode: int | None = None) -> None:
    """Have a file written under another name, then move it.

    Args:
        path: The file.
        write: Writes it, at the path that it is given.
        mode: Its permissions; None: those of the file that is there, or the usual ones.

    Raises:
        OSError: The disk is full or the folder cannot be written; the old file still stands.
    """
    # Cut short, since the name with what follows has to fit where the path's own just does.
    name = os.fsdecode(os.fsencode(path.name)[:_LONGEST_ASIDE])
    handle, made = tempfile.mkstemp(dir=path.parent, prefix=f".{name}.")
    os.close(handle)
    aside = Path(made)
    try:
        write(aside)
        # On the disk before it is in place: a power cut leaves no empty file under the old name.
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.chmod(mode_of(path) if mode is None else mode)
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def mode_of(path: Path) -> int:
    """Permissions for what is written aside and then moved to a path; mkstemp makes it private.

    A file that is there keeps its own, a new one is as readable as its neighbours. What another
    user has put there says nothing: they would have chosen who may write in a file of ours.
    """
    with contextlib.suppress(OSError):
        found, owners = path.stat(), {path.lstat().st_uid, path.stat().st_uid}
        if stat.S_ISREG(found.st_mode) and owners == {os.geteuid()}:
            return found.st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def open_regular(path: Path) -> int:
    """A descriptor to read a file by; nothing else is opened, so that nobody waits or wakes it.

    A pipe that a shell hands over is taken for one.

    Raises:
        NotAFileError: It is a folder, a pipe, a socket or a device.
        OSError: It cannot be opened.
    """
    mode = os.stat(path).st_mode
    is_handed = stat.S_ISFIFO(mode) and _HANDED.fullmatch(str(path)) is not None
    if not (stat.S_ISREG(mode) or is_handed):
        raise NotAFileError(path, mode)
    # Another may stand there by now: without O_NONBLOCK the opening of a pipe waits for a writer.
    waits = 0 if is_handed else os.O_NONBLOCK
    return os.open(path, os.O_RDONLY | waits | os.O_NOCTTY | os.O_CLOEXEC)


def read_bounded(path: Path, most_bytes: int = MAX_FILE_BYTES) -> bytes:
    """The bytes of a file, read as `open_regular` opens it.

    Raises:
        OSError: It cannot be read, is no file, or is larger than `most_bytes`.
    """
    try:
        handle = open_regular(path)
    except ValueError as error:  # a path with a zero byte
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    with open(handle, "rb") as file:
        data, is_larger = bytearray(), os.fstat(handle).st_size > most_bytes
        # In pieces: memory for the most that may be there would be taken for each small file.
        # Some files of the kernel's have no end yet: they answer nothing instead.
        while not is_larger and (piece := file.read(_PIECE_BYTES)):
            data += piece
            is_larger = len(data) > most_bytes
    if is_larger:
        raise OSError(errno.EFBIG, f"is larger than {most_bytes} bytes", str(path))
    return bytes(data)


def read_text(path: Path, most_bytes: int = MAX_FILE_BYTES) -> str:
    """The text of a file, read as `read_bounded` reads it; what is not UTF-8 is replaced.

    Raises:
        OSError: As `read_bounded`.
    """
    return read_bounded(path, most_bytes).decode("utf-8", "replace")


def read_tail(path: Path, most_bytes: int) -> str:
    """The last text of a file, read as `open_regular` opens it; what is not UTF-8 is replaced.

    A first line that would be cut is left out.

    Raises:
        OSError: It cannot be read.
    """
    with open(open_regular(path), "rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        file.seek(max(0, size_bytes - most_bytes))
        text = file.read(most_bytes).decode("utf-8", "replace")
    return text.partition("\n")[2] if size_bytes > most_bytes and "\n" in text else text


def is_count(text: str) -> bool:
    """Whether a text is a small whole number: a few digits, from 0 to 9 alone."""
    return _COUNT.fullmatch(text) is not None


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


class Stored:
    """A dataclass that a JSON file of a trial holds, with its version as `schema_version`."""

    VERSION: ClassVar[int] = SCHEMA_VERSION

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Self":
        """Rebuild it from JSON data.

        Raises:
            ContractError: A field is missing, unknown, of another type or no such figure, or the
                schema is another.
        """
        if (version := data.get("schema_version")) != cls.VERSION:
            raise ContractError(f"{cls.__name__}: schema {version!r}, this is {cls.VERSION}")
        found = from_json(cls, data)
        found.check()
        return found

    def check(self) -> None:
        """Check that its figures can be such; others come of damage.

        Raises:
            ContractError: One cannot.
        """


def from_json(cls: type[T], data: Mapping[str, Any]) -> T:
    """JSON data as a dataclass, with the dataclasses and enums inside it made again.

    Raises:
        ContractError: A field is missing, unknown or of another type.
    """
    known, needed = _fields_of(cls)  # type: ignore[arg-type]  # a class is hashable
    unknown, missing = data.keys() - known.keys(), needed - data.keys()
    if unknown or missing:
        raise ContractError(
            f"{cls.__name__}: unknown fields {sorted(unknown)}, missing fields {sorted(missing)}"
        )
    made = {}
    for name, value in data.items():
        try:
            made[name] = known[name](value)
        except TypeError as error:
            problem = f"{cls.__name__}: {name}: {str(value)[:60]!r} is of another type"
            raise ContractError(problem) from error
        except ValueError as error:
            raise ContractError(f"{cls.__name__}: {name}: {error}") from error
    return cls(**made)


_Maker = Callable[[Any], Any]
"""JSON data as a value of one type; raises TypeError for data of another."""


@functools.cache
def _fields_of(cls: type) -> tuple[dict[str, _Maker], frozenset[str]]:
    """How to make each field of a dataclass, and which have to be there.

    A record of thousands of trials is read by this: types are looked at once.
    """
    fields = dataclasses.fields(cls)
    needed = frozenset(
        f.name
        for f in fields
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    )
    return {f.name: _maker(f.type) for f in fields}, needed


def _maker(kind: Any) -> _Maker:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda data: data
    if origin is UnionType:
        return _either([_maker(part) for part in arguments])
    plain = _plain(kind, origin)
    if origin is list:
        item = _maker(arguments[0])
        return lambda data: [*map(item, data)] if isinstance(data, list) else plain(data)
    if origin is tuple:
        return _tuple(arguments, plain)
    if origin is dict:
        value = _maker(arguments[1])
        return lambda data: (
            {key: value(part) for key, part in data.items()}
            if isinstance(data, dict)
            else plain(data)
        )
    if dataclasses.is_dataclass(kind):
        made: Any = kind
        return lambda data: from_json(made, data) if isinstance(data, dict) else plain(data)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return lambda data: kind(data) if isinstance(data, str) else plain(data)
    return plain


def _tuple(kinds: Sequence[Any], otherwise: _Maker) -> _Maker:
    """A JSON list as a tuple: of any length where the kinds end in an ellipsis."""
    makers = [_maker(kind) for kind in kinds if kind is not ...]

    def make(data: Any) -> Any:
        if not isinstance(data, list):
            return otherwise(data)
        makers_of_all = makers * len(data) if kinds[-1] is ... else makers
        if len(makers_of_all) != len(data):
            raise TypeError
        return tuple(maker(value) for maker, value in zip(makers_of_all, data, strict=True))

    return make


def _either(makers: Sequence[_Maker]) -> _Maker:
    def make(data: Any) -> Any:
        for maker in makers:
            with contextlib.suppress(TypeError):
                return maker(data)
        raise TypeError

    return make


def _plain(kind: Any, origin: Any) -> _Maker:
    allowed = int | float if kind is float else origin or kind

    def make(data: Any) -> Any:
        # Python calls a switch an int, too; JSON writes a whole float as an int.
        is_of_kind = isinstance(data, allowed) and isinstance(data, bool) == (kind is bool)
        if not is_of_kind or (type(data) is int and abs(data) > _MAX_INT):
            raise TypeError
        return data

    return make


def check_figures(name: str, values: Iterable[float | None], *, zero: bool = False) -> None:
    """Check that times, rates or counts, where there are any, can be such.

    Raises:
        ContractError: One is not above 0 (or 0, with `zero`), or absurdly large: of damage.
    """
    for value in values:
        if value is not None and not (0 < value <= _MAX_FIGURE or (zero and value == 0)):
            least = "from 0" if zero else "above 0 and up"
            raise ContractError(f"{name}: {value} is not {least} to {_MAX_FIGURE:.0e}")
