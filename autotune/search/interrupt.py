"""Ctrl-C once: stop launching, drain and report. Twice: end at once.

A terminal that hangs up asks as Ctrl-C does, unless the program was started to outlive it (nohup).
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

CANCEL_WAIT_S = 30.0
"""How long to wait for cancelled trials to say so: a node kills for 10 s and drains for 15 s at
the most. Those that do not are `lost` on resume."""


class Interrupt:
    """How urgently the user wants the search to end."""

    def __init__(self) -> None:
        self._requests = 0

    def request(self) -> None:
        """Ask once more; the first time drains, the second ends everything."""
        self._requests += 1

    @property
    def draining(self) -> bool:
        """Whether nothing new may start."""
        return self._requests >= 1

    @property
    def ending(self) -> bool:
        return self._requests >= 2

    def wait(self, seconds: float) -> None:
        """Let the trials run for a moment.

        A plain sleep: an Event's lock, taken in a signal handler while the same thread waits on
        it, is a deadlock.
        """
        time.sleep(seconds)

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Take SIGINT, SIGTERM and SIGHUP as requests until the block ends.

        Only a program's main thread may: in another one they stay whose they are.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(_signal: int, _frame: FrameType | None) -> None:
            self.request()

        taken = [number for number in _SIGNALS if not _is_ignored(number)]
        before = {number: signal.signal(number, handle) for number in taken}
        try:
            yield
        finally:
            for number, handler in before.items():
                # None: a handler that was not installed from Python and cannot be put back.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)


def end_as_by_ctrl_c() -> None:
    """Have SIGTERM and a terminal that hangs up end the program as Ctrl-C does.

    A search drains by itself.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if not _is_ignored(number):
            signal.signal(number, signal.default_int_handler)


def _is_ignored(number: signal.Signals) -> bool:
    """Whether whoever started the program wants it to outlive its terminal."""
    return number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN
