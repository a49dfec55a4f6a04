"""Keeps one command and all that it starts: nothing of it outlives its parent, or its own end.

Run by `autotune.base.guarded_process` as a script, isolated, so that it starts in milliseconds;
standard library only. It starts the command, and waits. When the command ends, when its parent
ends, when its time is up or on SIGTERM it kills every descendant, however deep and in whatever
session, and removes their folder for temporary files. Then it ends as the command did. A command
that cleans up when its parent has ended, as its input then tells it, may get some time for that.

A signal at the parent's death (PR_SET_PDEATHSIG) alone reaches neither compilers nor workers that
the command started, and comes already when the *thread* that started the command ends. So the
keeper watches the parent by a pidfd, and adopts orphans (PR_SET_CHILD_SUBREAPER). The command has
the signal as well, bound to the keeper, whose only thread lives as long as itself.

Keepers are two, one below the other, and each watches the parent and the other one: whichever is
killed or stopped, the other ends the rest.
"""

import contextlib
import ctypes
import fcntl
import functools
import json
import os
import resource
import select
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

PREFIX = "autotune-run-"
"""How the names of folders for temporary files begin."""
_LOCK_FILE = ".held"
_MADE_WITHIN_S = 60.0
"""Time after which an empty folder without its lock file is not being made, but left."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
END_WAIT_S = 10.0
"""Time after which a process that is still there is left to itself: it is in uninterruptible
sleep, and the kernel delivers the signal when it wakes."""
LOOK_S = 0.005
"""Time between two looks at what is being killed."""


class Scratch:
    """A private folder for temporary files, locked while its owner lives.

    A lock of the kernel (flock) ends with its holder, in whatever container that ran: a folder
    of this user whose lock is free belonged to a process that was killed.
    """

    def __init__(self, root: str) -> None:
        sweep(root)
        self.path = os.path.join(root, PREFIX + os.urandom(4).hex())
        os.mkdir(self.path, 0o700)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        self._lock = os.open(os.path.join(self.path, _LOCK_FILE), flags, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        _remove_tree(self.path)
        os.close(self._lock)


def sweep(root: str) -> None:
    """Remove the folders that killed processes of this user left below a folder."""
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        found = [entry.path for entry in entries if entry.name.startswith(PREFIX)]
        for path in found:
            with contextlib.suppress(OSError):
                _remove_if_left(path)


def _remove_if_left(path: str) -> None:
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        return  # none that was made here
    try:
        lock = os.open(os.path.join(path, _LOCK_FILE), os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        # It is being made just now, or who removed it was killed at the last step.
        if time.time() - status.st_mtime > _MADE_WITHIN_S:
            os.rmdir(path)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove_tree(path)
    finally:
        os.close(lock)


def _remove_tree(path: str) -> None:
    import shutil  # takes longer to import than all else here

    # The lock file goes last: whoever is killed before leaves a folder that the next one removes.
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        for entry in [entry for entry in entries if entry.name != _LOCK_FILE]:
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)
    shutil.rmtree(path, ignore_errors=True)


def main() -> NoReturn:
    """Keep the command: `keeper.py OPTIONS COMMAND ...`; for both see `guarded_process.py`."""
    options, command = json.loads(sys.argv[1]), sys.argv[2:]
    if not sys.platform.startswith("linux"):  # the command has to end by itself
        os.execvp(command[0], command)
    parent = _pidfd_of_parent(options["parent"])
    if parent is None:
        os._exit(1)
    scratch = Scratch(options["root"])
    outer = os.getpid()

    def keep_too() -> NoReturn:
        os.setsid()  # what is sent to the group of one does not reach the other
        above = _pidfd_of_parent(outer)
        if above is None:
            scratch.remove()
            os._exit(1)
        inner = os.getpid()
        become = functools.partial(_become, command, options, scratch.path, inner)
        _keep(become, [parent, above], scratch, options)

    _keep(keep_too, [parent], scratch, options)


def _pidfd_of_parent(parent: int) -> int | None:
    """A pidfd of the process that started this one, or None where that has ended."""
    try:
        found = os.pidfd_open(parent)
    except ProcessLookupError:
        return None
    # Where it ended before, another process may have its number by now.
    return found if os.getppid() == parent else None


def _keep(
    become: Callable[[], NoReturn],
    watched: list[int],
    scratch: Scratch,
    options: dict[str, Any],
) -> NoReturn:
    """Fork what is kept, and end with it; it ends with this process and with those watched."""
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    # Handlers come before the first child, so that no end of one is missed.
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    adopt_orphans()
    child = os.fork()
    if child == 0:
        become()
    _let_go_of_pipes()
    status = _wait(child, watched, woken, asked, options)
    ended = end_all_below()
    scratch.remove()
    _end_as(ended.get(child, signal.SIGKILL.value) if status is None else status)


def _become(command: list[str], options: dict[str, Any], scratch: str, keeper: int) -> NoReturn:
    """Turn the forked process into the command, tied to the keeper."""
    try:
        end_with_parent(keeper)
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        _limit(resource.RLIMIT_CORE, 0)  # a rank that dies leaves no core where it ran
        if options["data_bytes"]:
            _limit(resource.RLIMIT_DATA, options["data_bytes"])
        os.environ[options["parent_env"]] = str(keeper)
        os.environ[options["scratch_env"]] = scratch
        if options["is_tmpdir"]:
            os.environ["TMPDIR"] = scratch
        os.execvp(command[0], command)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(2, f"{command[0]}: {error}\n".encode())
    finally:
        os._exit(127)


def _limit(which: int, most: int) -> None:
    """Set a limit that the command cannot raise: libraries do, to what the hard one allows."""
    _, hard = resource.getrlimit(which)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (most, most))


def _let_go_of_pipes() -> None:
    """Leave the pipes to the command: who reads them sees their end when that ends."""
    null = os.open(os.devnull, os.O_RDWR)
    for file in (0, 1, 2):
        os.dup2(null, file)


def _wait(
    child: int, watched: list[int], woken: int, asked: list[int], options: dict[str, Any]
) -> int | None:
    """Wait for the child; its status, or None where something else comes first.

    The first process that is watched is the parent.
    """
    parent, *others = watched
    until_s = time.monotonic() + options["wall_s"] if options["wall_s"] else None
    while not asked:
        left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
        ready, _, _ = select.select([*watched, woken], [], [], left_s)
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
        # Orphans are reaped at once: who waits for their end looks whether they are there.
        for pid, status in _reaped():
            if pid == child:
                return status
        if not ready or any(other in ready for other in others):
            break
        if parent in ready:
            watched, until_s = others, time.monotonic() + options["grace_s"]
    return None


def end_all_below() -> dict[int, int]:
    """Kill all that this process has started or adopted, and wait until it is gone.

    Returns:
        Exit statuses by process id.
    """
    statuses: dict[int, int] = {}
    deadline_s = time.monotonic() + END_WAIT_S
    while time.monotonic() < deadline_s:
        for pid in below(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            for pid, status in _reaped():
                statuses[pid] = status
        except ChildProcessError:
            break
        time.sleep(LOOK_S)
    return statuses


def _reaped() -> Iterator[tuple[int, int]]:
    """Children that have ended, with their status.

    Raises:
        ChildProcessError: There are no children.
    """
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        yield pid, status


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


def has_ended(pid: int) -> bool:
    """Whether a process has ended, be it that its parent has not asked for its exit code yet."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # A command's name may hold anything: the fields come after the last parenthesis.
            return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True


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


@contextlib.contextmanager
def keeping(parent: int) -> Iterator[None]:
    """End with a parent (see `end_with_parent`), and end all that the block starts, at its end."""
    end_with_parent(parent)
    adopt_orphans()
    try:
        yield
    finally:
        end_all_below()


def adopt_orphans() -> None:
    """Become the parent of what this process's children orphan, in whatever session it is.

    A daemon that has cleared its environment bears no mark, and is found by its descent alone.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):  # not Linux: marks are what is left
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_as(status: int) -> NoReturn:
    """End as the command did: with its code, or by its signal."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with contextlib.suppress(OSError, ValueError):  # neither of the two can be handled
            signal.signal(-code, signal.SIG_DFL)
        _limit(resource.RLIMIT_CORE, 0)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
