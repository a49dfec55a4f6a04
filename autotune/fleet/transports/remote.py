"""What transports to other machines share: this release is brought there, and the nodes are asked.

A transport of this kind says which hosts there are and how a command is started on one, with its
input and output here. Nothing has to be installed on a node but Python and what trains there.
"""

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from importlib.metadata import PackageNotFoundError, distribution
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import autotune
import autotune.fleet.node.bootstrap
from autotune.base.errors import FleetError, JobError
from autotune.base.guarded_process import keeper_options
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine, find_engine
from autotune.fleet.base import Place
from autotune.fleet.gang_fleet import GangFleet, GangPlace
from autotune.fleet.node.answers import MARK as ANSWER_MARK
from autotune.fleet.node.answers import Answer, FileText, read_answer
from autotune.fleet.node.environment import forwarded_environment
from autotune.fleet.node.inventory import REPORTED, Inventory
from autotune.fleet.options import FleetOptions
from autotune.fleet.transports.base import (
    GRACE_S,
    PERIOD_S,
    Node,
    NodeProcess,
    Program,
    Transport,
    node_of,
)
from autotune.job.job import Job
from autotune.planning.lattice import Lattice

INVENTORY = "autotune.fleet.node.inventory"
_READER = "autotune.fleet.node.answers"
_ANSWER_S = 90.0
"""Time for a node to bring up Python and say what it has; the first time it unpacks and compiles
the bundle."""
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine that was named."""

    name: str
    """As the transport reaches it."""
    n_slots: int | None = None
    """Accelerators that trials may take there; None: all that it has."""


class RemoteTransport(Transport):
    """The way to other machines."""

    is_remote = True

    def __init__(self, options: FleetOptions) -> None:
        """Take what was said of the fleet besides.

        Raises:
            JobError: It asks for each kind of device: that is several searches.
        """
        if options.is_of_each_kind:
            raise JobError.of("fleet.kind_of_several", options=options)
        self.options = options
        self.clocks_ahead_s: dict[str, float] = {}
        """Host that answered -> how far its wall clock is ahead of this machine's."""

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
        return tuple(
            node_of(
                host.name,
                found.environment,
                found.devices,
                found.places,
                host.n_slots,
                address=found.address,
                interface=found.interface,
            )
            for host in self.hosts()
            if (found := self.inventory.get(host.name))
        )

    def problems(self) -> tuple[str, ...]:
        left_out = (f"{name} is left out: {why}" for name, why in self.reasons.items())
        return (*left_out, *_uneven(self._asked[0]))

    def variables(self) -> Mapping[str, str]:
        """What changes speed, and what the user named."""
        return forwarded_environment(self.options.forward)

    def start(self, node: Node, module: str, *arguments: str) -> NodeProcess:
        return self._start(node.name, module, *arguments)

    @property
    def reasons(self) -> Mapping[str, str]:
        return self._asked[1]

    @property
    def inventory(self) -> Mapping[str, Inventory]:
        """What the hosts that answered have, by name.

        Raises:
            FleetError: None answered.
        """
        found, problems = self._asked
        if not found:
            words = "; ".join(f"{name}: {why}" for name, why in problems.items())
            raise FleetError.of("fleet.no_node", problems=words)
        return found

    @cached_property
    def _asked(self) -> tuple[dict[str, Inventory], dict[str, str]]:
        """What the hosts have, and what is in the way of the others."""
        wished = (self.options.interface,) if self.options.interface else ()
        hosts = [host.name for host in self.hosts()]
        found: dict[str, Inventory] = {}
        problems: dict[str, str] = {}
        for host, answer in self.ask(hosts, Inventory, INVENTORY, *wished):
            if isinstance(answer, FleetError):
                problems[host] = "; ".join(filter(None, (answer.message, answer.hint)))
            elif not self.options.takes(device := answer.environment.device_name):
                kind = self.options.kind.removeprefix("=")
                problems[host] = f"it has {device}, and nodes of kind={kind} are asked for"
            else:
                found[host] = answer
                self.clocks_ahead_s[host] = answer.unix_s - time.time()
        in_order = hosts.index
        return (
            {host: found[host] for host in sorted(found, key=in_order)},
            {host: problems[host] for host in sorted(problems, key=in_order)},
        )

    def ask(
        self, hosts: Iterable[str], kind: type[Answer], module: str, *arguments: str
    ) -> Iterator[tuple[str, Answer | FleetError]]:
        """What a module of this release answers on some hosts, as it comes; all are asked at once.

        An error says of a host that the module cannot be started there, says nothing in time, or
        says what is in the way.
        """
        asked: dict[str, Program] = {}
        deadline_s = time.monotonic() + _ANSWER_S
        try:
            for host in hosts:
                try:
                    asked[host] = Program(self._start(host, module, *arguments))
                except OSError as error:
                    yield host, FleetError(f"it cannot be reached: {error}")
            while asked:
                time.sleep(PERIOD_S)
                is_late = time.monotonic() > deadline_s
                for host, program in list(asked.items()):
                    if (answer := _answer_of(program, kind, is_late=is_late)) is not None:
                        asked.pop(host).process.end()
                        yield host, answer
        finally:
            for program in asked.values():
                program.process.end()

    def _start(self, host: str, module: str, *arguments: str) -> NodeProcess:
        line = self.open(host, boot_command(self.options.python))
        line.send(boot_request(module, arguments, self.variables()))
        return line


def boot_request(module: str, arguments: Sequence[str], variables: Mapping[str, str]) -> bytes:
    """What the first program on a node reads: a header, and this release."""
    digest, release = bundle()
    header = {
        "digest": digest,
        "size": len(release),
        "module": module,
        "arguments": list(arguments),
        "variables": dict(variables),
        "keeping": keeper_options(grace_s=GRACE_S, is_tmpdir=False),
    }
    return json.dumps(header).encode() + b"\n" + release


def _answer_of(
    program: Program, kind: type[Answer], *, is_late: bool
) -> Answer | FleetError | None:
    """What a program has answered, or why it will not; None: neither yet."""
    for text in program.texts():
        program.last_words = text
        if text.startswith(ANSWER_MARK):
            return read_answer(text, kind)
    last = program.last_words
    if program.code is not None:
        return FleetError(last or f"the way to it ended with code {program.code}")
    if is_late:
        return FleetError(f"no answer within {_ANSWER_S:.0f} s{': ' if last else ''}{last}")
    return None


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


class Elsewhere(GangPlace):
    """The devices of other machines."""

    is_elsewhere = True

    def __init__(self, transport: RemoteTransport, flags: Mapping[str, Any]) -> None:
        self.transport = transport
        self.flags = flags
        self.is_exclusive = transport.options.exclusive

    @cached_property
    def environment(self) -> Environment:  # type: ignore[override]  # known once they are asked
        return common_environment(self.transport)

    def fleet_for(self, job: Job, engine: Engine, lattice: Lattice) -> Callable[[], GangFleet]:
        """Check that the nodes have the engine's packages, then make the fleet.

        Raises:
            FleetError: A package that trials of the engine need is missing on a node.
        """
        for package in find_engine(job.engine).needed(job):
            lacking = [
                name
                for name, found in self.transport.inventory.items()
                if package.name in REPORTED and package.name not in found.releases
            ]
            if lacking:
                raise FleetError.of(
                    "fleet.package_lacking", package=package, lacking=", ".join(lacking)
                )
        return partial(self.gangs, job.world)

    def transport_for(self, world: int) -> RemoteTransport:
        return self.transport

    def node_environments(self) -> list[Environment]:
        return [node.environment for node in self.transport.inventory.values()]

    def nodes_without(self, folder: Path) -> tuple[str, ...]:
        token = os.urandom(8).hex()
        hosts = list(self.transport.inventory)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".seen-") as file:
                file.write(token)
                file.flush()
                path = str(Path(file.name).resolve())
                seen = dict(self.transport.ask(hosts, FileText, _READER, path))
        except OSError as error:
            raise FleetError(f"{folder}: cannot be written: {error}", "free some space") from error
        return tuple(host for host in hosts if seen[host] != FileText(text=token))


def remote_place(place: Place, fleet: str) -> Elsewhere:
    """A place, if it is of other machines; `fleet` is what the user named.

    Raises:
        JobError: It is not.
    """
    if not isinstance(place, Elsewhere):
        raise JobError.of("fleet.no_nodes_to_ask", fleet=fleet)
    return place


_NOT_EVERYWHERE = {
    "has_transformer_engine": "Transformer Engine",
    "has_apex": "Apex",
    "has_flash_attention": "flash-attn",
    "has_deep_ep": "DeepEP",
}
"""Flag of an environment -> a package that speeds trials up where it is installed."""


def _uneven(found: Mapping[str, Inventory]) -> Iterator[str]:
    """Packages that some nodes have and others lack, or have otherwise: no trial uses them."""
    for fact, package in _NOT_EVERYWHERE.items():
        lacking = [
            name for name, inventory in found.items() if not getattr(inventory.environment, fact)
        ]
        if 0 < len(lacking) < len(found):
            verb = "lacks" if len(lacking) == 1 else "lack"
            yield (
                f"{', '.join(lacking)} {verb} {package}, which the other nodes have: trials run "
                "without it everywhere; install it there too"
            )
    releases = names_by({n: i.environment.megatron_core or "none" for n, i in found.items()})
    if len(releases) > 1:
        summary = "; ".join(f"{', '.join(names)}: {which}" for which, names in releases.items())
        yield (
            f"releases of Megatron Core differ ({summary}): it counts as missing; install the "
            "same everywhere"
        )


def names_by(value_of: Mapping[str, Value]) -> dict[Value, list[str]]:
    """Names by the value that they have in common."""
    found: dict[Value, list[str]] = {}
    for name, value in value_of.items():
        found.setdefault(value, []).append(name)
    return found


def common_environment(transport: RemoteTransport) -> Environment:
    """What all nodes of a fleet have: trials on one stand for trials on another.

    Raises:
        FleetError: None answers; their accelerators differ, or releases of what trains.
    """
    found, nodes = transport.inventory, transport.nodes()
    environment_of = {name: inventory.environment for name, inventory in found.items()}
    alike = attrgetter("accelerator", "device_name", "torch_version", "deepspeed_version")
    kinds = names_by({name: alike(has) for name, has in environment_of.items()})
    if len(kinds) > 1:
        parts = []
        for (_, device, *both), names in kinds.items():
            torch, engine = (release or "missing" for release in both)
            parts.append(f"{', '.join(names)}: {device}, torch {torch}, DeepSpeed {engine}")
        raise FleetError.of("fleet.nodes_differ", parts="; ".join(parts))
    environments = list(environment_of.values())
    first = environments[0]
    releases = {environment.megatron_core for environment in environments}
    everywhere: dict[str, Any] = {
        flag: all(getattr(one, flag) for one in environments) for flag in _NOT_EVERYWHERE
    }
    return replace(
        first,
        n_devices=min(len(node.devices) for node in nodes),
        device_memory_bytes=min(
            node.rank_memory_bytes or found[node.name].environment.device_memory_bytes
            for node in nodes
        ),
        precisions=tuple(
            p for p in first.precisions if all(p in e.precisions for e in environments)
        ),
        # Trials of DeepSpeed can do without it, so that it is no reason to refuse the fleet.
        megatron_core=releases.pop() if len(releases) == 1 else "",
        **everywhere,
    )


_SUFFIXES = (".py", ".yaml", ".json", ".typed")
"""Kinds of files of the package that a node may read."""


@cache
def bundle() -> tuple[str, bytes]:
    """Digest of the bundle, and a compressed tar file of it.

    It holds the package, and the entry points by which its plug-ins are found. The same sources
    make the same bytes.
    """
    root = Path(autotune.__file__).parent
    files = {
        str(Path("autotune", path.relative_to(root))): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.suffix in _SUFFIXES and path.is_file()
    }
    info = f"autotune-{autotune.__version__}.dist-info"
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: autotune\nVersion: {autotune.__version__}\n".encode()
    )
    entry_points = None
    with suppress(PackageNotFoundError):
        entry_points = distribution("autotune").read_text("entry_points.txt")
    files[f"{info}/entry_points.txt"] = (entry_points or "").encode()
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    data = gzip.compress(plain.getvalue(), compresslevel=6, mtime=0)
    return hashlib.sha256(data).hexdigest()[:24], data
