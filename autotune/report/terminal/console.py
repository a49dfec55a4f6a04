"""Consoles that nothing they show can steer, and that a terminal's end cannot break."""

import contextlib
import errno
import os
import sys
from collections.abc import Iterable
from typing import IO, Any, Literal, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from autotune.base.text import lines

_GONE = (errno.EPIPE, errno.EIO, errno.ENXIO)
"""Errors of writing when nobody reads any more: a closed pipe, a terminal that hung up."""


class SafeConsole(Console):
    """A console that shows escape sequences of others as text; its own colours stay."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """See `Console.render`; also what is nested goes through here, before it is measured."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else lines(segment.text)
            yield segment if text is segment.text else Segment(text, segment.style)


class LastingStream:
    """Stdout or stderr of the moment, that swallows what is written once nobody reads it.

    A search whose terminal is gone still has trials to end and a record to write. A full disk
    under a redirected stdout is an error as ever.
    """

    def __init__(self, name: Literal["stdout", "stderr"]) -> None:
        self._name = name
        self._was_terminal: bool | None = None

    def write(self, text: str) -> int:
        self._guarded("write", text)
        return len(text)

    def flush(self) -> None:
        self._guarded("flush")

    def isatty(self) -> bool:
        try:
            return bool(self._stream.isatty())
        except (OSError, ValueError):
            return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def _stream(self) -> Any:
        stream = getattr(sys, self._name)
        return getattr(stream, "rich_proxied_file", stream)  # what rich put in its place

    def _guarded(self, method: str, *arguments: str) -> None:
        stream = self._stream
        if self._was_terminal is None:
            self._was_terminal = self.isatty()
        try:
            getattr(stream, method)(*arguments)
        except (OSError, ValueError) as error:  # ValueError: it is closed
            if not self._is_gone(error):
                raise
            # Else the interpreter, at its end, would fail on what is still in the buffer.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                devnull = os.open(os.devnull, os.O_WRONLY)
                os.dup2(devnull, stream.fileno())
                os.close(devnull)

    def _is_gone(self, error: OSError | ValueError) -> bool:
        if self._name == "stderr":
            return True  # where else could it be said?
        if isinstance(error, ValueError):
            return "closed" in str(error)
        return error.errno == errno.EPIPE or (bool(self._was_terminal) and error.errno in _GONE)


def console_on(name: Literal["stdout", "stderr"]) -> SafeConsole:
    """A console on one of the two streams."""
    return SafeConsole(file=cast(IO[str], LastingStream(name)), stderr=name == "stderr")
