"""What a command does around its ranks, with real processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.contract import RANKS_DIR, Phase, RankReport, to_dict, write_json
from autotune.trial.guest import launcher
from autotune.trial.guest.begin import GUEST_ENV, OWNER_FILE, owner_text


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trial's, whose command does not linger for long."""
    (tmp_path / RANKS_DIR).mkdir()
    monkeypatch.setattr(launcher, "LOOK_S", 0.02)
    monkeypatch.setattr(launcher, "LINGER_S", 0.2)
    return tmp_path


def own(folder: Path, pid: int, rank: int = 0) -> None:
    (folder / RANKS_DIR / OWNER_FILE.format(rank=rank)).write_text(owner_text(pid))


def test_a_command_that_ends_says_how(folder: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    assert launcher.wait(process, folder, 1) == 7


def test_a_command_is_waited_for_as_long_as_its_ranks_run(folder: Path) -> None:
    process = subprocess.Popen(["sleep", "1"])
    own(folder, process.pid)
    assert launcher.wait(process, folder, 1) == 0


def test_what_a_command_does_after_its_ranks_is_not_waited_for(folder: Path) -> None:
    rank = subprocess.Popen(["true"])
    rank.wait()
    own(folder, rank.pid)
    process = subprocess.Popen(["sleep", "60"])
    began_s = time.monotonic()
    try:
        assert launcher.wait(process, folder, 1) == 1
        assert time.monotonic() - began_s < 30
        assert process.poll() is None, "who has waited ends it with all that it has started"
    finally:
        process.kill()
        process.wait()


def test_a_rank_whose_parent_has_not_asked_for_its_code_has_ended(folder: Path) -> None:
    rank = subprocess.Popen(["true"])
    own(folder, rank.pid)
    process = subprocess.Popen(["sleep", "60"])
    try:
        assert launcher.wait(process, folder, 1) == 1
    finally:
        process.kill()
        process.wait()
        rank.wait()


@pytest.mark.parametrize(("n_told", "code"), [(2, 0), (1, 1)])
def test_a_command_is_not_waited_for_once_all_its_ranks_have_told_all(
    folder: Path, n_told: int, code: int
) -> None:
    for rank in range(2):
        program = subprocess.Popen(["true"])
        program.wait()
        own(folder, program.pid, rank)
        phase = Phase.TEARDOWN if rank < n_told else Phase.MEASURED
        report = RankReport(rank=rank, pid=program.pid, phase=phase)
        write_json(folder / RANKS_DIR / f"{rank:02d}.json", to_dict(report))
    process = subprocess.Popen(["sleep", "60"])
    try:
        assert launcher.wait(process, folder, 2) == code
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (["true"], "not reached through PYTHONPATH"),
        ([sys.executable, "-c", "pass"], "it never called deepspeed.initialize"),
    ],
    ids=["no Python", "nothing trained"],
)
def test_a_command_that_starts_no_rank_says_why(
    folder: Path, capfd: pytest.CaptureFixture[str], program: list[str], says: str
) -> None:
    given = launcher.guest_environment(os.environ, folder, "0") | {GUEST_ENV: str(folder)}
    process = subprocess.Popen(program, env=given)
    assert launcher.wait(process, folder, 1) == 1
    assert says in capfd.readouterr().err


def test_a_rank_that_is_not_reached_is_not_waited_for(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
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
