"""The process that a fleet has on each node: it starts the ranks of trials there and sees to them.

`python -m autotune.fleet.node.agent`, started by a transport. Commands come in as JSON, a line
each; answers go out likewise, and by then the report of a trial lies in its folder.

| command | answer |
|---|---|
| `start` with a `part` | `started` with its port, then `ended`; or `failed` |
| `end` with a `folder` and whether its trial `hangs` | `ended`, as without it |
| `reap` with a `folder` | `reaped`: no process of the trials below it is left here |
| `close` | ends what still runs, and this process |

It closes where its input ends, too: the coordinator is gone then.
"""

import dataclasses
import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from autotune.base.clock import machine
from autotune.base.errors import AutotuneError
from autotune.base.kept_process import scratch_folder
from autotune.contract import PARENT_ENV, SCRATCH_ENV
from autotune.fleet.node.ports import sweep_segments
from autotune.fleet.node.processes import NodePart, kill_all
from autotune.fleet.node.ranks import LocalRanks
from autotune.fleet.node.warm import WarmTemplates
from autotune.trial.descent import below, children_of
from autotune.trial.launcher import end_with_parent

_CHUNK_BYTES = 64 * 1024


class Agent:
    """Trials on this node."""

    def __init__(self, keeper: int | None = None) -> None:
        """Run nothing yet; the `keeper` above this process, if there is one, adopts orphans."""
        self._keeper = keeper
        self._templates = WarmTemplates()
        self._running: dict[str, LocalRanks] = {}

    def serve(self, commands: int) -> None:
        """Run the commands that come from a file descriptor until it ends."""
        _say("ready")
        unread = b""
        try:
            while True:
                heard = self._wait(commands)
                if heard is not None:
                    *lines, unread = (unread + heard).split(b"\n")
                    if not heard or not all(self._do(**json.loads(line)) for line in lines):
                        return
                self._advance()
        finally:
            for folder in self._running:
                kill_all(Path(folder))
            self._templates.close()

    def _wait(self, commands: int) -> bytes | None:
        """The input that arrives before something else is to be looked at; None if none does."""
        running = self._running.values()
        times = [each.look_again_in_s() for each in running]
        timeout_s = min((s for s in times if s is not None), default=None)
        watched = [commands, *(each.fileno() for each in running if each.fileno() >= 0)]
        readable, _, _ = select.select(watched, [], [], timeout_s)
        return os.read(commands, _CHUNK_BYTES) if commands in readable else None

    def _do(self, command: str, **arguments: Any) -> bool:
        """Do what is asked; return whether it goes on."""
        if command == "start":
            self._start(_by_own_clock(NodePart(**arguments["part"])))
        elif command == "end":
            if (ranks := self._running.get(arguments["folder"])) is not None:
                ranks.end(hangs=arguments["hangs"])
        elif command == "reap":
            kill_all(Path(arguments["folder"]))
            sweep_segments()
            _say("reaped", folder=arguments["folder"])
        return command in ("start", "end", "reap")

    def _start(self, part: NodePart) -> None:
        try:
            ranks = LocalRanks(part, self._templates)
        except (AutotuneError, OSError, ValueError) as error:
            _say_failed(part.folder, error)
            return
        self._running[part.folder] = ranks
        _say("started", folder=part.folder, port=ranks.port)

    def _advance(self) -> None:
        for folder, ranks in list(self._running.items()):
            problem = ""
            try:
                if not ranks.advance():
                    continue
            except OSError as error:
                problem = f"its report could not be written: {error}"
            except AutotuneError as error:
                del self._running[folder]
                _say_failed(folder, error)
                continue
            del self._running[folder]
            self._end_strangers()
            _say("ended", folder=folder, problem=problem)

    def _end_strangers(self) -> None:
        """Kill orphans of trials whose launcher was killed, and that bear no mark of theirs.

        The keeper has them, and nothing else but this process. Whose they are is not known, so
        those of one trial live on while another one runs.
        """
        if self._keeper is None or self._running:
            return
        for child in children_of(self._keeper):
            for pid in (child, *below(child)) if child != os.getpid() else ():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)


def _by_own_clock(part: NodePart) -> NodePart:
    """The same with its submission by this machine's clock: on another one it is when it came."""
    now_s = time.monotonic()
    is_here = part.submitted_on and part.submitted_on == machine()
    return dataclasses.replace(
        part, submitted_at_s=min(part.submitted_at_s, now_s) if is_here else now_s
    )


def _say_failed(folder: str, error: Exception) -> None:
    message, hint = str(error), ""
    if isinstance(error, AutotuneError):
        message, hint = error.message, error.hint
    _say("failed", folder=folder, error=type(error).__name__, message=message, hint=hint)


def _say(said: str, **what: Any) -> None:
    """Tell the coordinator; where nobody listens any more, the input ends as well."""
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), (json.dumps({"said": said, **what}) + "\n").encode())


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator decides what Ctrl-C means
    keeper = int(os.environ[PARENT_ENV]) if PARENT_ENV in os.environ else None
    if keeper is not None:
        end_with_parent(keeper)
    # Whatever started it: what the ranks leave among temporary files goes with it.
    with scratch_folder() as scratch:
        os.environ[SCRATCH_ENV] = str(scratch)
        Agent(keeper).serve(sys.stdin.fileno())
