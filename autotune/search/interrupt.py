"""Ctrl-C once: stop launching, drain and report. Twice: end at once."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
        """Whether what runs has to end now."""
        return self._requests >= 2

    def wait(self, seconds: float) -> None:
        """Let the trials run for a moment.

        A plain sleep: an Event's lock, taken in a signal handler while the same thread waits on
        it, is a deadlock.
        """
        time.sleep(seconds)

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Take SIGINT and SIGTERM as requests until the block ends; main thread only."""

        def handle(_signal: int, _frame: FrameType | None) -> None:
            self.request()

        before = {number: signal.signal(number, handle) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                # None: a handler that was not installed from Python and cannot be put back.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
