"""Files that a reader sees whole: the old one or the new one, never a part."""

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from autotune.base.errors import AutotuneError, StudyError
from autotune.base.private import refuse_prepared
from autotune.contract import NotAFileError, aside_prefix, mode_of, open_regular

_HEAD_BYTES = 8192


def is_foreign(path: Path, marker: bytes) -> bool:
    """True if a file at a path lacks the marker near its beginning.

    Raises:
        OSError: The file cannot be read.
    """
    try:
        with open(open_regular(path), "rb") as file:
            head = file.read(_HEAD_BYTES)
    except FileNotFoundError:
        return False
    except NotAFileError:
        return True
    return bool(head) and marker not in head


def refuse_foreign(path: Path, marker: bytes, whose: str) -> None:
    """Refuse to write over a file that lacks our marker.

    Raises:
        StudyError: Something without the marker is there, or it cannot be read.
    """
    try:
        foreign = is_foreign(path, marker)
    except OSError as error:
        raise StudyError(
            f"{path}: cannot be read: {error.strerror}", "name another file"
        ) from error
    if foreign:
        raise StudyError(
            f"{path}: is there and was not written {whose}",
            "name another file, or move that one away",
        )


def write_text(
    path: Path,
    text: str,
    *,
    error: type[AutotuneError],
    hint: str,
    makes_folder: bool = True,
    mode: int | None = None,
) -> None:
    """Write a file as `write_whole` does; raise `error` where that fails.

    Its folder is made where it is not there, unless it is one that only somebody who moved it
    away can have taken.
    """
    with writing(path, hint=hint, error=error):
        if makes_folder:
            refuse_prepared(path.parent)
            path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda aside: aside.write_bytes(text.encode("utf-8")), mode=mode)


def try_folder(folder: Path, *, named: Path, hint: str) -> None:
    """Write into a folder, or the nearest above it that is there, and leave nothing behind.

    Raises:
        StudyError: `named` cannot be written.
    """
    with writing(named, hint=hint):
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with tempfile.NamedTemporaryFile(dir=there, prefix=".probe-") as aside:
            aside.write(b"a byte")
            aside.flush()


@contextmanager
def writing(path: Path, *, hint: str, error: type[AutotuneError] = StudyError) -> Iterator[None]:
    """Raise `error`, with what helps, where something cannot be written at a path meanwhile."""
    try:
        yield
    except OSError as failure:
        is_full = failure.errno in (errno.ENOSPC, errno.EDQUOT)
        fix = "free some space there, then run the same command again" if is_full else hint
        reason = failure.strerror or failure
        raise error(f"{path}: cannot be written: {reason}", fix) from failure


def write_whole(path: Path, write: Callable[[Path], object], *, mode: int | None = None) -> None:
    """Have a file written aside, then move it.

    Args:
        path: The file.
        write: Writes it, at the path that it is given.
        mode: Its permissions; None: those of the file that is there, or the usual ones.

    Raises:
        PreparedError: Another user made the folder where everybody may write.
        OSError: The disk is full or the folder cannot be written; the old file still stands.
    """
    refuse_prepared(path.parent)
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=aside_prefix(path))
    os.close(handle)
    try:
        write(Path(aside))
        # On the disk before it is in place: a power cut leaves no empty file under the old name.
        with Path(aside).open("rb") as file:
            os.fsync(file.fileno())
        Path(aside).chmod(mode_of(path) if mode is None else mode)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
