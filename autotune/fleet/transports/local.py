"""This machine: its GPUs or its cores, reached by starting a process."""

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import psutil

from autotune.base.errors import JobError
from autotune.base.guarded_process import GuardedProcess
from autotune.base.units import format_count
from autotune.devices.hardware import (
    HOST_SHARE,
    Environment,
    detect_environment,
    usable_memory_bytes,
)
from autotune.devices.in_use import REMEDY, in_use, watch_devices
from autotune.engines.base import Engine, check_installed, find_engine
from autotune.fleet.base import THIS_MACHINE
from autotune.fleet.gang_fleet import AGENT, GangFleet, GangPlace
from autotune.fleet.node.places import devices_here
from autotune.fleet.node.ports import check_reachable
from autotune.fleet.options import FleetOptions
from autotune.fleet.transports.base import GRACE_S, Node, Transport, node_of
from autotune.job.job import Job
from autotune.planning.lattice import Lattice


class Local:
    """This machine; implements `FleetPlugin`."""

    def find(
        self, of: str, job_file: Path | None, flags: Mapping[str, Any], options: FleetOptions
    ) -> "Here":
        replace(options, exclusive=False).refuse("local")
        if of:
            raise JobError.of("fleet.one_such_machine", of=of)
        return Here(detect_environment(), flags, is_exclusive=options.exclusive)


class Here(GangPlace):
    """The devices of this machine."""

    def __init__(
        self, environment: Environment, flags: Mapping[str, Any], *, is_exclusive: bool = False
    ) -> None:
        super().__init__(environment, flags)
        self.is_exclusive = is_exclusive
        self.host_memory_bytes = int(usable_memory_bytes() * HOST_SHARE)

    def remarks(self, world: int) -> Sequence[str]:
        """What others use of the devices, ranks that share cores, and others that run trials."""
        remarks = [f"{text}: {REMEDY}" for text in self._in_use]
        n_cores = self.environment.n_devices
        if self.environment.accelerator == "cpu" and world > n_cores:
            remarks.append(
                f"{format_count(world, 'rank')} share {format_count(n_cores, 'core')} and take "
                "turns: on more cores other settings may be the fastest"
            )
        if others := other_agents():
            named = "process" if len(others) == 1 else "processes"
            remarks.append(
                f"autotune also runs on this machine ({named} {', '.join(map(str, others))}): "
                "trials at the same time may slow each other; run one search after the other"
            )
        return remarks

    @cached_property
    def _in_use(self) -> list[str]:
        is_cpu = self.environment.accelerator == "cpu"
        devices = watch_devices(self.environment.accelerator)
        return in_use(devices, os.getloadavg()[0] if is_cpu else None)

    def fleet_for(self, job: Job, engine: Engine, lattice: Lattice) -> Callable[[], GangFleet]:
        """Check the packages and the workload, then make the fleet.

        Raises:
            FleetError: A package that trials of the engine need is missing.
            JobError: What the job trains does not take its candidates.
        """
        check_installed(find_engine(job.engine), job)
        engine.check_here(lattice.candidates)
        return partial(self.gangs, job.world)

    def transport_for(self, world: int) -> "LocalTransport":
        return LocalTransport(local_node(self.environment, world))

    def gangs(self, world: int) -> GangFleet:
        check_reachable()
        return super().gangs(world)


def other_agents() -> list[int]:
    """Processes of this machine that run trials for another process than this one."""
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        # The keepers of an agent name it as well, further back.
        if (process.info["cmdline"] or [])[2:4] == ["-m", AGENT] and process.pid not in children
    ]


def local_fleet(environment: Environment, *, world: int) -> GangFleet:
    """A fleet of this machine alone.

    Raises:
        FleetError: The machine has fewer GPUs than the job has ranks, or its ranks cannot meet.
    """
    return Here(environment, {}).gangs(world)


def local_node(environment: Environment, world: int) -> Node:
    """This machine; each CPU rank of a job's `world` has a slot."""
    devices, places = devices_here(environment.accelerator)
    n_slots = len(devices) if environment.accelerator == "cuda" else max(world, len(devices))
    return node_of(THIS_MACHINE, environment, devices, places, n_slots)


class LocalTransport(Transport):
    """The one node that this process runs on."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def nodes(self) -> tuple[Node, ...]:
        return (self._node,)

    def start(self, node: Node, module: str, *arguments: str) -> "LocalProcess":
        return LocalProcess([sys.executable, "-P", "-m", module, *arguments])


class LocalProcess:
    """A process of this machine that ends with this one; implements `NodeProcess`."""

    def __init__(
        self, command: list[str], *, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start it, in a session of its own.

        Args:
            command: With its arguments.
            environment: Its variables; None: those of this process.

        Raises:
            OSError: It cannot be started.
        """
        self._process = GuardedProcess(
            command,
            # Its input ends with this process; then it removes what its trials left in memory.
            grace_s=GRACE_S,
            # What trials of this machine share stays where a next search finds it.
            is_tmpdir=False,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._input, False)
        os.set_blocking(self._output, False)
        self._unsent = bytearray()

    def send(self, data: bytes) -> None:
        self._unsent += data
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._unsent and select.select([], [self._input], [], 0)[1]:
                del self._unsent[: os.write(self._input, self._unsent)]

    def receive(self) -> bytes:
        self.send(b"")
        received = b""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._output, 64 * 1024):
                received += chunk
        return received

    def poll(self) -> int | None:
        return self._process.poll()

    def close_input(self) -> None:
        """End its input; what was not taken yet is dropped."""
        assert self._process.stdin is not None
        self._unsent.clear()
        self._process.stdin.close()

    def end(self) -> None:
        self._process.kill()
