"""Starts, finds and ends the processes of a trial, wherever they hang in the process tree.

Every process of a trial carries the trial's folder in its environment (`TRIAL_ENV`), and so do
its children: that finds ranks whose torchrun is gone and workers whose rank is gone.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from autotune.contract import TRIAL_ENV
from autotune.trial.launcher import LOOPBACK

_GONE = (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess, FileNotFoundError)


def ranks_command(
    folder: Path,
    *,
    n_ranks: int,
    port: int,
    module: str,
    arguments: Sequence[str],
    node: int = 0,
    n_nodes: int = 1,
    address: str = LOOPBACK,
) -> list[str]:
    """The command that starts a trial's ranks on this node, under a launcher tied to us.

    Args:
        folder: The trial's; the launcher writes how the ranks ended there.
        n_ranks: Ranks to start here.
        port: Where the ranks of all nodes find one another; leased.
        module: What each rank runs, as `python -m` does.
        arguments: The module's.
        node: This one, of the gang's nodes.
        n_nodes: How many nodes the gang has.
        address: Address of the gang's first node; loopback where it is the only one.
    """
    return [
        *(sys.executable, "-m", "autotune.trial.launcher", str(folder), str(node), address, "--"),
        *(f"--nnodes={n_nodes}", f"--nproc-per-node={n_ranks}", "--max-restarts=0"),
        *("--rdzv-backend=static", f"--rdzv-endpoint={address}:{port}"),
        *(f"--node-rank={node}", f"--master-addr={address}", f"--master-port={port}"),
        *("-m", module, *arguments),
    ]


def processes_of(folder: Path) -> list[psutil.Process]:
    """Processes of the trial in `folder`, or of all trials below it."""
    root = str(folder.resolve())
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(*_GONE):
            trial = process.environ().get(TRIAL_ENV, "")
            is_ours = trial == root or trial.startswith(root + os.sep)
            if is_ours and process.pid != os.getpid():
                found.append(process)
    return found


def kill_all(folder: Path, *, timeout_s: float = 10.0) -> None:
    """Kill every process of the trials below `folder` and wait until they are gone."""
    deadline = time.monotonic() + timeout_s
    while processes := kill_once(folder):
        psutil.wait_procs(processes, timeout=0.5)
        if time.monotonic() > deadline:
            return  # in uninterruptible sleep: the kernel delivers the signal when it wakes


def kill_once(folder: Path) -> list[psutil.Process]:
    """Kill the processes of the trials below `folder` that are there now; does not wait."""
    processes = processes_of(folder)
    for process in processes:
        with contextlib.suppress(*_GONE):
            process.kill()
    return processes


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped a process: it is there and does nothing."""
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
