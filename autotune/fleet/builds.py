"""A program that prepares nodes, run on all of them at once."""

import time
from collections.abc import Callable, Sequence

from autotune.base.errors import FleetError
from autotune.fleet.transports.base import JsonLines, Node, NodeProcess, Transport

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


def build_on_nodes(
    transport: Transport,
    command: Sequence[str],
    note: Callable[[str], None],
    *,
    meanwhile: Callable[[], None],
) -> None:
    """Run a build on every node; all are waited for, whatever becomes of one.

    What ends the wait (an interrupt, or what `meanwhile` raises) ends the builds as well.

    Raises:
        FleetError: One failed: the first of these.
    """
    nodes = transport.nodes()
    builds: list[_NodeBuild] = []
    errors: list[FleetError] = []
    for node in nodes:
        try:
            process = started(transport, node, *command)
        except FleetError as error:
            errors.append(error)
            break
        builds.append(_NodeBuild(process, f"{node.name}: " if len(nodes) > 1 else ""))
    try:
        while running := [build for build in builds if build.code is None]:
            time.sleep(_PERIOD_S)
            meanwhile()
            for build in running:
                for line in build.hear():
                    note(line)
                if build.code:
                    errors.append(build.error())
    except BaseException:
        _end(builds)
        raise
    if errors:
        raise errors[0]


def _end(builds: Sequence["_NodeBuild"]) -> None:
    running = [build for build in builds if build.code is None]
    for build in running:
        build.process.send(END)
    until_s = time.monotonic() + _END_WAIT_S
    while running and time.monotonic() < until_s:
        time.sleep(_PERIOD_S)
        for build in running:
            build.hear()
        running = [build for build in running if build.code is None]
    for build in running:
        build.process.end()


class _NodeBuild:
    def __init__(self, process: NodeProcess, where: str) -> None:
        self.code: int | None = None
        self.process = process
        self._where = where
        self._lines = JsonLines()
        self._last = ""
        """Its last line: of one that fails, its error."""

    def hear(self) -> list[str]:
        """Lines that it has written since, but for the error of one that fails."""
        self.code = self.process.poll()
        texts = [self._where + text for text in self._lines.texts(self.process.receive())]
        if texts:
            # It may have come before its end was seen.
            self._last = texts.pop() if self.code else texts[-1]
        return texts

    def error(self) -> FleetError:
        text = self._last or f"{self._where}exit code {self.code}"
        return FleetError(*text.rsplit("; ", 1))
