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

_GONE = (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess, FileNotFoundError)


def ranks_command(
    folder: Path, *, world: int, port: int, module: str, arguments: Sequence[str]
) -> list[str]:
    """The command that starts a trial's ranks on this machine, under a launcher tied to us.

    Args:
        folder: The trial's; the launcher writes how the ranks ended there.
        world: Ranks to start.
        port: Leased, for the ranks' rendezvous; on loopback alone.
        module: What each rank runs, as `python -m` does.
        arguments: The module's.
    """
    return [
        *(sys.executable, "-m", "autotune.trial.launcher", str(folder), "--"),
        *("--nnodes=1", f"--nproc-per-node={world}", "--max-restarts=0"),
        *("--rdzv-backend=static", f"--rdzv-endpoint=127.0.0.1:{port}"),
        *("--node-rank=0", "--master-addr=127.0.0.1", f"--master-port={port}"),
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
    while processes := processes_of(folder):
        for process in processes:
            with contextlib.suppress(*_GONE):
                process.kill()
        psutil.wait_procs(processes, timeout=0.5)
        if time.monotonic() > deadline:
            return  # in uninterruptible sleep: the kernel delivers the signal when it wakes


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped a process: it is there and does nothing."""
    with contextlib.suppress(*_GONE):
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    return False


def ask_for_stacks(pids: list[int]) -> None:
    """Make ranks write the stacks of all their threads, each to its own `STACKS_FILE`.

    One that is stopped would not hear of it before it goes on, so it does.
    """
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGUSR1)
            os.kill(pid, signal.SIGCONT)
