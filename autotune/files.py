"""Files that a reader sees whole: the old one or the new one, never a part."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from autotune.contract import mode_of


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
