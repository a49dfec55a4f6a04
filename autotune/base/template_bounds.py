"""A user's template in bounded time and memory: `range` in `range` ends no coordinator.

What computes in Python is bounded. One long call of C, such as the sorting of a giant list, is not
interrupted: the time is looked at when it returns, and what it may hold meanwhile bounds it.
"""

import contextlib
import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

MAX_CPU_S = 5.0
"""Time of one rendering; the shipped templates take below a hundredth of a second."""
MAX_BYTES = 256 * 2**20
"""Above what the process holds already."""
_STATM = Path("/proc/self/statm")
"""File in which Linux says how much memory a process has."""


class TooLongError(RuntimeError):
    """A template has computed for `MAX_CPU_S`."""


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Bound what the block computes and allocates; the clock is that of the main thread alone.

    Processor time, so that a busy machine changes nothing. Long arithmetic looks for signals as
    well, so a power of powers ends too; other calls of C end first. Memory is bounded on Linux
    alone: elsewhere nobody says what the process holds.

    Raises:
        TooLongError: The time is up.
        MemoryError: The memory is.
    """
    with _bounded_memory(), _bounded_time():
        yield


@contextlib.contextmanager
def _bounded_time() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise TooLongError(f"not done after {MAX_CPU_S:.0f} s of computing")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, MAX_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        # None: a handler that was not installed from Python and cannot be put back.
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL if before is None else before)


@contextlib.contextmanager
def _bounded_memory() -> Iterator[None]:
    held_bytes = _data_bytes()
    if held_bytes is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    others = [other for other in (soft, hard) if other != resource.RLIM_INFINITY]
    limit = min([held_bytes + MAX_BYTES, *others])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data_bytes() -> int | None:
    """Private data of this process, as the limit counts it; None where there is no such file."""
    try:
        return int(_STATM.read_text(encoding="ascii").split()[5]) * resource.getpagesize()
    except OSError:
        return None
