"""Removes what a trial leaves in /dev/shm under a name: the kernel keeps it when all have ended.

Torch's tensors between processes are there, pools of Python, NCCL's. Another program's must never
be removed, so there has to be evidence: a process of the trial had the file open or mapped when it
was looked at, or has its number in a name of a known form; and nobody has it now. A name whose
process came and went between two looks stays if it has none of those forms.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

FOLDER = Path("/dev/shm")
_NUMBERED = re.compile(
    r"(?:torch_|__KMP_REGISTERED_LIB_|(?:sem\.)?loky-|joblib_memmapping_folder_)(\d+)(?:[_-].*)?"
)
"""Names that hold the number of the process that made them."""

Name = tuple[Path, int]
"""A path and its inode: who makes the file anew makes another one."""


class Leavings:
    """Names that one trial's processes make on this node."""

    def __init__(self, folder: Path = FOLDER) -> None:
        """Begin: what is there now is not the trial's."""
        self._folder = folder
        self._before = _names(folder)
        self._found: set[Name] = set()

    def look(self, pids: Callable[[], Collection[int]]) -> None:
        """See which new names are the trial's; its processes are asked for where there are any."""
        new = self._new()
        if not new:
            return
        held = {path for pid in pids() for path in _files_held(pid, self._folder)}
        self._found |= {name for name in new if str(name[0]) in held}

    def remove(self, pids: Collection[int]) -> None:
        """Remove what is the trial's: its processes, whose numbers these were, have ended."""
        for name in self._new():
            numbered = _NUMBERED.fullmatch(name[0].name)
            if numbered is not None and int(numbered[1]) in pids:
                self._found.add(name)
        left = self._found & _names(self._folder)
        in_use = self._in_use() if left else set()
        for path, _ in left:
            if str(path) not in in_use:
                with contextlib.suppress(OSError):
                    _remove(path)

    def _new(self) -> set[Name]:
        return _names(self._folder) - self._before - self._found

    def _in_use(self) -> set[str]:
        """Files that any process of this user has open or mapped: a service the trial used."""
        numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return {path for pid in numbers for path in _files_held(pid, self._folder)}


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink()


def _names(folder: Path) -> set[Name]:
    """Files of this user in a folder."""
    found = set()
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # it went meanwhile
                status = entry.stat(follow_symlinks=False)
                if status.st_uid == os.getuid():
                    found.add((Path(entry.path), status.st_ino))
    return found


def _files_held(pid: int, folder: Path) -> set[str]:
    """Paths in a folder that a process has open or mapped."""
    found = set()
    with contextlib.suppress(OSError):  # it has ended
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # it was closed meanwhile
                found.add(os.readlink(f"/proc/{pid}/fd/{number}"))
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
        found |= {line.split(maxsplit=5)[-1] for line in text.splitlines()}
    return {path for path in found if path.startswith(f"{folder}{os.sep}")}
