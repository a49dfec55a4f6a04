"""Faults of what a trial stands on: its launcher and template, ports, disk, logs, files."""

import contextlib
import functools
import os
import resource
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from autotune.base.errors import StudyError
from autotune.contract import (
    NODE_FILE,
    RANKS_DIR,
    RESULT_FILE,
    STDERR_FILE,
    Outcome,
    Start,
    TrialResult,
    read_json,
)
from autotune.engines.deepspeed.extensions import build, extensions_folder
from autotune.fleet.gang_fleet import GangTrial
from autotune.fleet.node.ranks import HEAD_BYTES, TAIL_BYTES
from autotune.trial.prebuilt import BUILT_FILE
from tests.chaos.arena import Arena, Ground
from tests.chaos.disks import needs_mounts, small_disk
from tests.chaos.faults import HANGING, LOG_BYTES, Fault, must
from tests.chaos.in_trials import expect
from tests.chaos.invariants import command_of
from tests.trials import agents, wait_until

_EXTENSIONS_ENV = "TORCH_EXTENSIONS_DIR"
_MAX_GROWTH_BYTES = 64 * 2**20
"""Largest growth of the coordinator over a log of 1 GiB: it reads 64 KiB of it."""


def faults() -> Iterator[Fault]:
    """All of them."""
    for start in Start:
        is_warm = start is Start.WARM
        for inject, name, rounds in (
            (_launcher_killed, "launcher or template killed: SIGKILL to the launcher", 3),
            (_agent_killed, "launcher or template killed: SIGKILL to the agent", 2),
            (_launcher_stopped, "launcher or template killed: SIGSTOP to the launcher", 2),
            (_port_taken, "port taken: between lease and listening", 3),
            (_log_with_a_hole, "log of 1 GB: in one line, sparse", 2),
            (_log, "log of 1 GB: written", 1),
            (_report_cut_short, "rank report cut short: by the rank that is killed then", 2),
            (_node_report_garbled, "rank report cut short: that of the node garbled", 1),
            (_stale_lock, "stale extension lock: while a trial starts", 2),
        ):
            yield Fault(
                name=f"{name}, {start}",
                inject=functools.partial(inject, start),
                in_short=is_warm and inject not in _TOO_LONG,
                rounds=rounds,
            )
        yield Fault(
            name=f"disk full: while ranks report and the result is written, {start}",
            inject=functools.partial(_disk_full, start),
            in_short=is_warm,
            rounds=3,
            needs=needs_mounts,
        )
    for name, inject in (
        ("killed while a trial runs", _template_killed),
        ("killed before a trial starts", _template_killed_before),
        ("stopped, and the trial is late", _template_stopped),
    ):
        yield Fault(
            name=f"launcher or template killed: template {name}",
            inject=inject,
            rounds=3,
            in_short=inject is _template_killed_before,
        )


def _launcher_killed(start: Start, ground: Ground) -> None:
    arena = ground.arena
    handle = arena.submit("hang_in_forward", start)
    _launcher(handle).kill()
    (handle.folder / HANGING).unlink(missing_ok=True)  # ranks end with it; nothing hangs
    result = arena.finish(handle)
    _expect_the_platform(result)
    arena.check()


def _agent_killed(start: Start, ground: Ground) -> None:
    """All that it started ends with it, and the fleet starts another."""
    arena = ground.arena
    handle = arena.submit("hang_in_forward", start)
    wait_until((handle.folder / HANGING).exists, "the trial runs")
    (handle.folder / HANGING).unlink()
    for agent in agents():
        agent.kill()
    result = arena.finish(handle)
    _expect_the_platform(result, "the agent of the node ended")
    arena.check()


def _launcher_stopped(start: Start, ground: Ground) -> None:
    """Its ranks measure all the same, or wait for the store that it serves."""
    arena = ground.arena
    handle = arena.submit("nothing_in_first", start)
    os.kill(_launcher(handle).pid, signal.SIGSTOP)
    (handle.folder / HANGING).touch()
    result = arena.finish(handle)
    is_right = result.outcome is Outcome.OK or result.outcome.is_platform_fault
    must(is_right, f"{result.outcome}: {result.evidence}")
    arena.check()


def expect_ok(result: TrialResult) -> None:
    """See that a trial measured."""
    must(result.outcome is Outcome.OK, f"{result.outcome}: {result.evidence}")


def _expect_the_platform(result: TrialResult, evidence: str = "") -> None:
    must(result.outcome.is_platform_fault, f"{result.outcome}: {result.evidence}")
    must(bool(result.evidence) and evidence in result.evidence, f"evidence: {result.evidence}")


def _template_killed(ground: Ground) -> None:
    arena, _ = _with_template(ground)
    handle = arena.submit("hang_in_forward", Start.WARM)
    wait_until((handle.folder / HANGING).exists, "the trial runs")
    _launcher(handle).kill()  # a forked rank's parent is its template
    (handle.folder / HANGING).unlink()
    result = arena.finish(handle)
    _expect_the_platform(result)
    arena.check()


def _template_killed_before(ground: Ground) -> None:
    """What it was asked for and never began starts cold."""
    arena, live = _with_template(ground)
    for template in live:
        template.suspend()
    handle = arena.submit("nothing_in_first", Start.WARM)
    for template in live:
        template.kill()
    result = arena.finish(handle)
    expect_ok(result)
    must(result.start is Start.COLD, "it says that it started warm")
    arena.check()


def _template_stopped(ground: Ground) -> None:
    arena, live = _with_template(ground)
    for template in live:
        template.suspend()
    handle = arena.submit("nothing_in_first", Start.WARM)
    (handle.folder / HANGING).touch()
    expect(arena.finish(handle), Outcome.LAUNCH, "no rank had started", Start.WARM)
    for template in live:
        template.resume()
    arena.check()


def _port_taken(start: Start, ground: Ground) -> None:
    arena = ground.arena
    arena.check()
    stopped = templates() if start is Start.WARM else []
    for template in stopped:
        template.suspend()
    handle = arena.submit("nothing_in_first", start)
    with socket.create_server(("127.0.0.1", handle.port or 0)):
        for template in stopped:
            template.resume()
        result = arena.finish(handle)
    expect(result, Outcome.LAUNCH, "Address already in use", start)
    arena.check()


def _log_with_a_hole(start: Start, ground: Ground) -> None:
    _log_of("log_in_forward", start, ground.arena)


def _log(start: Start, ground: Ground) -> None:
    _log_of("reallog_in_forward", start, ground.arena)


def _log_of(factory: str, start: Start, arena: Arena) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    handle = arena.submit(factory, start)
    result = arena.finish(handle)
    expect_ok(result)
    log = handle.folder / STDERR_FILE
    kept_bytes = HEAD_BYTES + TAIL_BYTES
    must(result.log_bytes_left_out >= LOG_BYTES - kept_bytes, "the log was short")
    must(log.stat().st_size < kept_bytes + 1000, "the log is long")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    must(grown < _MAX_GROWTH_BYTES, f"the coordinator grew by {grown} bytes")
    log.unlink()
    arena.check()


def _report_cut_short(start: Start, ground: Ground) -> None:
    result = ground.arena.run("cut_in_forward", start)
    expect(result, Outcome.CRASH, "SIGKILL", start)
    ground.arena.check()


def _node_report_garbled(start: Start, ground: Ground) -> None:
    arena = ground.arena
    handle = arena.submit("sigkill_in_forward", start)
    seen = handle.folder / RANKS_DIR / NODE_FILE.format(node=0)
    wait_until(seen.exists, "it ends")
    seen.write_text('{"1": "nine", ')
    result = arena.finish(handle)
    _expect_the_platform(result)
    arena.check()


def _stale_lock(start: Start, ground: Ground) -> None:
    """Trials load what is built as it is, and the next search removes the lock."""
    named, built = os.environ.get(_EXTENSIONS_ENV), extensions_folder("cpu")
    # Extensions of its own: nobody else's search shall remove the lock, or find it.
    os.environ[_EXTENSIONS_ENV] = str(ground.folder())
    try:
        shutil.copytree(built, extensions_folder("cpu"), symlinks=True, ignore=_not_built)
        locks = [library.parent / "lock" for library in extensions_folder("cpu").glob("*/*.so")]
        must(locks, "no extension is built")
        for lock in locks:
            lock.touch()
        with contextlib.closing(Arena(ground.folder())) as arena:
            expect_ok(arena.run("nothing_in_first", start))
        said: list[str] = []
        build("cpu", said.append)
        must(not any(lock.exists() for lock in locks), "a stale lock is still there")
        must(len(said) == len(locks) and "stale lock" in said[0], f"said: {said}")
    finally:
        if named is None:
            del os.environ[_EXTENSIONS_ENV]
        else:
            os.environ[_EXTENSIONS_ENV] = named


def _not_built(folder: str, names: list[str]) -> list[str]:
    """Extensions that something else may be building just now."""
    there = [Path(folder, name) for name in names]
    return [path.name for path in there if path.is_dir() and not (path / BUILT_FILE).exists()]


def _disk_full(start: Start, ground: Ground) -> None:
    """The ranks cannot report, the coordinator cannot write: it says so, and resumes later."""
    with small_disk(ground.folder()) as disk:
        arena = Arena(disk)
        try:
            expect_ok(arena.run("nothing_in_first", start))
            handle = arena.submit("fill_in_forward", start)
            result = _refused(lambda: arena.finish(handle))
            must(not (handle.folder / RESULT_FILE).exists(), "a part of a result is there")
            (handle.folder / "filler").unlink()
            arena.study.write_result(handle.folder, result or handle.poll())
            must(read_json(handle.folder / RESULT_FILE), "no result after there is space again")
            arena.check()
        finally:
            arena.close()


def _refused(write: Callable[[], object]) -> None:
    try:
        write()
    except StudyError as error:
        must("No space left" in error.message, error.message)
    else:
        must(False, "a full disk was not noticed")


def templates() -> list[psutil.Process]:
    """Warm templates of this process, the newest last: one that was given up may still end."""
    children = [child for agent in agents() for child in agent.children()]
    found = [c for c in children if "autotune.trial.warm" in command_of(c)]
    return sorted(found, key=psutil.Process.create_time)


def _with_template(ground: Ground) -> tuple[Arena, list[psutil.Process]]:
    """An arena, and the templates of which its next warm trial starts from one.

    A fleet of which a template could not start (under another fault, on a busy machine) starts
    everything cold from then on.
    """
    ground.arena.check()
    if not templates():
        ground.close()
        ground.arena.check()
    return ground.arena, templates()


def _launcher(handle: GangTrial) -> psutil.Process:
    """The parent of a trial's ranks, once these are there and have reported."""
    reports = handle.folder / RANKS_DIR
    wait_until(lambda: len(list(reports.glob("0[01].json"))) == 2, "both ranks are up")
    rank = psutil.Process(read_json(reports / "00.json")["pid"])
    parent = rank.parent()
    must(parent is not None, "the rank has no parent")
    assert parent is not None
    return parent


_TOO_LONG = (_log, _launcher_stopped, _node_report_garbled, _agent_killed)
"""What takes long, or is asked of agents on other nodes (`test_ssh_faults.py`)."""
