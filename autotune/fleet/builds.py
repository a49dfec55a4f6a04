"""A program that prepares nodes, run on all of them at once."""

import time
from collections.abc import Callable, Sequence

from autotune.base.errors import FleetError
from autotune.fleet.transports.base import PERIOD_S, Program, Transport, started, wait_for_end

_END_WAIT_S = 10.0
"""Time that a build has to end its compilers in and to remove what they leave."""


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
    builds: dict[str, Program] = {}
    """By what is written before its lines."""
    errors: list[FleetError] = []
    try:
        for node in nodes:
            where = f"{node.name}: " if len(nodes) > 1 else ""
            builds[where] = started(transport, node, *command)
    except FleetError as error:
        errors.append(error)
    try:
        while running := {where: b for where, b in builds.items() if b.code is None}:
            time.sleep(PERIOD_S)
            meanwhile()
            for where, build in running.items():
                texts = [where + text for text in build.texts()]
                build.last_words = next(reversed(texts), build.last_words)
                # The last line of one that fails is its error; it may have come before its end.
                for text in texts[:-1] if build.code else texts:
                    note(text)
                if build.code:
                    text = build.last_words or f"{where}exit code {build.code}"
                    errors.append(FleetError(*text.rsplit("; ", 1)))
    except BaseException:
        for build in running.values():
            build.tell(command="end")
        wait_for_end(running.values(), _END_WAIT_S)
        raise
    if errors:
        raise errors[0]
