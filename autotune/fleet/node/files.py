"""A trial's files on a node: in the coordinator's folder where it is shared, else in one of ours.

Nothing tells whether a folder is shared but what lies in it. The coordinator sends the few files
that a trial starts from; where the same ones stand at the same path already, the trial runs there,
and what it writes is where the coordinator looks. Elsewhere they are written into a folder of this
node, and what the trial adds to them is sent back over the agent's line as it comes.
"""

import base64
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from autotune.base.private import open_new
from autotune.contract import PRIVATE_MODE, RANKS_DIR, SCRATCH_ENV, open_regular

MOST_BYTES = 64 * 2**20
"""Largest file that is sent back: reports and logs are far smaller, checkpoints far larger."""
_LOG_SUFFIX = ".log"
_CHUNK_BYTES = 1 << 20

Files = Mapping[str, str]
"""Contents in base64 by their path below a trial's folder."""


def packed(folder: Path) -> dict[str, str]:
    """The files of a trial that was not started yet.

    Raises:
        OSError: One cannot be read.
    """
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): base64.b64encode(path.read_bytes()).decode()
        for path in found
    }


def node_folder(coordinator: str, folder: str) -> Path:
    """Where an agent keeps what a coordinator has in a folder; it goes with the agent.

    Args:
        coordinator: Name of its machine: two of them may have the same paths.
        folder: Absolute.
    """
    around = os.environ.get(SCRATCH_ENV) or tempfile.gettempdir()
    return Path(around, coordinator, folder.lstrip("/"))


class TrialFiles:
    """The files of one trial on this node."""

    def __init__(self, coordinator: str, folder: str, files: Files) -> None:
        """Find the folder, and write the files where they are not there.

        Raises:
            OSError: They cannot be written.
        """
        self.folder = Path(folder)
        self.is_shared = not files or _stand_at(self.folder, files)
        self._sent: dict[str, tuple[int, int]] = {}
        """Size and time of change of what was sent, by name."""
        if self.is_shared:
            return
        self.folder = node_folder(coordinator, folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        for name, content in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(base64.b64decode(content))
            self._sent[name] = _state(path)

    def added(self) -> Iterator[tuple[str, int, bytes]]:
        """What was written since the last call: name, offset, bytes; nothing where it is shared.

        Logs come in pieces, other files whole.
        """
        if self.is_shared:
            return
        for path in [*self.folder.glob("*"), *(self.folder / RANKS_DIR).glob("*")]:
            name = str(path.relative_to(self.folder))
            with suppress(OSError):  # it was written aside and is gone
                if not path.is_file() or path.is_symlink() or path.name.startswith("."):
                    continue
                now = _state(path)
                before = self._sent.get(name, (0, 0))
                if now == before or now[0] > MOST_BYTES:
                    continue
                is_log = path.suffix == _LOG_SUFFIX and now[0] >= before[0]
                offset = before[0] if is_log else 0
                for start, data in _pieces(path, offset, whole=not is_log):
                    yield name, start, data
                    now = (start + len(data), now[1])
                self._sent[name] = now

    def remove(self) -> None:
        if not self.is_shared:
            shutil.rmtree(self.folder, ignore_errors=True)


def _stand_at(folder: Path, files: Files) -> bool:
    with suppress(OSError):
        return all(
            (folder / name).read_bytes() == base64.b64decode(content)
            for name, content in files.items()
        )
    return False


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _pieces(path: Path, offset: int, *, whole: bool) -> Iterator[tuple[int, bytes]]:
    with open(open_regular(path), "rb") as file:
        file.seek(offset)
        if whole:
            yield 0, file.read(MOST_BYTES)
            return
        while data := file.read(_CHUNK_BYTES):
            yield offset, data
            offset += len(data)


class Incoming:
    """Takes in what a node has added to a trial's files; names that lead elsewhere are refused."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self, name: str, offset: int, content: str) -> None:
        """Write a piece of a file.

        Raises:
            OSError: It cannot be written.
            ValueError: The name leads out of the trial's folder, or is one of the coordinator's.
        """
        parts = Path(name).parts
        is_report = len(parts) == 2 and parts[0] == RANKS_DIR
        is_log = len(parts) == 1 and name.endswith(_LOG_SUFFIX)
        if ".." in parts or name.startswith((".", "/")) or not (is_report or is_log):
            raise ValueError(f"{name!r} is no report and no log of a trial")
        path, data = self._folder / name, base64.b64decode(content)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if is_log:
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(path, flags, PRIVATE_MODE), "wb") as file:
                os.ftruncate(file.fileno(), offset)
                file.seek(offset)
                file.write(data)
            return
        aside = path.with_name(f".{path.name}.coming")
        with open(open_new(aside), "wb") as file:
            file.write(data)
        aside.replace(path)
