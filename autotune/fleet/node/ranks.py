"""The ranks of one trial on this node: started, watched, ended, and told of in a report."""

import contextlib
import dataclasses
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path
from typing import IO, Protocol

import psutil

from autotune.base.errors import FleetError, StudyError
from autotune.contract import (
    NODE_FILE,
    RANKS_DIR,
    SPEC_FILE,
    STDERR_FILE,
    STDOUT_FILE,
    ContractError,
    NodeReport,
    RankReport,
    Start,
    TrialSpec,
    read_json,
    to_dict,
    write_json,
)
from autotune.devices import cgroup
from autotune.fleet.node.drain import lacking_bytes, used_bytes
from autotune.fleet.node.environment import allowed_environment, rank_environment
from autotune.fleet.node.part import NodePart
from autotune.fleet.node.ports import PortLease, lease_port
from autotune.fleet.node.processes import ask_for_stacks, is_stopped, kill_once, ranks_command
from autotune.fleet.node.telemetry import Telemetry
from autotune.fleet.node.warm import WarmProcess, WarmTemplates
from autotune.fleet.reports import measured_span_s, read_reports
from autotune.trial.launcher import EXIT_FILE

STACKS_WAIT_S = 1.0
"""Time for ranks to write their stacks before a hung trial is killed."""
KILL_WAIT_S = 10.0
"""Time after which a process that is still there is left to itself: it is in uninterruptible
sleep, and the kernel delivers the signal when it wakes."""
DRAIN_WAIT_S = 15.0
"""Time after which device memory that is not free counts as taken by somebody else."""
LAST_WORDS_S = 1.0
"""Time for a template that did not come to a trial to end and to say why."""
LOOK_S = 0.05
"""Time between two looks at things whose change does not wake this process."""


class RanksLauncher(Protocol):
    """What starts the ranks of a trial here and waits for them."""

    def poll(self) -> int | None:
        """Its exit code once it has ended."""

    def fileno(self) -> int:
        """File descriptor, readable once it has ended."""


class _EndStage(Enum):
    RUNNING = auto()
    ASKED_FOR_STACKS = auto()
    KILLED = auto()
    DRAINING = auto()
    ENDED = auto()


class LocalRanks:
    """One launcher with its ranks. `advance` takes each step of their end, and never waits."""

    def __init__(
        self,
        part: NodePart,
        templates: WarmTemplates,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the ranks.

        Args:
            part: What is asked of this node.
            templates: For a warm start.
            clock: Seconds since any moment.

        Raises:
            FleetError: No port is free, or the driver does not answer.
            StudyError: The logs cannot be written.
        """
        self.folder = Path(part.folder)
        self._part = part
        self._clock = clock
        self._spec = TrialSpec.from_dict(read_json(self.folder / SPEC_FILE))
        self._stage = _EndStage.RUNNING
        self._until_s = 0.0
        self._report = NodeReport()
        self._oom_kills_before = oom_kills()
        is_gpu = self._spec.layout.accelerator == "cuda"
        self._device_used_before = used_bytes(part.devices) if is_gpu else {}
        self._telemetry = Telemetry(part.devices) if is_gpu else None
        self._environment = rank_environment(part, self._spec)
        self._lease: PortLease | None = None
        if part.port is None:
            self._lease = lease_port(part.address)
        self.port = self._lease.port if self._lease is not None else part.port or 0
        try:
            self._launcher = self._start(templates)
        except OSError as error:
            self._release_port()
            raise _not_started(self.folder, error) from error
        if self._telemetry is not None:
            self._telemetry.start()

    def fileno(self) -> int:
        """File descriptor, readable once the launcher has ended or said something; -1: none."""
        return self._launcher.fileno() if self._stage is _EndStage.RUNNING else -1

    def look_again_in_s(self) -> float | None:
        """Seconds until `advance` is due though nothing was heard; None: it is not due then."""
        return None if self._stage is _EndStage.RUNNING and not self._until_s else LOOK_S

    def end(self, *, hangs: bool) -> None:
        """Begin to end the ranks, if they still run.

        Args:
            hangs: Whether their time is up; then they are asked for their stacks first.
        """
        runs = self._launcher.poll() is None or self._was_never_started()
        if self._stage is not _EndStage.RUNNING or not runs:
            return
        self._report = dataclasses.replace(self._report, was_ended=True)
        if hangs:
            reports = self._reports()
            stopped = [r.rank for r in reports if is_stopped(r.pid)]
            self._report = dataclasses.replace(self._report, stopped_ranks=stopped)
            ask_for_stacks([r.pid for r in reports if psutil.pid_exists(r.pid)])
            self._enter(_EndStage.ASKED_FOR_STACKS, STACKS_WAIT_S)
        else:
            self._kill(hangs=False)

    def advance(self) -> bool:
        """Take the next step if it is due; return whether it was the last one.

        Raises:
            OSError: The report cannot be written; all else is done.
            StudyError: The logs cannot be written for a start that had to be made again.
        """
        if self._stage is _EndStage.RUNNING and self._launcher.poll() is not None:
            if self._was_never_started():
                self._restart_cold()
                return False
            self._enter(_EndStage.KILLED, KILL_WAIT_S)
        if self._stage is _EndStage.ASKED_FOR_STACKS and self._is_time():
            self._kill(hangs=True)
        if self._stage is _EndStage.KILLED and (self._is_gone() or self._is_time()):
            self._enter(_EndStage.DRAINING, DRAIN_WAIT_S)
        if self._stage is _EndStage.DRAINING and self._is_drained():
            self._stage = _EndStage.ENDED
            self._release_port()
            self._write_report()
        return self._stage is _EndStage.ENDED

    def _enter(self, stage: _EndStage, wait_s: float) -> None:
        self._stage, self._until_s = stage, self._clock() + wait_s

    def _is_time(self) -> bool:
        return self._clock() >= self._until_s

    def _kill(self, *, hangs: bool) -> None:
        if isinstance(self._launcher, WarmProcess):
            self._launcher.give_up(hangs=hangs)
        self._enter(_EndStage.KILLED, KILL_WAIT_S)

    def _is_gone(self) -> bool:
        return not kill_once(self.folder) and self._launcher.poll() is not None

    def _is_drained(self) -> bool:
        try:
            lacking = lacking_bytes(self._device_used_before)
        except FleetError as error:
            self._report = dataclasses.replace(self._report, driver_error=error.message)
            return True
        if lacking and not self._is_time():
            return False
        self._report = dataclasses.replace(self._report, undrained_bytes=lacking)
        return True

    def _write_report(self) -> None:
        is_warm = isinstance(self._launcher, WarmProcess)
        gpu = None
        if self._telemetry is not None:
            self._telemetry.stop()
            span = measured_span_s(self._reports(), self._part.submitted_at_s)
            gpu = None if span is None else self._telemetry.between(*span)
        report = dataclasses.replace(
            self._report,
            start=Start.WARM if is_warm else Start.COLD,
            exit_codes=_exit_codes(self.folder, self._part.node),
            launcher_code=self._launcher.poll(),
            oom_killed=oom_kills() > self._oom_kills_before,
            gpu=gpu,
            environment=allowed_environment(self._environment),
        )
        path = self.folder / RANKS_DIR / NODE_FILE.format(node=self._part.node)
        write_json(path, to_dict(report))

    def _reports(self) -> list[RankReport]:
        """The reports of this node's ranks; the processes of others are not here."""
        n_ranks = len(self._part.devices)
        return read_reports(self.folder, n_ranks, first=self._part.node * n_ranks)

    def _start(self, templates: WarmTemplates) -> RanksLauncher:
        (self.folder / RANKS_DIR).mkdir(exist_ok=True)
        spec = self._spec
        if (
            spec.measure.start is Start.WARM
            and spec.layout.accelerator == "cpu"
            and self._part.n_nodes == 1
        ):
            with self._logs("wb") as (stdout, stderr):
                warm = templates.launch(
                    spec,
                    self.folder,
                    port=self.port,
                    environment=self._environment,
                    stdout=stdout,
                    stderr=stderr,
                )
            if warm is not None:
                return warm
        return self._start_cold()

    def _start_cold(self) -> RanksLauncher:
        command = ranks_command(
            self.folder,
            n_ranks=len(self._part.devices),
            port=self.port,
            module="autotune.trial.wrapper",
            arguments=[str(self.folder)],
            node=self._part.node,
            n_nodes=self._part.n_nodes,
            address=self._part.address,
        )
        with self._logs("ab") as (stdout, stderr):
            return _ColdLauncher(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    env=self._environment,
                    start_new_session=True,
                )
            )

    def _was_never_started(self) -> bool:
        """Whether the template is gone, or going, and has not come to this trial."""
        if self._report.was_ended or not isinstance(self._launcher, WarmProcess):
            return False
        return not self._launcher.was_started

    def _restart_cold(self) -> None:
        """Start without the template once that is gone; it says why in the trial's log."""
        assert isinstance(self._launcher, WarmProcess)
        if not self._until_s:
            self._until_s = self._clock() + LAST_WORDS_S
        if self._launcher.has_template and not self._is_time():
            return
        self._until_s = 0.0
        try:
            self._launcher = self._start_cold()
        except OSError as error:
            self._stage = _EndStage.ENDED
            self._release_port()
            raise _not_started(self.folder, error) from error

    @contextmanager
    def _logs(self, mode: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
        prefix = f"node_{self._part.node:02d}." if self._part.node else ""
        with (
            (self.folder / f"{prefix}{STDOUT_FILE}").open(mode) as stdout,
            (self.folder / f"{prefix}{STDERR_FILE}").open(mode) as stderr,
        ):
            yield stdout, stderr

    def _release_port(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None


class _ColdLauncher:
    """A torchrun; implements `RanksLauncher`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        try:
            self._ended = os.pidfd_open(process.pid)
        except OSError:
            process.kill()  # its ranks end with it
            process.wait()
            raise

    def poll(self) -> int | None:
        code = self._process.poll()
        if code is not None and self._ended >= 0:
            os.close(self._ended)
            self._ended = -1
        return code

    def fileno(self) -> int:
        return self._ended


def oom_kills() -> int:
    """How often the kernel has killed for memory, in this process's cgroup or on the machine."""
    counted = cgroup.oom_kills()
    return _host_oom_kills() if counted is None else counted


def _host_oom_kills() -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _not_started(folder: Path, error: OSError) -> StudyError:
    return StudyError(
        f"{folder}: the trial could not be started: {error}",
        "free some space or mend the permissions, then run the same command again",
    )


def _exit_codes(folder: Path, node: int) -> dict[str, int]:
    """The exit codes of ranks that the launcher wrote; anything else in the file is left out."""
    try:
        codes = read_json(folder / RANKS_DIR / EXIT_FILE.format(node=node))
    except ContractError:
        return {}
    return {rank: code for rank, code in codes.items() if rank.isdecimal() and type(code) is int}
