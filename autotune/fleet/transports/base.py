"""The protocol of a transport: the nodes that it reaches, and a way to run one process on each.

A `GangFleet` does the rest. On every node it runs `autotune.fleet.node.agent`, which starts ranks
there and sees to them; a transport knows nothing of trials.
"""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from autotune.base.errors import FleetError
from autotune.devices.hardware import Environment
from autotune.fleet.node.places import DevicePlace
from autotune.trial.rendezvous import LOOPBACK

PERIOD_S = 0.02
"""Time between two looks at programs on nodes."""
_KILL_WAIT_S = 5.0
"""Time in which what was killed is gone; what the kernel holds back is left to it."""
GRACE_S = 5.0
"""Time that an agent gets to clean up once what started it was killed."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A machine with slots."""

    name: str
    """Names its slots in results: `NAME:0`."""
    devices: tuple[str, ...]
    """A slot each: UUIDs of GPUs, or numbers of cores; several slots may share a core."""
    places: tuple[DevicePlace, ...] = ()
    """Place of each device; none where nobody can say."""
    address: str = LOOPBACK
    """Address by which the other nodes reach it."""
    interface: str = "lo"
    """Its own network interface, by which it reaches the other nodes."""
    rank_memory_bytes: int = 0
    """Memory that a CPU rank may take; 0: a GPU knows its own memory."""


def node_of(
    name: str,
    environment: Environment,
    devices: Sequence[str],
    places: Sequence[DevicePlace],
    n_slots: int | None,
    **network: str,
) -> Node:
    """A node with so many slots, of GPUs at most as many as it has; None: one for each device.

    More CPU ranks than cores train as well, only slowly, and share the cores' memory. `network`
    has the node's address and interface.
    """
    has = len(devices)
    n = has if n_slots is None else n_slots
    memory_bytes = environment.device_memory_bytes * has // max(has, n)
    if environment.accelerator == "cuda":
        n, memory_bytes = min(n, has), 0
    return Node(
        name=name,
        devices=tuple(devices[i % has] for i in range(n)),
        places=tuple(places[i % has] for i in range(n)),
        rank_memory_bytes=memory_bytes,
        **network,
    )


class NodeProcess(Protocol):
    """A process on a node, with its standard input and output; none of this ever blocks."""

    def send(self, data: bytes) -> None:
        """Write to its input; what does not fit yet is kept and sent later."""

    def receive(self) -> bytes:
        """Bytes that it has written since, to its output or to its errors."""

    def poll(self) -> int | None:
        """Its exit code, or that of the way to it, once it is gone; None while it is alive."""

    def end(self) -> None:
        """Kill it; what it has started ends with it."""


class Program:
    """A process and the lines that it writes: events in JSON among lines for people."""

    def __init__(self, process: NodeProcess) -> None:
        self.process = process
        self.code: int | None = None
        """Its exit code as of `NodeProcess.poll`, once `texts` has returned all that it wrote."""
        self.heard_at_s = time.monotonic()
        """When it last wrote something, or was started."""
        self.last_words = ""
        """The last line that is for people."""
        self._unread = b""

    def tell(self, **message: Any) -> None:
        """Write a line of JSON to its input."""
        self.process.send(f"{json.dumps(message)}\n".encode())

    def texts(self) -> list[str]:
        self.code = self.process.poll()  # first: what it wrote before its end is there then
        if received := self.process.receive():
            self.heard_at_s = time.monotonic()
        end = b"" if self.code is None else b"\n"
        *lines, self._unread = (self._unread + received + end).split(b"\n")
        texts = (line.decode(errors="replace").strip() for line in lines)
        return [text for text in texts if text]

    def events(self) -> Iterator[dict[str, Any]]:
        """The events among the lines; each names its kind as `event`."""
        for text in self.texts():
            try:
                event = json.loads(text)
                event["event"]
            except (ValueError, TypeError, KeyError):
                self.last_words = text
                continue
            yield event


def wait_for_end(programs: Iterable[Program], wait_s: float) -> None:
    """Wait for programs that were told to end; those that have not in time are killed."""
    deadline_s = time.monotonic() + wait_s
    running = [program for program in programs if program.code is None]
    while running and time.monotonic() < deadline_s + _KILL_WAIT_S:
        is_late = time.monotonic() >= deadline_s
        for program in running:
            if is_late:
                program.process.end()
            program.texts()  # it may still have something to say
        running = [program for program in running if program.code is None]
        if running:
            time.sleep(PERIOD_S)


class Transport(Protocol):
    """The way to some nodes."""

    is_remote: bool = False
    """Whether its nodes may be other machines: then the files of trials travel over the lines to
    the agents, and an agent that hears nothing for long ends what it runs."""

    def nodes(self) -> tuple[Node, ...]:
        """The nodes and their slots, the same at every call.

        Raises:
            FleetError: None can be reached.
        """

    def problems(self) -> tuple[str, ...]:
        """Nodes that were asked for and are not among them, each with the reason, in words."""
        return ()

    def ended(self) -> str:
        """Why all its nodes are gone for good, in words; empty: they are not."""
        return ""

    def start(self, node: Node, module: str, *arguments: str) -> NodeProcess:
        """Start `python -m MODULE` with the node's own interpreter.

        Its environment has the variables of this process that ranks get. Its input ends when this
        process does, however that comes.

        Raises:
            OSError: It cannot be started.
        """


def started(transport: Transport, node: Node, module: str, *arguments: str) -> Program:
    """A module that runs on a node from now on.

    Raises:
        FleetError: It cannot be started.
    """
    try:
        return Program(transport.start(node, module, *arguments))
    except OSError as error:
        raise FleetError.of("fleet.no_process_there", node=node, error=error) from error
