"""Starts, finds and ends the processes of a trial, wherever they hang in the process tree.

Every process of a trial carries the trial's folder in its environment (`TRIAL_ENV`), and so do
its children: that finds ranks whose launcher is gone and workers whose rank is gone. A child that
has cleared its environment is found by its descent: a trial's launcher adopts its orphans.
"""

import contextlib
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from autotune.base.keeper import END_WAIT_S, below
from autotune.contract import TRIAL_ENV, Start
from autotune.trial.rendezvous import LOOPBACK, Rendezvous

TRAINS = "autotune.trial.wrapper"
"""Module of a rank that trains."""
_GONE = (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess, FileNotFoundError)


@dataclass(frozen=True, kw_only=True)
class NodePart:
    """A trial's ranks on one node of its gang; the trial's folder holds its spec and files."""

    folder: str
    devices: list[str]
    """Devices, one per rank: UUIDs of GPUs, or numbers of cores."""
    node: int = 0
    """This node's place in the gang."""
    n_nodes: int = 1
    address: str = LOOPBACK
    """Address of the gang's first node, where the ranks find one another."""
    interface: str = "lo"
    """Network interface by which the ranks here reach the others."""
    port: int | None = None
    """Port at which they meet; None: the first node leases it."""
    start: Start | None = None
    """How the ranks have to start, as those of the first node did; None: as the spec says, if
    that works here. A trial starts in one way on all of its nodes."""
    module: str = TRAINS
    """Module that each rank runs, unless the trial has a command of the user's."""
    n_sharing: int = 1
    """Ranks of the job on this node, which share its cores; where a reduced trial has fewer, each
    still gets no more of them."""
    capacity_bytes: int = 0
    """Memory of a CPU rank; 0: a GPU knows its own."""
    began_at_s: float = 0.0
    """When it came to the node, by the monotonic clock there."""
    coordinator: str = ""
    """Name of the coordinator's machine."""

    @property
    def first_rank(self) -> int:
        return self.node * len(self.devices)

    def rendezvous(self, port: int) -> Rendezvous:
        """Where the ranks find one another, at a port that the first node has leased."""
        return Rendezvous(
            address=self.address,
            port=port,
            world=self.n_nodes * len(self.devices),
            node=self.node,
            n_nodes=self.n_nodes,
        )


def ranks_command(part: NodePart, port: int) -> list[str]:
    """The command that runs `python -m MODULE FOLDER` in every rank, by a launcher tied to us.

    The launcher writes how the ranks ended into the trial's folder; the port has to be leased.
    """
    rendezvous = json.dumps(asdict(part.rendezvous(port)))
    launcher = (sys.executable, "-m", "autotune.trial.launcher", part.folder, rendezvous)
    return [*launcher, part.module, part.folder]


def guest_command(part: NodePart, port: int) -> list[str]:
    """The command that starts a user's own command, as the trial's spec has it, tied to us."""
    module = "autotune.trial.guest.launcher"
    n_ranks = len(part.devices)
    return [sys.executable, "-P", "-m", module, part.folder, str(port), str(n_ranks)]


def processes_of(folder: Path, coordinator: str = "") -> list[psutil.Process]:
    """Processes of the trial in `folder`, or of all trials below it.

    Of a `coordinator` on another machine it is its own folder, which is not shared: see
    `autotune.fleet.node.files.node_folder`.
    """
    root = str(folder) if coordinator else str(folder.resolve())
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(*_GONE):
            trial = process.environ().get(TRIAL_ENV, "")
            if coordinator:
                trial = os.sep + trial.partition(f"{os.sep}{coordinator}{os.sep}")[2]
            if trial == root or trial.startswith(root + os.sep):
                found[process.pid] = process
    for pid in [child for marked in found for child in below(marked)]:
        with contextlib.suppress(*_GONE):
            found.setdefault(pid, psutil.Process(pid))
    found.pop(os.getpid(), None)
    return list(found.values())


def kill_all(folder: Path, coordinator: str = "") -> None:
    """Kill all `processes_of` a folder and wait until they are gone."""
    deadline = time.monotonic() + END_WAIT_S
    while processes := kill_once(folder, coordinator):
        psutil.wait_procs(processes, timeout=0.5)
        if time.monotonic() > deadline:
            return  # in uninterruptible sleep: the kernel delivers the signal when it wakes


def kill_once(folder: Path, coordinator: str = "") -> list[psutil.Process]:
    """Kill the `processes_of` a folder that are there now; does not wait."""
    processes = processes_of(folder, coordinator)
    for process in processes:
        with contextlib.suppress(*_GONE):
            process.kill()
    return processes


def is_stopped(pid: int) -> bool:
    """True for a process that a signal or a debugger has stopped."""
    with contextlib.suppress(*_GONE):
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    return False


def ask_for_stacks(pids: list[int]) -> None:
    """Make ranks write the stacks of all their threads, each to its own `STACKS_FILE`.

    A stopped rank gets the signal only once it runs again, so it is continued.
    """
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGUSR1)
            os.kill(pid, signal.SIGCONT)
