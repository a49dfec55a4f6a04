"""Files that a reader sees whole: the old one or the new one, never a part."""

import errno
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from autotune.base.errors import AutotuneError, StudyError
from autotune.base.private import refuse_prepared
from autotune.contract import NotAFileError, open_regular, write_aside

NAME_HINT = "mend the folder's permissions, free some space, or name another file"
_HEAD_BYTES = 8192


def refuse_foreign(path: Path, marker: bytes, whose: str) -> None:
    """Refuse to write over a file that lacks our marker near its beginning.

    Raises:
        StudyError: Something without the marker is there, or it cannot be read.
    """
    foreign = True
    try:
        with open(open_regular(path), "rb") as file:
            head = file.read(_HEAD_BYTES)
        foreign = bool(head) and marker not in head
    except FileNotFoundError:
        return
    except NotAFileError:
        pass
    except OSError as error:
        raise StudyError.of("base.target_unread", path=path, error=error) from error
    if foreign:
        raise StudyError.of("base.not_ours", path=path, whose=whose)


def check_target(path: Path, marker: bytes, whose: str) -> None:
    """See that a file of ours can be written to a path, before what fills it takes long.

    Raises:
        StudyError: Its folder is not there or cannot be written, it cannot be read, or it lacks
            the marker.
    """
    refuse_foreign(path, marker, whose)
    folder = path.absolute().parent
    if not folder.is_dir():
        raise StudyError(f"{path}: there is no such folder", "make it, or name another file")
    try_folder(folder, named=path, hint=NAME_HINT)


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
    """Have a file written as `write_aside` does, in no folder that another user has prepared.

    Raises:
        PreparedError: Another user made the folder where everybody may write.
        OSError: As `write_aside`.
    """
    refuse_prepared(path.parent)
    write_aside(path, write, mode=mode)
