"""Disks that are full or read-only: small ones in memory, which only root may mount."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

_SIZE = "8m"


def needs_mounts() -> str:
    """Why no disk can be mounted here; empty: it can."""
    if os.geteuid() != 0:
        return "mounting a disk needs root"
    # In a container root may not mount either: a namespace of its own tells without a trace.
    asked = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        done = subprocess.run(asked, capture_output=True, check=False)
    except FileNotFoundError:
        return "unshare is not installed"
    return "" if done.returncode == 0 else "this container may not mount a disk"


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of 8 MiB mounted at a folder, and gone afterwards."""
    _run("mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        _run("umount", "-l", str(folder))


def make_read_only(folder: Path, *, read_only: bool = True) -> None:
    """Let nobody write on a mounted disk, root included; or let them again."""
    _run("mount", "-o", f"remount,{'ro' if read_only else 'rw'}", str(folder))


def fill(folder: Path) -> Path:
    """Write until a disk is full; returns the file to remove."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
