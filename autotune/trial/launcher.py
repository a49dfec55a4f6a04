"""Start the ranks of one trial on one node, and end them all where one has failed.

`python -m autotune.trial.launcher FOLDER RENDEZVOUS MODULE ARGUMENTS` runs `python -m MODULE
ARGUMENTS` in every rank; RENDEZVOUS is JSON. It does what torchrun would, which imports torch
first: for seconds in which no rank could begin. A warm template (`autotune.trial.warm`) forks its
ranks likewise.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from autotune.base.keeper import end_with_parent, keeping
from autotune.contract import PARENT_ENV, RANKS_DIR, write_json
from autotune.trial.rendezvous import Rendezvous
from autotune.trial.variables import STORE_ENV

EXIT_FILE = "exit_{node:02d}.json"

_POLL_S = 0.02
_GRACE_S = 5.0
"""Time between SIGTERM and SIGKILL for ranks whose neighbour has failed."""


def main() -> None:
    """Run the ranks of this node until all have ended."""
    # The coordinator decides what Ctrl-C means. A handler, as the ranks would inherit `SIG_IGN`.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # by `finally`
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ranks are waited for
    folder, rendezvous, *command = sys.argv[1:]
    with keeping(int(os.environ[PARENT_ENV])):
        os.environ[PARENT_ENV] = str(os.getpid())  # as its ranks find it
        try:
            code = run_ranks(Path(folder), Rendezvous(**json.loads(rendezvous)), _become, command)
        except OSError as error:
            print(f"launcher: {type(error).__name__}: {error}", file=sys.stderr)
            code = 2
    sys.exit(code)


def _become(command: list[str]) -> NoReturn:
    if STORE_ENV in os.environ:
        os.set_inheritable(int(os.environ[STORE_ENV]), True)
    os.execv(sys.executable, [sys.executable, "-u", "-m", *command])


def run_ranks(
    folder: Path, rendezvous: Rendezvous, become_rank: Callable[..., NoReturn], *arguments: Any
) -> int:
    """Fork the ranks of this node, and wait until all have ended.

    Returns:
        1 where ranks failed of themselves, else 0. `EXIT_FILE` has the exit codes of those that
        did; negative: ended by that signal.

    Raises:
        OSError: The first node cannot listen, or no process can be started.
    """
    launcher, ranks = os.getpid(), {}
    listener = rendezvous.listen()
    for rank in rendezvous.ranks:
        pid = os.fork()
        if pid == 0:
            in_a_child(_be_rank, rank, rendezvous, listener, launcher, become_rank, arguments)
        ranks[pid] = rank
    if listener is not None:
        listener.close()
    failed = _wait_for(ranks)
    if failed:
        exit_file = folder / RANKS_DIR / EXIT_FILE.format(node=rendezvous.node)
        write_json(exit_file, {str(rank): code for rank, code in failed.items()})
    return 1 if failed else 0


def in_a_child(run: Callable[..., int], *arguments: Any) -> NoReturn:
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


def _be_rank(
    rank: int,
    rendezvous: Rendezvous,
    listener: socket.socket | None,
    launcher: int,
    become_rank: Callable[..., NoReturn],
    arguments: Iterable[Any],
) -> NoReturn:
    end_with_parent(launcher)
    os.setsid()
    rendezvous.take_part(rank, listener)
    become_rank(*arguments)


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


if __name__ == "__main__":
    main()
