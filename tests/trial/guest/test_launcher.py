"""What a command does around its ranks, with real processes."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.contract import (
    RANKS_DIR,
    STDERR_FILE,
    Phase,
    RankReport,
    read_json,
    to_dict,
    write_json,
)
from autotune.trial.guest import launcher
from autotune.trial.guest.begin import GUEST_ENV, OWNER_FILE, owner_text
from autotune.trial.launcher import EXIT_FILE
from tests.cases import data_beside
from tests.trials import wait_until

DATA = data_beside(__file__)

ENDED_PID = 2**22 + 1
"""Number that no process has: above the kernel's largest."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trial's, whose command does not linger for long."""
    (tmp_path / RANKS_DIR).mkdir()
    monkeypatch.setattr(launcher, "LOOK_S", 0.02)
    monkeypatch.setattr(launcher, "LINGER_S", 0.2)
    return tmp_path


@contextlib.contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs until the test has ended."""
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def write_owner(folder: Path, pid: int, rank: int = 0) -> None:
    (folder / RANKS_DIR / OWNER_FILE.format(rank=rank)).write_text(owner_text(pid))


def test_a_command_that_ends_says_how(folder: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    assert launcher.wait(process, folder, 1) == 7


def test_a_command_is_waited_for_as_long_as_its_ranks_run(folder: Path) -> None:
    process = subprocess.Popen(["sleep", "1"])
    write_owner(folder, process.pid)
    assert launcher.wait(process, folder, 1) == 0


def test_what_a_command_does_after_its_ranks_is_not_waited_for(folder: Path) -> None:
    rank = subprocess.Popen(["true"])
    rank.wait()
    write_owner(folder, rank.pid)
    began_s = time.monotonic()
    with running("sleep", "60") as process:
        assert launcher.wait(process, folder, 1) == 1
        assert time.monotonic() - began_s < 30
        assert process.poll() is None, "who has waited ends it with all that it has started"


def test_a_rank_whose_parent_has_not_asked_for_its_code_has_ended(folder: Path) -> None:
    rank = subprocess.Popen(["true"])
    write_owner(folder, rank.pid)
    with running("sleep", "60") as process:
        assert launcher.wait(process, folder, 1) == 1
    rank.wait()


@pytest.mark.parametrize(("n_reported", "code"), [(2, 0), (1, 1)])
def test_a_command_is_not_waited_for_once_all_its_ranks_have_told_all(folder, n_reported, code):
    for rank in range(2):
        program = subprocess.Popen(["true"])
        program.wait()
        write_owner(folder, program.pid, rank)
        phase = Phase.TEARDOWN if rank < n_reported else Phase.MEASURED
        report = RankReport(rank=rank, pid=program.pid, phase=phase)
        write_json(folder / RANKS_DIR / f"{rank:02d}.json", to_dict(report))
    with running("sleep", "60") as process:
        assert launcher.wait(process, folder, 2) == code


ROOT_CAUSE = DATA["ROOT_CAUSE"]
DIED_WITH = (
    "subprocess.CalledProcessError: Command '['python', 'a.py']' died with <Signals.SIGBUS: 7>."
)


@pytest.mark.parametrize(
    ("log", "program", "n_ranks", "codes"),
    [
        (ROOT_CAUSE.format(code=-7), "exit 1", 4, {"3": -7}),
        (ROOT_CAUSE.format(code=1), "exit 1", 4, None),
        (DIED_WITH, "exit 1", 1, {"0": -7}),
        (DIED_WITH, "exit 1", 2, None),
        ("", "kill -BUS $$", 1, {"0": -7}),
        ("", "exit 135", 1, {"0": -7}),
        ("", "exit 135", 2, None),
        ("", "exit 255", 1, None),
    ],
    ids=["torchrun", "of itself", "accelerate", "which", "killed", "shell", "which", "no signal"],
)
def test_the_rank_that_a_signal_ended_is_read_from_its_launcher(
    folder: Path, log: str, program: str, n_ranks: int, codes: dict[str, int] | None
) -> None:
    """None of these ranks was seen before it had ended."""
    (folder / STDERR_FILE).write_text(log)
    for rank in range(n_ranks):
        write_owner(folder, ENDED_PID, rank)
    launcher.wait(subprocess.Popen(["sh", "-c", program]), folder, n_ranks)
    exit_file = folder / RANKS_DIR / EXIT_FILE.format(node=0)
    assert (read_json(exit_file) if exit_file.exists() else None) == codes


def test_the_kernel_says_which_rank_a_signal_ended_whatever_started_it(folder: Path) -> None:
    """A launcher that says nothing and asks late; it ends the other rank by the same signal."""
    script = (
        "import subprocess, time\n"
        "ranks = [subprocess.Popen(['sleep', '60']) for _ in range(2)]\n"
        "print(*(rank.pid for rank in ranks), flush=True)\n"
        "input()\n"
        "ranks[0].kill()\n"
        "raise SystemExit(1)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    pids = list(map(int, process.stdout.readline().split()))
    for rank, pid in enumerate(pids):
        write_owner(folder, pid, rank)
    pipe = process.stdin

    def end_one_then_the_other() -> None:
        os.kill(pids[1], signal.SIGSEGV)
        wait_until((folder / "seen").exists, "its end is seen")
        pipe.write("\n")
        pipe.close()

    ends_within = launcher._RanksWatch.command_ends_within

    def command_ends_within(watch: launcher._RanksWatch, most_s: float) -> bool:
        ends = ends_within(watch, most_s)
        if watch.n_ranks == 2 and not killer.is_alive() and not watch.ended:
            killer.start()
        if watch.ended:
            (folder / "seen").touch()
        return ends

    killer = threading.Thread(target=end_one_then_the_other)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher._RanksWatch, "command_ends_within", command_ends_within)
        patch.setattr(launcher, "LINGER_S", 60.0)
        assert launcher.wait(process, folder, 2) == 1
    killer.join()
    assert read_json(folder / RANKS_DIR / EXIT_FILE.format(node=0)) == {"1": -signal.SIGSEGV}


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (["true"], "not reached through PYTHONPATH"),
        ([sys.executable, "-c", "pass"], "it never called deepspeed.initialize"),
    ],
    ids=["no Python", "nothing trained"],
)
def test_a_command_that_starts_no_rank_says_why(folder, capfd, program, says):
    given = launcher.guest_environment(os.environ, folder, "0") | {GUEST_ENV: str(folder)}
    process = subprocess.Popen(program, env=given)
    assert launcher.wait(process, folder, 1) == 1
    assert says in capfd.readouterr().err


def test_a_rank_that_is_not_reached_is_not_waited_for(folder, capfd):
    """It has a number, imports torch, and has never said that it is a rank."""
    script = "import torch, time; time.sleep(100)"
    given = {**os.environ, "RANK": "3", "LOCAL_RANK": "1"}
    process = subprocess.Popen([sys.executable, "-I", "-c", script], env=given)
    try:
        assert launcher.wait(process, folder, 1) == 1
        assert process.poll() is None, "who has waited ends it with all that it has started"
    finally:
        process.kill()
        process.wait()
    assert "rank 3 was not reached" in capfd.readouterr().err
