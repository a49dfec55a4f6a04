"""How a trial's ranks end on a node, step by step, by a clock of the test; none is started."""

import json
import os
from pathlib import Path

import psutil
import pytest

from autotune.base.errors import FleetError
from autotune.contract import (
    NODE_FILE,
    RANKS_DIR,
    SCRATCH_ENV,
    SPEC_FILE,
    NodeReport,
    RankReport,
    read_json,
    to_dict,
    write_json,
)
from autotune.fleet.node import ranks
from autotune.fleet.node.ports import segments_at
from autotune.fleet.node.processes import NodePart
from autotune.fleet.node.warm import WarmTemplates
from autotune.trial.guest import quiet
from tests.trials import spec


class Process:
    """A torchrun: its exit code is set by the test."""

    code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def fileno(self) -> int:
        return -1


class Machine:
    """One trial on a machine that is made up: nothing ever waits there."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.process = Process()
        self.left: list[psutil.Process] = []
        """Processes that a kill has not ended yet."""
        self.lacking: list[int | FleetError] = []
        self.asked: list[int] = []
        self.n_kills = 0
        monkeypatch.setattr(ranks.LocalRanks, "_start", lambda *_: self.process)
        monkeypatch.setattr(ranks, "kill_once", self._kill)
        monkeypatch.setattr(ranks, "lacking_bytes", self._lacks)
        monkeypatch.setattr(ranks, "ask_for_stacks", self.asked.extend)
        monkeypatch.setattr("time.sleep", lambda _: pytest.fail("it slept"))
        monkeypatch.setattr("psutil.wait_procs", lambda *_, **__: pytest.fail("it waited"))
        monkeypatch.setenv(SCRATCH_ENV, str(folder))
        (folder / RANKS_DIR).mkdir()
        write_json(folder / SPEC_FILE, to_dict(spec()))
        report = RankReport(rank=0, pid=os.getpid())
        write_json(folder / RANKS_DIR / "00.json", to_dict(report))
        part = NodePart(folder=str(folder), devices=["0", "1"])
        self.ranks = ranks.LocalRanks(part, WarmTemplates(), clock=lambda: self.now_s)

    def _kill(self, _: Path) -> list[psutil.Process]:
        self.n_kills += 1
        left, self.left = self.left, self.left[1:]
        return left

    def _lacks(self, _: object) -> int:
        answer = self.lacking.pop(0) if self.lacking else 0
        if isinstance(answer, FleetError):
            raise answer
        return answer

    def report(self) -> NodeReport:
        path = self.ranks.folder / RANKS_DIR / NODE_FILE.format(node=0)
        return NodeReport.from_dict(read_json(path))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_hung_trial_ends_in_steps_and_none_of_them_waits(machine: Machine) -> None:
    machine.left, machine.lacking = [psutil.Process()] * 2, [2**30, 2**30, 0]
    assert not machine.ranks.advance()
    machine.ranks.end(hangs=True)
    assert machine.asked == [os.getpid()]
    for _ in range(3):
        assert not machine.ranks.advance()
    assert machine.n_kills == 0, "it gets a second for its stacks"
    machine.now_s = ranks.STACKS_WAIT_S
    assert not machine.ranks.advance()
    assert not machine.ranks.advance()
    assert (machine.n_kills, machine.left) == (2, [])
    machine.process.code = -9
    for _ in range(2):
        assert not machine.ranks.advance(), "its memory is not free yet"
    assert machine.ranks.advance()
    seen = machine.report()
    assert (seen.was_ended, seen.launcher_code, seen.undrained_bytes) == (True, -9, 0)


def test_ranks_that_nobody_waits_for_leave_no_memory(machine: Machine, monkeypatch) -> None:
    monkeypatch.setattr(ranks, "kill_all", machine._kill)
    name = segments_at(machine.ranks.port)[0].replace("*", "0")
    segment = Path("/dev/shm", name)
    segment.touch()
    try:
        machine.ranks.abandon()
        assert machine.n_kills == 1
        assert not segment.exists()
        assert not machine.ranks._temporary.exists()
    finally:
        segment.unlink(missing_ok=True)


def test_a_process_that_does_not_die_is_left_to_itself(machine: Machine) -> None:
    machine.left = [psutil.Process()] * 9
    machine.ranks.end(hangs=False)
    assert not machine.ranks.advance()
    machine.now_s = ranks.END_WAIT_S
    assert machine.ranks.advance()
    assert machine.report().launcher_code is None


def test_memory_that_somebody_else_took_is_not_waited_for_for_ever(machine: Machine) -> None:
    machine.process.code, machine.lacking = 0, [9 * 2**30] * 9
    assert not machine.ranks.advance()
    machine.now_s = ranks.DRAIN_WAIT_S
    assert machine.ranks.advance()
    assert machine.report().undrained_bytes == 9 * 2**30


def test_one_that_ended_by_itself_was_not_ended(machine: Machine) -> None:
    machine.process.code = 0
    machine.ranks.end(hangs=True)
    assert machine.asked == []
    assert machine.ranks.advance()
    assert not machine.report().was_ended


def test_a_driver_that_stops_answering_is_said_and_the_port_is_free_again(machine):
    machine.process.code = 1
    machine.lacking = [FleetError("the NVIDIA driver does not answer for a GPU: lost", "")]
    assert machine.ranks.advance()
    assert "does not answer for a GPU: lost" in machine.report().driver_error
    assert machine.ranks._lease is None


@pytest.mark.cases("text", "codes")
def test_exit_codes_that_are_none_are_left_out(machine, text, codes):
    (machine.ranks.folder / RANKS_DIR / "exit_00.json").write_text(text)
    machine.process.code = 1
    assert machine.ranks.advance()
    assert machine.report().exit_codes == codes


def test_a_disk_that_is_full_keeps_no_port(machine, monkeypatch):
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(ranks, "write_json", full)
    machine.process.code = 0
    with pytest.raises(OSError, match="No space"):
        machine.ranks.advance()
    assert machine.ranks._lease is None
    assert machine.ranks.advance(), "there is nothing left to do"


def test_a_long_log_keeps_its_start_and_its_end_and_says_what_is_missing(machine: Machine) -> None:
    lines = [b"step %07d of a run that prints too much\n" % i for i in range(150_000)]
    log = machine.ranks.folder / "stdout.log"
    log.write_bytes(b"".join(lines))
    machine.process.code = 0
    while not machine.ranks.advance():
        pass
    left = log.read_bytes().splitlines(keepends=True)
    cut = next(i for i, line in enumerate(left) if line not in lines[i : i + 1])
    n_after = len(left) - cut - 1
    assert left[:cut] + left[cut + 1 :] == lines[:cut] + lines[-n_after:]
    left_out = sum(map(len, lines[cut:-n_after]))
    assert machine.report().log_bytes_left_out == left_out
    assert left[cut].startswith(b"[autotune: 2.15 MiB")
    assert b"MiB are left out here" in left[cut]
    assert len(b"".join(left)) < ranks.HEAD_BYTES + ranks.TAIL_BYTES + 200


def test_a_log_of_one_line_is_shortened_too(tmp_path: Path) -> None:
    log, bar = tmp_path / "stderr.log", b"\r99%" * 2**21
    log.write_bytes(bar)
    assert ranks.shorten_log(log) == len(bar) - ranks.HEAD_BYTES - ranks.TAIL_BYTES
    assert ranks.shorten_log(tmp_path / "none.log") == 0
    short = tmp_path / "short.log"
    short.write_bytes(bar[: 4 * 2**20])
    assert ranks.shorten_log(short) == 0
    assert short.read_bytes() == bar[: 4 * 2**20]


def test_where_there_are_no_gpus_the_driver_is_not_asked(monkeypatch):
    monkeypatch.setattr(ranks, "visible_gpus", lambda: pytest.fail("it was asked"))
    assert ranks.lacking_bytes({}) == 0


def test_temporary_files_of_a_trial_end_with_it(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # torch itself sets it
    machine = Machine(tmp_path, monkeypatch)
    environment = machine.ranks._environment
    temporary = Path(environment["TMPDIR"])
    assert temporary.is_dir()
    assert temporary.stat().st_mode & 0o077 == 0
    assert environment["TORCHINDUCTOR_CACHE_DIR"] == str(temporary.parent / "inductor")
    (temporary / "pymp-1").mkdir()
    (temporary / "pymp-1" / "listener").touch()
    # What a rank of a script has saved, and another one when it was killed.
    saved, part = tmp_path / "best.pt", tmp_path / RANKS_DIR / quiet.JOURNAL_FILE.format(rank=1)
    saved.touch()
    part.write_text(json.dumps([str(saved), quiet._identity(saved)]) + '\n["/half', "utf-8")
    machine.process.code = 0
    assert machine.ranks.advance()
    assert not [path for path in (temporary, saved, part) if path.exists()]


def test_a_folder_of_a_compiler_that_the_user_names_is_kept(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    assert Machine(tmp_path, monkeypatch).ranks._environment["TRITON_CACHE_DIR"] == "/mine"
