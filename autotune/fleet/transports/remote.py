"""What transports to other machines share: this release is brought there, and the nodes are asked.

A transport of this kind says which hosts there are and how a command is started on one, with its
input and output here. Nothing has to be installed on a node but Python and what trains there.
"""

import json
import shlex
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import autotune.fleet.node.bootstrap
from autotune.base.errors import FleetError
from autotune.contract import PARENT_ENV, SCRATCH_ENV
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine
from autotune.fleet.base import Place
from autotune.fleet.gang_fleet import GangFleet
from autotune.fleet.node.bootstrap import MARK
from autotune.fleet.node.bundle import bundle
from autotune.fleet.node.environment import forwarded_environment
from autotune.fleet.node.inventory import MARK as INVENTORY_MARK
from autotune.fleet.node.inventory import Inventory, from_json
from autotune.fleet.options import FleetOptions
from autotune.fleet.transports.base import Node, NodeProcess
from autotune.job.job import Job
from autotune.planning.lattice import Lattice

INVENTORY = "autotune.fleet.node.inventory"
_ANSWER_S = 90.0
"""Time for a node to bring up Python and say what it has; the first time it unpacks and compiles
the bundle."""
_PERIOD_S = 0.02
_MOST_AT_ONCE = 64
"""Nodes that are asked at the same time."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine that was named."""

    name: str
    """As the transport reaches it."""
    n_slots: int | None = None
    """Accelerators that trials may take there; None: all that it has."""


class RemoteTransport(ABC):
    """The way to other machines; implements `Transport`."""

    is_remote = True

    def __init__(self, options: FleetOptions) -> None:
        self.options = options

    @abstractmethod
    def hosts(self) -> Sequence[Host]:
        """The machines; the same at every call.

        Raises:
            FleetError: They cannot be found out.
        """

    @abstractmethod
    def open(self, host: str, command: Sequence[str]) -> NodeProcess:
        """Run a command on a host, with its input and output here; it ends with its input.

        Raises:
            OSError: The program that reaches hosts cannot be started.
        """

    def nodes(self) -> tuple[Node, ...]:
        """See `Transport.nodes`."""
        return tuple(
            _node(host, found) for host in self.hosts() if (found := self.inventory.get(host.name))
        )

    def problems(self) -> tuple[str, ...]:
        """See `Transport.problems`."""
        return tuple(f"{name} is left out: {why}" for name, why in self._asked[1].items())

    def ended(self) -> str:
        """See `Transport.ended`: a machine may always come back."""
        return ""

    def variables(self) -> Mapping[str, str]:
        """See `Transport.variables`: what changes speed, and what the user named."""
        return forwarded_environment(self.options.forward)

    def start(self, node: Node, module: str, *arguments: str) -> NodeProcess:
        """See `Transport.start`."""
        return self._start(node.name, module, *arguments)

    @property
    def inventory(self) -> Mapping[str, Inventory]:
        """What the hosts that answered have, by name.

        Raises:
            FleetError: None answered.
        """
        found, problems = self._asked
        if not found:
            raise FleetError(
                "no node of the fleet can be used: "
                + "; ".join(f"{name}: {why}" for name, why in problems.items()),
                "mend what they say; `autotune doctor --fleet ...` asks each of them",
            )
        return found

    @cached_property
    def _asked(self) -> tuple[dict[str, Inventory], dict[str, str]]:
        """What the hosts have, and what is in the way of the others; all are asked at once."""
        hosts = [host.name for host in self.hosts()]
        with ThreadPoolExecutor(min(len(hosts), _MOST_AT_ONCE) or 1) as pool:
            answers = dict(zip(hosts, pool.map(self._ask, hosts), strict=True))
        found = {name: each for name, each in answers.items() if isinstance(each, Inventory)}
        problems = {name: each for name, each in answers.items() if isinstance(each, str)}
        return found, problems

    def _ask(self, host: str) -> Inventory | str:
        wished = (self.options.interface,) if self.options.interface else ()
        try:
            process = self._start(host, INVENTORY, *wished)
        except OSError as error:
            return f"it cannot be reached: {error}"
        heard, deadline_s = b"", time.monotonic() + _ANSWER_S
        while True:
            code = process.poll()
            heard += process.receive()
            said = heard.decode(errors="replace").splitlines()
            for line in said:
                if line.startswith(INVENTORY_MARK) and line.endswith("}"):
                    process.end()
                    try:
                        return from_json(line)
                    except FleetError as error:
                        return f"{error.message}; {error.hint}"
                    except ValueError as error:
                        return str(error)
            last = next((line for line in reversed(said) if line.strip()), "")
            if code is not None:
                return last or f"the way to it ended with code {code}"
            if time.monotonic() > deadline_s:
                process.end()
                return f"no answer within {_ANSWER_S:.0f} s{': ' if last else ''}{last}"
            time.sleep(_PERIOD_S)

    def _start(self, host: str, module: str, *arguments: str) -> NodeProcess:
        return BootedProcess(
            self.open(host, boot_command(self.options.python)),
            module=module,
            arguments=arguments,
            variables=self.variables(),
        )


def boot_command(python: str) -> list[str]:
    """The command that makes a node run a module of this release.

    Args:
        python: Interpreter there; empty: this one's path if that is there, else `python3`.
    """
    code = Path(autotune.fleet.node.bootstrap.__file__).read_text(encoding="utf-8")
    if python:
        return [python, "-u", "-c", code]
    choice = 'if [ -x "$0" ]; then exec "$0" -u -c "$1"; else exec python3 -u -c "$1"; fi'
    return ["sh", "-c", choice, sys.executable, code]


def as_line(command: Sequence[str]) -> str:
    """A command as one text for a shell on the other side."""
    return shlex.join(command)


class BootedProcess:
    """A module of this release on a node, whatever is there; implements `NodeProcess`."""

    def __init__(
        self,
        line: NodeProcess,
        *,
        module: str,
        arguments: Sequence[str],
        variables: Mapping[str, str],
    ) -> None:
        """Begin to talk to the node's bootstrap.

        Args:
            line: The bootstrap.
            module: To run there.
            arguments: Its arguments.
            variables: Environment variables that it gets.
        """
        digest, data = bundle()
        self._line = line
        self._bundle = data
        self._is_up = False
        self._heard = b""
        self._waiting = b""
        """What is sent once the module runs."""
        kept = {
            "wall_s": 0.0,
            "data_bytes": 0,
            "is_tmpdir": False,
            "parent_env": PARENT_ENV,
            "scratch_env": SCRATCH_ENV,
            "folders": [],
        }
        header = {
            "digest": digest,
            "size": len(data),
            "module": module,
            "arguments": list(arguments),
            "variables": dict(variables),
            "kept": kept,
        }
        line.send(json.dumps(header).encode() + b"\n")

    def send(self, data: bytes) -> None:
        """See `NodeProcess.send`."""
        if self._is_up:
            self._line.send(data)
        else:
            self._waiting += data

    def receive(self) -> bytes:
        """See `NodeProcess.receive`."""
        heard = self._line.receive()
        if self._is_up:
            return heard
        *lines, self._heard = (self._heard + heard).split(b"\n")
        passed = b""
        for number, line in enumerate(lines):
            if not line.startswith(MARK.encode()):
                passed += line + b"\n"
                continue
            self._is_up = True
            is_needed = line == f"{MARK}need".encode()
            self._line.send((self._bundle if is_needed else b"") + self._waiting)
            rest = b"\n".join([*lines[number + 1 :], self._heard])
            self._heard = self._waiting = b""
            return passed + rest
        return passed

    def poll(self) -> int | None:
        """See `NodeProcess.poll`."""
        return self._line.poll()

    def end(self) -> None:
        """See `NodeProcess.end`."""
        self._line.end()


def _node(host: Host, found: Inventory) -> Node:
    has = len(found.devices)
    environment = found.environment
    if environment.accelerator == "cuda":
        n_slots = has if host.n_slots is None else min(host.n_slots, has)
        devices, memory_bytes = found.devices[:n_slots], 0
    else:
        # More CPU ranks than cores train as well, only slowly, and share the cores' memory.
        n_slots = has if host.n_slots is None else host.n_slots
        devices = tuple(found.devices[i % has] for i in range(n_slots))
        memory_bytes = environment.device_memory_bytes * has // max(has, n_slots)
    return Node(
        name=host.name,
        devices=devices,
        address=found.address,
        interface=found.interface,
        rank_memory_bytes=memory_bytes,
    )


class Elsewhere(Place):
    """The devices of other machines."""

    def __init__(self, transport: RemoteTransport, flags: Mapping[str, Any]) -> None:
        """Ask the nodes what they have.

        Raises:
            FleetError: None answers, or they are not alike.
        """
        self._transport = transport
        super().__init__(common_environment(transport), flags)

    def fleet_for(self, job: Job, engine: Engine, lattice: Lattice) -> Callable[[], GangFleet]:
        """See `Place.fleet_for`."""
        return lambda: GangFleet(self._transport, world=job.world)


def common_environment(transport: RemoteTransport) -> Environment:
    """What all nodes of a fleet have: trials on one stand for trials on another.

    Raises:
        FleetError: None answers; their accelerators differ, or releases of what trains.
    """
    found = transport.inventory
    slots = {node.name: len(node.devices) for node in transport.nodes()}
    kinds: dict[tuple[str, ...], list[str]] = {}
    for name, each in found.items():
        own = each.environment
        versions = (own.torch_version, own.deepspeed_version)
        kinds.setdefault((own.accelerator, own.device_name, *versions), []).append(name)
    if len(kinds) > 1:
        parts = (
            f"{', '.join(names)}: {kind[1]}, torch {kind[2] or 'missing'}, DeepSpeed "
            f"{kind[3] or 'missing'}"
            for kind, names in kinds.items()
        )
        raise FleetError(
            f"the nodes of the fleet differ, so that their figures do not compare: "
            f"{'; '.join(parts)}",
            "search on nodes that are alike, or install the same releases on all",
        )
    environments = [each.environment for each in found.values()]
    first = environments[0]
    return replace(
        first,
        n_devices=min(slots.values()),
        device_memory_bytes=min(
            e.device_memory_bytes
            * (e.n_devices if first.accelerator == "cpu" else 1)
            // (max(e.n_devices, slots[name]) if first.accelerator == "cpu" else 1)
            for name, e in ((name, each.environment) for name, each in found.items())
        ),
        precisions=tuple(
            p for p in first.precisions if all(p in each.precisions for each in environments)
        ),
        has_flash_attention=all(each.has_flash_attention for each in environments),
    )
