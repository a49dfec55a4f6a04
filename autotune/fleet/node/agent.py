"""The process that a fleet has on each node: it starts the ranks of trials there and sees to them.

`python -m autotune.fleet.node.agent`, started by a transport. Commands come in as JSON, a line
each; answers go out likewise, and by then the report of a trial lies in its folder.

| command | answer |
|---|---|
| `start` with a `part` and `files` | `started` with its port, then `ended`; or `failed` |
| `end` with a `folder` and whether its trial `hangs` | `ended`, as without it |
| `reap` with a `folder` | `reaped`: no process of the trials below it is left here |
| `alive` | `alive` |
| `close` | ends what still runs, and this process |

Where the trial's folder is not shared, `file` answers bring what is written in it, each with the
`name`, the `data` in base64 and the place `at` which it belongs (see `autotune.fleet.node.files`).

It closes where its input ends, too: the coordinator is gone then. A cut network ends no input, so
with `--lease SECONDS` it also closes where it hears nothing for so long.
"""

import base64
import dataclasses
import json
import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from autotune.base.errors import AutotuneError
from autotune.base.keeper import end_with_parent
from autotune.contract import PARENT_ENV, from_json
from autotune.fleet.node.files import TrialFiles
from autotune.fleet.node.ports import sweep_segments
from autotune.fleet.node.processes import NodePart, kill_all
from autotune.fleet.node.ranks import LocalRanks
from autotune.fleet.node.warm import WarmTemplates

_CHUNK_BYTES = 64 * 1024
_FILES_PERIOD_S = 0.5
"""Time between two looks at the files of trials that have to be sent."""
_LAST_WORDS_S = 2.0


class AnswerLine:
    """The way back to the coordinator; a coordinator that reads nothing holds nobody up."""

    def __init__(self, output: int) -> None:
        self.output = output
        self._unsent = b""
        os.set_blocking(output, False)

    @property
    def is_behind(self) -> bool:
        return bool(self._unsent)

    def say(self, event: str, **what: Any) -> None:
        """Tell the coordinator; where nobody listens any more, the input ends as well."""
        self._unsent += (json.dumps({"event": event, **what}) + "\n").encode()
        self.flush()

    def flush(self) -> None:
        with suppress(BlockingIOError, BrokenPipeError):
            while self._unsent:
                self._unsent = self._unsent[os.write(self.output, self._unsent) :]

    def drain(self, wait_s: float) -> None:
        """Write all that is left, if that is done in time."""
        until_s = time.monotonic() + wait_s
        while self._unsent and (left_s := until_s - time.monotonic()) > 0:
            select.select([], [self.output], [], left_s)
            before = len(self._unsent)
            self.flush()
            if len(self._unsent) == before:
                return


@dataclasses.dataclass(kw_only=True)
class _TrialHere:
    ranks: LocalRanks
    files: TrialFiles
    looked_s: float


class Agent:
    """Trials on this node."""

    def __init__(
        self,
        line: AnswerLine,
        *,
        lease_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._line = line
        self._lease_s = lease_s
        self._clock = clock
        self._templates = WarmTemplates()
        self._running: dict[str, _TrialHere] = {}
        """By the folder as the coordinator names it."""

    def serve(self, commands: int) -> None:
        """Run the commands that come from a file descriptor until it ends, or the lease does."""
        self._line.say("ready")
        unread = b""
        received_at_s = self._clock()
        try:
            while True:
                received = self._wait(commands, received_at_s + self._lease_s - self._clock())
                if received is not None:
                    received_at_s = self._clock()
                    *lines, unread = (unread + received).split(b"\n")
                    if not received or not all(self._do(**json.loads(line)) for line in lines):
                        return
                elif self._clock() - received_at_s > self._lease_s:
                    return
                self._advance()
        finally:
            for trial in self._running.values():
                trial.ranks.abandon()
                trial.files.remove()
            self._templates.close()
            self._line.drain(_LAST_WORDS_S)

    def _wait(self, commands: int, left_s: float) -> bytes | None:
        """The input that arrives before something else is to be looked at; None if none does."""
        running = [trial.ranks for trial in self._running.values()]
        times = [ranks.look_again_in_s() for ranks in running]
        if any(not trial.files.is_shared for trial in self._running.values()):
            times.append(_FILES_PERIOD_S)
        if self._lease_s < math.inf:
            times.append(max(0.0, left_s))
        timeout_s = min((s for s in times if s is not None), default=None)
        watched = [commands, *(ranks.fileno() for ranks in running if ranks.fileno() >= 0)]
        behind = [self._line.output] if self._line.is_behind else []
        readable, writable, _ = select.select(watched, behind, [], timeout_s)
        if writable:
            self._line.flush()
        return os.read(commands, _CHUNK_BYTES) if commands in readable else None

    def _do(self, command: str, **arguments: Any) -> bool:
        if command == "start":
            self._start(from_json(NodePart, arguments["part"]), arguments.get("files", {}))
        elif command == "end":
            if (trial := self._running.get(arguments["folder"])) is not None:
                trial.ranks.end(hangs=arguments["hangs"])
        elif command == "reap":
            self._reap(arguments["folder"], arguments.get("coordinator", ""))
        elif command == "alive":
            self._line.say("alive")
        return command in ("start", "end", "reap", "alive")

    def _reap(self, folder: str, coordinator: str) -> None:
        """End what an agent before this one left of a trial, or of all below a folder."""
        kill_all(Path(folder))
        if coordinator:
            kill_all(Path(folder), coordinator)
        sweep_segments()
        self._line.say("reaped", folder=folder)

    def _start(self, part: NodePart, files: Mapping[str, str]) -> None:
        folder = part.folder
        try:
            found = TrialFiles(part.coordinator, folder, files)
            part = dataclasses.replace(part, folder=str(found.folder), began_at_s=time.monotonic())
            ranks = LocalRanks(part, self._templates)
        except (AutotuneError, OSError, ValueError) as error:
            self._say_failed(folder, error)
            return
        self._running[folder] = _TrialHere(ranks=ranks, files=found, looked_s=self._clock())
        self._line.say("started", folder=folder, port=ranks.port, start=ranks.start)

    def _advance(self) -> None:
        for folder, trial in list(self._running.items()):
            problem, is_over, error = "", False, None
            try:
                is_over = trial.ranks.advance()
            except OSError as caught:
                problem, is_over = f"its report could not be written: {caught}", True
            except AutotuneError as caught:
                error, is_over = caught, True
            if is_over or self._clock() - trial.looked_s >= _FILES_PERIOD_S:
                self._send_files(folder, trial)
            if not is_over:
                continue
            del self._running[folder]
            trial.files.remove()
            if error is not None:
                self._say_failed(folder, error)
                continue
            self._line.say("ended", folder=folder, problem=problem)

    def _send_files(self, folder: str, trial: _TrialHere) -> None:
        trial.looked_s = self._clock()
        for name, at, data in trial.files.added():
            content = base64.b64encode(data).decode()
            self._line.say("file", folder=folder, name=name, at=at, data=content)

    def _say_failed(self, folder: str, error: Exception) -> None:
        message, hint = str(error), ""
        if isinstance(error, AutotuneError):
            message, hint = error.message, error.hint
        kind = type(error).__name__
        self._line.say("failed", folder=folder, error=kind, message=message, hint=hint)


def main(arguments: list[str]) -> None:
    """Serve the coordinator at the other end of this process's input and output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator decides what Ctrl-C means
    if PARENT_ENV in os.environ:
        end_with_parent(int(os.environ[PARENT_ENV]))
    lease_s = float(arguments[1]) if arguments[:1] == ["--lease"] else math.inf
    # What this process prints by accident must not hold it up, nor stand between the answers.
    line = AnswerLine(os.dup(sys.stdout.fileno()))
    Agent(line, lease_s=lease_s).serve(sys.stdin.fileno())


if __name__ == "__main__":
    main(sys.argv[1:])
