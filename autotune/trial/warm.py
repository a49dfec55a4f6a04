"""A warm template: a process that has imported what trials import, and forks their ranks.

`python -m autotune.trial.warm CHANNEL ENGINE ACCELERATOR MODEL`, started by its node. The start of
a trial is nearly all imports. Here they are paid once. Each trial has processes of its own, forked
from this one, which runs a single thread and never computes or trains: no trial's state reaches
the next. What a process reads when it starts or imports (its environment) is the
template's, so the node keeps one template per environment.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from autotune.contract import PARENT_ENV, RANKS_DIR, TRIAL_ENV, write_json
from autotune.trial import wrapper
from autotune.trial.descent import adopt_orphans, end_all_below
from autotune.trial.engines.base import driver_of
from autotune.trial.launcher import (
    EXIT_FILE,
    end_with_parent,
    listen_on,
)

READY = b"ready"
"""Message of the template once it has imported everything."""
STARTED = b"s"
"""First message of a trial's launcher; its exit code follows when it has ended."""
FILES_PASSED = 3
"""Files of every request: the trial's stdout and stderr, and where its launcher answers."""
MAX_REQUEST_BYTES = 64 * 1024

_ENDED = "autotune/ended"
"""Key of the ranks' store: how many nodes' ranks have ended."""
_OTHERS_WAIT_S = 10.0
"""Time for the ranks of other nodes to end once those of the first one have: its store is theirs,
too. The coordinator ends them as soon."""
_MEET_WAIT_S = 300.0
_POLL_S = 0.02
_GRACE_S = 5.0
"""Time between SIGTERM and SIGKILL for ranks whose neighbour has failed."""


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """Where the ranks of a trial find one another, and which of them are here."""

    address: str
    port: int
    world: int
    node: int
    """Place of this node in the gang; the first one has the store."""
    n_nodes: int

    @property
    def n_local(self) -> int:
        """Ranks of each node."""
        return self.world // self.n_nodes

    @property
    def ranks(self) -> range:
        """Ranks here."""
        return range(self.node * self.n_local, (self.node + 1) * self.n_local)


def main() -> None:
    """Import everything, then fork a trial for each request until the node hangs up.

    Raises:
        RuntimeError: Importing left threads behind: a fork would hang in what they hold.
    """
    end_with_parent(int(os.environ[PARENT_ENV]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator decides what Ctrl-C means
    channel = socket.socket(fileno=int(sys.argv[1]))
    # What a rank imports in its own phases; heavy.
    from autotune.trial import diagnose, memory, stopwatch  # noqa: F401

    driver = driver_of(sys.argv[2])
    driver.load_code(sys.argv[3])
    driver.load_model_code(json.loads(sys.argv[4]))
    if (n_threads := len(os.listdir("/proc/self/task"))) != 1:
        raise RuntimeError(f"importing left {n_threads} threads, and only one may fork")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody here waits for a trial's launcher
    # Until here its output went to the logs of the trial that it was started for.
    _redirect(os.open(os.devnull, os.O_WRONLY), 1, 2)
    channel.send(READY)
    while True:
        message, files, *_ = socket.recv_fds(channel, MAX_REQUEST_BYTES, FILES_PASSED)
        if not message:
            return
        _fork_launcher(json.loads(message), files, channel)
        for file in files:
            os.close(file)


def _fork_launcher(request: dict[str, Any], files: list[int], channel: socket.socket) -> None:
    template = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:  # that trial starts cold; the others go on
        os.write(files[1], f"no warm start: {error}\n".encode())
        return
    if pid == 0:
        channel.close()
        _in_a_child(_launch, request, files, template)


def _launch(request: dict[str, Any], files: list[int], parent: int) -> int:
    """Fork the ranks of one trial and do for them what torchrun would; returns its exit code.

    Args:
        request: `folder`, the fields of its `meeting` and the trial's own `environment`.
        files: See `FILES_PASSED`.
        parent: The template's process id.
    """
    folder, stdout, stderr, status = Path(request["folder"]), *files
    _redirect(stdout, 1)
    _redirect(stderr, 2)
    end_with_parent(parent)
    adopt_orphans()
    _show_trial(request["folder"])
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        os.write(status, STARTED)
    except BrokenPipeError:
        return 1  # cancelled before its turn came
    code = 1
    try:
        os.environ.update(request["environment"])
        tempfile.tempdir = None  # it is the template's, where that has asked for it
        meeting = Rendezvous(**request["meeting"])
        codes = _run_ranks(folder, meeting, status)
        if codes:
            exit_file = folder / RANKS_DIR / EXIT_FILE.format(node=meeting.node)
            write_json(exit_file, {str(r): c for r, c in codes.items()})
        code = 1 if codes else 0
    finally:
        end_all_below()
        os.write(status, str(code).encode())
    return code


def _run_ranks(folder: Path, meeting: Rendezvous, status: int) -> dict[int, int]:
    """Fork the ranks of this node and wait until all have ended.

    Returns:
        Exit codes of the ranks that failed of themselves; negative: ended by that signal.
    """
    launcher = os.getpid()
    is_first = meeting.node == 0
    listener = listen_on(meeting.port, meeting.address) if is_first else None
    ranks = {}
    for rank in meeting.ranks:
        pid = os.fork()
        if pid == 0:
            os.close(status)
            if listener is not None:
                listener.close()
            _in_a_child(_be_rank, folder, rank, meeting, launcher)
        ranks[pid] = rank
    # The store has a thread, so it comes after the forks; a rank that is earlier waits for it.
    store = None if listener is None else _store(meeting, listener)
    failed = _wait_for(ranks)
    if meeting.n_nodes > 1 and not failed:
        _wait_for_others(meeting, store)
    del store
    return failed


def _store(meeting: Rendezvous, listener: socket.socket | None = None) -> Any:
    """The ranks' store: it itself, or the way to it."""
    import torch.distributed as dist

    own = {} if listener is None else {"master_listen_fd": listener.detach()}
    return dist.TCPStore(
        meeting.address,
        meeting.port,
        is_master=listener is not None,
        wait_for_workers=False,
        timeout=timedelta(seconds=_MEET_WAIT_S),
        **own,
    )


def _wait_for_others(meeting: Rendezvous, own: Any) -> None:
    """Say that the ranks here have ended; the first node keeps the store until all have.

    Where another node is gone there is nobody to tell, or to wait for.
    """
    with contextlib.suppress(RuntimeError):
        store = own or _store(meeting)
        n_ended = store.add(_ENDED, 1)
        deadline_s = time.monotonic() + _OTHERS_WAIT_S
        while own is not None and n_ended < meeting.n_nodes and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
            n_ended = store.add(_ENDED, 0)


def _be_rank(folder: Path, rank: int, meeting: Rendezvous, launcher: int) -> NoReturn:
    """Run one rank as torchrun would have started it, in a session of its own."""
    end_with_parent(launcher)
    os.setsid()
    sys.argv = [wrapper.__file__, str(folder)]
    if "numpy" in sys.modules:  # torch's is seeded by the workload, and Python's at a fork
        sys.modules["numpy"].random.seed()
    os.environ.update(
        {
            **{name: str(rank) for name in ("RANK", "ROLE_RANK")},
            "LOCAL_RANK": str(rank - meeting.ranks.start),
            **{name: str(meeting.world) for name in ("WORLD_SIZE", "ROLE_WORLD_SIZE")},
            "LOCAL_WORLD_SIZE": str(meeting.n_local),
            "GROUP_RANK": str(meeting.node),
            "GROUP_WORLD_SIZE": str(meeting.n_nodes),
            "ROLE_NAME": "default",
            "MASTER_ADDR": meeting.address,
            "MASTER_PORT": str(meeting.port),
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
    )
    wrapper.main(folder)


def _wait_for(ranks: dict[int, int]) -> dict[int, int]:
    """Wait for all ranks (process id -> rank); once one has failed, end the others."""
    failed: dict[int, int] = {}
    of_ours = {0}
    deadline = 0.0
    while ranks:
        # Waiting costs the ranks nothing; only once one has failed is there something to do.
        pid, status = os.waitpid(-1, os.WNOHANG if failed else 0)
        if pid and pid not in ranks:
            continue  # it was orphaned by one
        if pid:
            rank, code = ranks.pop(pid), os.waitstatus_to_exitcode(status)
            # A rank that a signal kills takes a moment to end: its neighbour, whose connection
            # that breaks, may end sooner, and the signal is still the cause to be told.
            if code not in of_ours and (code < 0 or not deadline):
                failed[rank] = code
        elif not deadline:
            deadline = time.monotonic() + _GRACE_S
            of_ours.add(-signal.SIGTERM)
            _signal(ranks, signal.SIGTERM)
        else:
            if time.monotonic() > deadline:
                of_ours.add(-signal.SIGKILL)
                _signal(ranks, signal.SIGKILL)
            time.sleep(_POLL_S)
    return failed


def _signal(ranks: dict[int, int], number: signal.Signals) -> None:
    for pid in ranks:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _redirect(source: int, *targets: int) -> None:
    """Make the target descriptors copies of the source, and close the source."""
    for target in targets:
        os.dup2(source, target)
    os.close(source)


def _in_a_child(run: Callable[..., int], *arguments: Any) -> NoReturn:
    """Run a forked process's task and end it: it must never go on with its parent's work."""
    code = 1
    try:
        code = run(*arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _show_trial(folder: str) -> None:
    """Write the trial's folder into the environment as the kernel shows it to other processes.

    `/proc/PID/environ` is the memory that the environment had when the process began. The sweep
    for what a trial left behind reads it there, and the node has left room in it.
    """
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    place = libc.getenv(TRIAL_ENV.encode())
    value = os.fsencode(folder) + b"\0"
    if len(value) > len(os.environ[TRIAL_ENV]):
        raise ValueError(f"{folder}: longer than the room for it")
    ctypes.memmove(place, value, len(value))
    os.environ[TRIAL_ENV] = folder


if __name__ == "__main__":
    main()
