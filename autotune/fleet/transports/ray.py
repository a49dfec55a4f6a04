"""Nodes of a Ray cluster: `--fleet ray` or `--fleet ray:ADDRESS`; KubeRay at the same address.

One placement group holds the slots of a whole search, all or none of them, so that two searches
never wait for each other with half of the nodes each. Within it the search's own ledger gives out
gangs: a placement group for every trial would start and end an actor, an agent and its warm
templates each time, could lose its place to another user between two trials, and would know
nothing of slots that are quarantined or on which a candidate is to be tried again elsewhere.
"""

import base64
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autotune.base.errors import FleetError, JobError
from autotune.base.flags import flag
from autotune.base.text import Say
from autotune.fleet.options import FleetOptions
from autotune.fleet.transports.base import PERIOD_S, NodeProcess, Program, wait_for_end
from autotune.fleet.transports.local import LocalProcess
from autotune.fleet.transports.remote import Elsewhere, Host, RemoteTransport

DRIVER = "autotune.fleet.transports.ray_driver"
DEFAULT_WAIT_S = 600.0
"""Time for the slots to be free; a cluster that grows on demand takes minutes for a node."""
_END_S = 10.0
"""Time after which a line that was ended from here is over, whether its node says so or not."""
_CLOSE_S = 10.0
_SHAPE = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})")

_HELD: dict[str, "RayDriver"] = {}
"""Clusters that `obtain` has joined, by their address: `find` is told that alone."""


class RayNodes:
    """Nodes of a Ray cluster; implements `FleetPlugin` and `Obtaining`."""

    @contextmanager
    def obtain(self, of: str, options: FleetOptions, *, say: Say, agree: Say) -> Iterator[str]:
        """Nobody is asked, since a cluster is there or grows by itself."""
        driver = RayDriver(of, options, say=say)
        _HELD[of] = driver
        try:
            yield of
        finally:
            del _HELD[of]
            driver.close()

    def find(
        self, of: str, job_file: Path | None, flags: Mapping[str, Any], options: FleetOptions
    ) -> Elsewhere:
        driver = _HELD.get(of) or RayDriver(of, options, say=lambda text: None)
        return Elsewhere(RayTransport(driver, options), flags)


class RayTransport(RemoteTransport):
    """An actor on each node, which runs our programs there."""

    def __init__(self, driver: "RayDriver", options: FleetOptions) -> None:
        super().__init__(options)
        self._driver = driver

    def hosts(self) -> Sequence[Host]:
        return self._driver.hosts

    def open(self, host: str, command: Sequence[str]) -> NodeProcess:
        return self._driver.open(host, command)

    def ended(self) -> str:
        return self._driver.ended()


class RayDriver:
    """The process that speaks to Ray, and what it holds there.

    See `autotune.fleet.transports.ray_driver`, which says why it is one of its own.
    """

    def __init__(self, address: str, options: FleetOptions, *, say: Say) -> None:
        """Join a cluster and wait until it gives the slots.

        Raises:
            JobError: An option is no such thing.
            FleetError: Ray is not installed, there is no cluster, or it does not give the slots.
        """
        wait_s = options.wait_s(DEFAULT_WAIT_S)
        shape = _shape(options.slots)
        if find_spec("ray") is None:
            raise FleetError(f"{flag('fleet')} ray: Ray is not installed here", "pip install ray")
        self._lines: dict[int, _RayLine] = {}
        self._n_lines = 0
        self._process = LocalProcess([sys.executable, "-P", "-m", DRIVER])
        self._program = Program(self._process)
        self.tell(address=address, shape=shape, wait_s=wait_s)
        try:
            self.hosts = self._hosts(say)
        except BaseException:
            self.close()
            raise

    def open(self, host: str, command: Sequence[str]) -> "_RayLine":
        """Run a command on a node.

        Raises:
            OSError: The cluster is gone.
        """
        if problem := self.ended():
            raise OSError(problem)
        self._n_lines += 1
        line = self._lines[self._n_lines] = _RayLine(self, self._n_lines)
        self.tell(do="open", line=self._n_lines, node=host, command=list(command))
        return line

    def ended(self) -> str:
        self.hear()
        return self._end_in_words()

    def tell(self, **what: Any) -> None:
        if self._program.code is None:
            self._program.tell(**what)

    def hear(self) -> None:
        """Hand out what has come in to the lines; does not wait."""
        for event in self._program.events():
            if (line := self._lines.get(event["line"])) is None:
                continue
            if event["event"] == "output":
                line.received += base64.b64decode(event["data"])
            else:
                self._end(event["line"], event["code"], event["why"])
        if why := self._end_in_words():
            for number in list(self._lines):
                self._end(number, self._program.code or 1, self._program.last_words or why)

    def _end_in_words(self) -> str:
        """Why nothing is held there any more; empty: it is."""
        if self._program.code is None:
            return ""
        reason = f": {self._program.last_words}" if self._program.last_words else ""
        return f"the way to the Ray cluster ended with code {self._program.code}{reason}"

    def _end(self, number: int, code: int, why: str) -> None:
        line = self._lines.pop(number)
        line.received += f"{why}\n".encode() if why else b""
        line.code = code

    def close(self) -> None:
        """Give back what is held there: Ray does once the driver is gone."""
        self._process.close_input()
        wait_for_end([self._program], _CLOSE_S)
        self._process.end()

    def _hosts(self, say: Say) -> tuple[Host, ...]:
        while True:
            for event in self._program.events():
                if event["event"] == "held":
                    return tuple(Host(name=name, n_slots=n) for name, n in event["nodes"])
                if event["event"] == "failed":
                    raise FleetError(event["message"], event["hint"])
                say(event["text"])
            if why := self._end_in_words():
                raise FleetError(why, "see whether `ray status` reaches the cluster")
            time.sleep(PERIOD_S)


class _RayLine:
    """A program on a node; implements `NodeProcess`."""

    def __init__(self, driver: RayDriver, number: int) -> None:
        self.received = b""
        self.code: int | None = None
        self._driver = driver
        self._number = number
        self._is_over_s: float | None = None

    def send(self, data: bytes) -> None:
        if self.code is None:
            encoded = base64.b64encode(data).decode()
            self._driver.tell(do="send", line=self._number, data=encoded)

    def receive(self) -> bytes:
        self._driver.hear()
        received, self.received = self.received, b""
        return received

    def poll(self) -> int | None:
        self._driver.hear()
        if self._is_over_s is not None and time.monotonic() > self._is_over_s:
            self.code = self.code or 1  # a node that is cut off says nothing
        return self.code

    def end(self) -> None:
        if self._is_over_s is None:
            self._is_over_s = time.monotonic() + _END_S
            self._driver.tell(do="end", line=self._number)


def _shape(slots: str) -> tuple[int, int] | None:
    """Nodes, and slots of each; None: all that there are."""
    if not slots:
        return None
    if (found := _SHAPE.fullmatch(slots)) is None:
        raise JobError.of("fleet.slots_unread", slots=slots)
    return int(found[1]), int(found[2])
