"""Fresh ranks for each question of a test, forked from a process that has imported everything.

A start of Python costs seconds, a fork next to nothing. So no question is asked in ranks that
another one has hung, ended or left something behind in.
"""

import contextlib
import faulthandler
import gc
import json
import os
import re
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from autotune.base.keeper import end_with_parent
from autotune.fleet.node.ports import remove_segments
from autotune.trial.rendezvous import LOOPBACK, RankStore, Rendezvous, listen_on

Answer = dict[str, Any]
"""What one rank says: `error` is None or `type: message`, and the rest is the question's own."""

NO_ANSWER = "no answer"
"""Error of a rank that says nothing: it waits for another one, or for ever."""
ENDED = "ended by itself"
"""How the error of a rank begins whose process was gone before it answered."""

_LOST = re.compile(r"Connection (closed|reset) by peer|Broken pipe|Connection refused")
"""A rank that ends takes the others down with such errors: they are never the cause."""
_STACK_S = 2.0
"""Time for a rank that is asked where it is."""


@dataclass
class _Rank:
    pid: int
    pipe: int
    said: bytearray = field(default_factory=bytearray)
    answer: Answer | None = None


def ask(
    question: Callable[[], Answer], world: int, *, within_s: float, after_error_s: float
) -> list[Answer]:
    """Answers of fresh ranks, in their order; asked again, once, if no rank says the cause.

    Args:
        question: What every rank runs, with the environment that torchrun would give it. It
            makes the process group. An exception is an answer.
        world: Ranks.
        within_s: Time for all of them.
        after_error_s: Time that the others have once one has raised: most wait for it in vain.

    Raises:
        RuntimeError: This process has several threads: a fork would hang in what they hold.
    """
    # A rank that collected garbage would otherwise copy all that was imported.
    gc.freeze()
    answers = _ask_once(question, world, within_s, after_error_s)
    if needs_another_try(answers):
        answers = _ask_once(question, world, within_s, after_error_s)
    return answers


def needs_another_try(answers: list[Answer]) -> bool:
    """Whether something went wrong, and no rank has an error of its own that would explain it."""
    errors = [answer["error"] for answer in answers if answer["error"] is not None]
    return bool(errors) and all(is_no_cause(error) for error in errors)


def is_no_cause(error: str) -> bool:
    """Whether a rank's error tells no more than that it, or another one, is gone or waits."""
    return error == NO_ANSWER or error.startswith(ENDED) or _LOST.search(error) is not None


def _ask_once(
    question: Callable[[], Answer], world: int, within_s: float, after_error_s: float
) -> list[Answer]:
    if (n_threads := len(os.listdir("/proc/self/task"))) != 1:
        raise RuntimeError(f"{n_threads} threads, and only one may fork")
    ranks: list[_Rank] = []
    with listen_on(0) as listener:
        port = listener.getsockname()[1]
        rendezvous = Rendezvous(address=LOOPBACK, port=port, world=world, node=0, n_nodes=1)
        try:
            for rank in range(world):
                ranks.append(_fork(question, rank, rendezvous, listener))
            _collect(ranks, within_s, after_error_s)
        finally:
            for each in ranks:
                _end(each)
            remove_segments(port)
    return [each.answer or {"error": NO_ANSWER, "traceback": ""} for each in ranks]


def _fork(
    question: Callable[[], Answer], rank: int, rendezvous: Rendezvous, listener: socket.socket
) -> _Rank:
    sys.stdout.flush()
    sys.stderr.flush()
    ours, theirs = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        _be_rank(question, rank, rendezvous, listener, theirs, parent)
    os.close(theirs)
    return _Rank(pid=pid, pipe=ours)


def _be_rank(
    question: Callable[[], Answer],
    rank: int,
    rendezvous: Rendezvous,
    listener: socket.socket,
    pipe: int,
    parent: int,
) -> NoReturn:
    """Answer, and stay until the parent has all answers: a rank that ends breaks connections."""
    try:
        end_with_parent(parent)
        os.setsid()
        faulthandler.register(signal.SIGUSR1, file=pipe, all_threads=False)
        rendezvous.take_part(rank, listener)
        store = RankStore()
        store.open()
        answer = _answer(question)
        faulthandler.unregister(signal.SIGUSR1)
        with os.fdopen(pipe, "w") as file:
            file.write(json.dumps(answer, default=str))
        signal.pause()
        del store
    finally:
        os._exit(1)


def _answer(question: Callable[[], Answer]) -> Answer:
    started = time.monotonic()
    try:
        answer = question()
    except Exception as error:
        answer = {
            "error": f"{type(error).__name__}: {error}",
            "traceback": traceback.format_exc()[-3000:],
        }
    return answer | {"seconds": round(time.monotonic() - started, 2)}


def _collect(ranks: list[_Rank], within_s: float, after_error_s: float) -> None:
    """Read answers until all are there, or time is up; then ask the others where they are."""
    deadline = time.monotonic() + within_s
    with selectors.DefaultSelector() as selector:
        for rank in ranks:
            selector.register(rank.pipe, selectors.EVENT_READ, rank)
        while selector.get_map() and (left_s := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                rank = key.data
                if part := os.read(rank.pipe, 2**16):
                    rank.said += part
                    continue
                selector.unregister(rank.pipe)
                rank.answer = json.loads(rank.said) if rank.said else _how_it_ended(rank)
                if rank.answer["error"] is not None:
                    deadline = min(deadline, time.monotonic() + after_error_s)
        for key in list(selector.get_map().values()):
            selector.unregister(key.fd)
            key.data.answer = {"error": NO_ANSWER, "traceback": _stack(key.data)}


def _how_it_ended(rank: _Rank) -> Answer:
    _, status = os.waitpid(rank.pid, 0)
    rank.pid = 0
    code = os.waitstatus_to_exitcode(status)
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return {"error": f"{ENDED}: {how}", "traceback": ""}


def _stack(rank: _Rank) -> str:
    """Where a rank is that does not answer."""
    os.kill(rank.pid, signal.SIGUSR1)
    with selectors.DefaultSelector() as selector:
        selector.register(rank.pipe, selectors.EVENT_READ)
        while selector.select(_STACK_S) and (part := os.read(rank.pipe, 2**16)):
            rank.said += part
            if rank.said.rstrip().endswith(b"in <module>"):
                break
    return rank.said.decode(errors="replace")


def _end(rank: _Rank) -> None:
    os.close(rank.pipe)
    if rank.pid:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(rank.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # it had not become a group of its own
            os.kill(rank.pid, signal.SIGKILL)
        os.waitpid(rank.pid, 0)
