"""Says who was started by whom, as the kernel tells it, and ends what should not outlive whom."""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_END_WAIT_S = 10.0
"""Time after which a process that is still there is left to itself: it is in uninterruptible
sleep, and the kernel delivers the signal when it wakes."""
_LOOK_S = 0.005


def below(pid: int) -> Iterator[int]:
    """All that a process has started, directly or not, and what it has adopted."""
    for child in children_of(pid):
        yield child
        yield from below(child)


def children_of(pid: int) -> list[int]:
    """Processes whose parent a process is; none, if it has ended."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found += [int(child) for child in file.read().split()]
    return found


def parent_of(pid: int) -> int:
    """The process that has started or adopted another one.

    Raises:
        OSError: It has ended.
    """
    with open(f"/proc/{pid}/stat", "rb") as file:
        # A command's name may hold anything: the fields come after the last parenthesis.
        return int(file.read().rpartition(b")")[2].split()[1])


def has_ended(pid: int) -> bool:
    """Whether a process has ended, be it that its parent has not asked for its exit code yet."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True


def ancestors(pid: int) -> Iterator[int]:
    """The parent of a process, that one's, and so on to the first of all."""
    with contextlib.suppress(OSError):
        while pid > 1:
            pid = parent_of(pid)
            yield pid


def end_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends.

    Killing a launcher alone leaves its ranks alive and holding their devices, so every process of
    a trial asks for this.

    Args:
        parent: Process id that the parent should have; if it is another one, the parent ended
            before this call and the process ends at once. Whoever adopts orphans, and the parent
            itself, may have any id.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        return  # not Linux: the sweep for orphans is what is left
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of what this process's children orphan, in whatever session it is.

    A daemon that has cleared its environment bears no mark, and is found by its descent alone.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):  # not Linux: marks are what is left
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_all_below() -> None:
    """Kill all that this process has started or adopted, and wait until it is gone."""
    deadline_s = time.monotonic() + _END_WAIT_S
    while time.monotonic() < deadline_s:
        for pid in below(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_LOOK_S)
