"""Programs that prepare nodes, one on each, and what comes of them."""

import time
from collections.abc import Callable, Sequence

from autotune.base.errors import AutotuneError, FleetError
from autotune.fleet.transports.base import Node, NodeProcess, Transport

END = b'{"command": "end"}\n'
"""Line on the standard input of a build that ends it."""
_PERIOD_S = 0.02
_END_WAIT_S = 10.0
"""Time that a build has to end its compilers in and to remove what they leave."""


def started(transport: Transport, node: Node, module: str, *arguments: str) -> NodeProcess:
    """A program on a node.

    Raises:
        FleetError: It cannot be started.
    """
    try:
        return transport.start(node, module, *arguments)
    except OSError as error:
        raise FleetError(
            f"{node.name}: no process can be started there: {error}",
            "see whether it is up and reached",
        ) from error


class Builds:
    """A build on each of some nodes. All are waited for, whatever becomes of one."""

    def __init__(self, note: Callable[[str], None], *, names_nodes: bool) -> None:
        self._note = note
        self._names_nodes = names_nodes
        self._running: list[_NodeBuild] = []
        self._error: AutotuneError | None = None
        self._was_interrupted = False

    def start(self, transport: Transport, node: Node, command: Sequence[str]) -> None:
        """Start one more, unless one before it could not be started."""
        if self._error is not None:
            return
        try:
            process = started(transport, node, *command)
        except FleetError as error:
            self._error = error
        else:
            where = f"{node.name}: " if self._names_nodes else ""
            self._running.append(_NodeBuild(process, where))

    def wait(self, meanwhile: Callable[[], None]) -> None:
        """Wait until all have ended, and call `meanwhile` all the time.

        The first interrupt waits for their end. The second one asks them to end, and kills those
        that have not after `_END_WAIT_S`.

        Raises:
            FleetError: One failed: the first of these.
            KeyboardInterrupt: It came before they had ended.
        """
        while self._running:
            try:
                self._listen()
                meanwhile()
                time.sleep(_PERIOD_S)
            except AutotuneError as error:
                self._fail(error)
            except KeyboardInterrupt:
                if self._was_interrupted:
                    self._end()
                    raise
                self._was_interrupted = True
                self._note("ending once the build is done; Ctrl-C again ends it at once")
        if self._was_interrupted:
            raise KeyboardInterrupt
        if self._error is not None:
            raise self._error

    def _end(self) -> None:
        running, until_s = self._running, time.monotonic() + _END_WAIT_S
        for build in running:
            build.process.send(END)
        while running and time.monotonic() < until_s:
            time.sleep(_PERIOD_S)
            for build in running:
                build.hear()
            running = [build for build in running if build.code is None]
        for build in running:
            build.process.end()

    def _listen(self) -> None:
        for build in list(self._running):
            for line in build.hear():
                self._note(line)
            if build.code is not None:
                self._running.remove(build)
            if build.code:
                self._fail(build.error())

    def _fail(self, error: AutotuneError) -> None:
        if self._error is None and self._running:
            self._note(f"{error.message}: ending once the other nodes are done")
        self._error = self._error or error


class _NodeBuild:
    def __init__(self, process: NodeProcess, where: str) -> None:
        self.code: int | None = None
        self.process = process
        self._where = where
        self._unread = b""
        self._last = ""
        """Its last line: of one that fails, its error."""

    def hear(self) -> list[str]:
        self.code = self.process.poll()
        *lines, self._unread = (self._unread + self.process.receive()).split(b"\n")
        texts = [f"{self._where}{x.decode(errors='replace')}" for x in lines if x.strip()]
        if texts:
            # It may have come before its end was seen.
            self._last = texts.pop() if self.code else texts[-1]
        return texts

    def error(self) -> FleetError:
        text = self._last or f"{self._where}exit code {self.code}"
        return FleetError(*text.rsplit("; ", 1))
