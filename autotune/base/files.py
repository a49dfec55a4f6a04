"""Files that a reader sees whole: the old one or the new one, never a part."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from autotune.contract import mode_of

_HEAD_BYTES = 8192


def is_foreign(path: Path, marker: bytes) -> bool:
    """Whether what stands at a path, if anything, is no file of the kind to be written there.

    Args:
        path: Where one is to be written.
        marker: Stands near the beginning of every file of that kind.

    Raises:
        OSError: The file cannot be read.
    """
    if not path.exists():
        return False
    if not path.is_file():
        return True
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    return bool(head) and marker not in head


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write aside, then move; a file that is there keeps its permissions.

    Args:
        path: The file to write; its folder is there.
        write: Is given the file to write instead.

    Raises:
        OSError: The disk is full or the folder cannot be written; the old file still stands.
    """
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        write(Path(aside))
        # On the disk before it is in place: a power cut leaves no empty file under the old name.
        with Path(aside).open("rb") as file:
            os.fsync(file.fileno())
        Path(aside).chmod(mode_of(path))
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
