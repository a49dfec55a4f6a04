"""The ranks of one trial on this node: started, watched, ended, and told of in a report."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import IO, Any

import psutil

from autotune.base.errors import FleetError, StudyError
from autotune.base.keeper import END_WAIT_S
from autotune.base.units import format_bytes
from autotune.contract import (
    NODE_FILE,
    PRIVATE_MODE,
    RANKS_DIR,
    SCRATCH_ENV,
    SPEC_FILE,
    STDERR_FILE,
    STDOUT_FILE,
    NodeReport,
    RankReport,
    Start,
    TrialSpec,
    read_json,
    to_dict,
    write_json,
)
from autotune.devices import cgroup
from autotune.devices.hardware import visible_gpus
from autotune.fleet.node.environment import allowed_environment, rank_environment
from autotune.fleet.node.ports import PortLease, lease_port
from autotune.fleet.node.processes import (
    NodePart,
    ask_for_stacks,
    guest_command,
    is_stopped,
    kill_all,
    kill_once,
    ranks_command,
)
from autotune.fleet.node.telemetry import Telemetry
from autotune.fleet.node.warm import WarmProcess, WarmTemplates
from autotune.fleet.reports import exit_codes, measured_span_s, read_reports
from autotune.trial.guest.quiet import remove_traces

STACKS_WAIT_S = 1.0
"""Time for ranks to write their stacks before a hung trial is killed."""
DRAIN_WAIT_S = 15.0
"""Time after which device memory that is not free counts as taken by somebody else."""
LAST_WORDS_S = 1.0
"""Time for a template that did not come to a trial to end and to say why."""
HEAD_BYTES, TAIL_BYTES = 2**20, 3 * 2**20
"""Start and end of a trial's log that are kept: a hundred trials with two logs take 800 MiB."""
LOOK_S = 0.05
"""Time between two looks at things whose change does not wake this process."""
TOLERANCE_BYTES = 64 * 2**20
"""Device memory that may be in use after a trial and not before it."""


class NoTemplateError(FleetError):
    """A node cannot start its ranks warm, as the other nodes of a trial have."""


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
        self._seen: dict[str, Any] = {}
        """Fields of the report that are known before the end."""
        self._oom_kills_before = _oom_kills()
        is_gpu = self._spec.layout.accelerator == "cuda"
        self._device_used_before = used_bytes(part.devices) if is_gpu else {}
        self._telemetry = Telemetry(part.devices) if is_gpu else None
        # Not in the trial's folder: its name may be longer than a socket's path can be.
        self._temporary = Path(tempfile.mkdtemp(dir=os.environ.get(SCRATCH_ENV), prefix="t"))
        self._environment = rank_environment(part, self._spec, self._temporary)
        self._lease: PortLease | None = None
        if part.port is None:
            self._lease = lease_port(part.address)
        self.port = self._lease.port if self._lease is not None else part.port or 0
        self._launch(partial(self._start, templates))
        if self._telemetry is not None:
            self._telemetry.start()

    @property
    def start(self) -> Start:
        return Start.WARM if isinstance(self._launcher, WarmProcess) else Start.COLD

    def fileno(self) -> int:
        """File descriptor, readable once a warm launcher has ended or said something; -1: none."""
        if self._stage is not _EndStage.RUNNING or not isinstance(self._launcher, WarmProcess):
            return -1
        return self._launcher.fileno()

    def look_again_in_s(self) -> float | None:
        """Seconds until `advance` is due though nothing was heard; None: it is not due then."""
        return LOOK_S if self.fileno() < 0 or self._until_s else None

    def end(self, *, hangs: bool) -> None:
        """Begin to end the ranks, if they run; if their time is up, ask for their stacks first."""
        runs = self._launcher.poll() is None or self._was_never_started()
        if self._stage is not _EndStage.RUNNING or not runs:
            return
        self._seen["was_ended"] = True
        if not hangs:
            self._kill(hangs=False)
            return
        reports = self._reports()
        self._seen["stopped_ranks"] = [r.rank for r in reports if is_stopped(r.pid)]
        ask_for_stacks([r.pid for r in reports if psutil.pid_exists(r.pid)])
        self._enter(_EndStage.ASKED_FOR_STACKS, STACKS_WAIT_S)

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
            self._enter(_EndStage.KILLED, END_WAIT_S)
        if self._stage is _EndStage.ASKED_FOR_STACKS and self._is_time():
            self._kill(hangs=True)
        if self._stage is _EndStage.KILLED:
            is_gone = not kill_once(self.folder) and self._launcher.poll() is not None
            if is_gone or self._is_time():
                self._enter(_EndStage.DRAINING, DRAIN_WAIT_S)
        if self._stage is _EndStage.DRAINING and self._is_drained():
            self._finish()
            self._write_report()
        return self._stage is _EndStage.ENDED

    def abandon(self) -> None:
        """End the ranks at once, and remove what they left; nobody waits for a report."""
        if self._stage is _EndStage.ENDED:
            return
        self._kill(hangs=False)
        kill_all(self.folder)
        self._finish()

    def _enter(self, stage: _EndStage, wait_s: float) -> None:
        self._stage, self._until_s = stage, self._clock() + wait_s

    def _is_time(self) -> bool:
        return self._clock() >= self._until_s

    def _kill(self, *, hangs: bool) -> None:
        if isinstance(self._launcher, WarmProcess):
            self._launcher.give_up(hangs=hangs)
        self._enter(_EndStage.KILLED, END_WAIT_S)

    def _is_drained(self) -> bool:
        try:
            lacking = lacking_bytes(self._device_used_before)
        except FleetError as error:
            self._seen["driver_error"] = error.message
            return True
        if lacking and not self._is_time():
            return False
        self._seen["undrained_bytes"] = lacking
        return True

    def _finish(self) -> None:
        self._stage = _EndStage.ENDED
        self._seen["log_bytes_left_out"] = sum(map(shorten_log, self._log_paths()))
        shutil.rmtree(self._temporary, ignore_errors=True)
        with contextlib.suppress(OSError):
            remove_traces(self.folder)
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def _write_report(self) -> None:
        gpu = None
        if self._telemetry is not None:
            self._telemetry.stop()
            span = measured_span_s(self._reports(), self._part.began_at_s)
            gpu = None if span is None else self._telemetry.between(*span)
        report = NodeReport(
            **self._seen,
            start=self.start,
            exit_codes=exit_codes(self.folder, self._part.node),
            launcher_code=self._launcher.poll(),
            oom_killed=_oom_kills() > self._oom_kills_before,
            gpu=gpu,
            environment=allowed_environment(self._environment),
        )
        path = self.folder / RANKS_DIR / NODE_FILE.format(node=self._part.node)
        write_json(path, to_dict(report))

    def _reports(self) -> list[RankReport]:
        """The reports of this node's ranks; the processes of others are not here."""
        return read_reports(self.folder, len(self._part.devices), first=self._part.first_rank)

    def _launch(self, start: Callable[[], subprocess.Popen[bytes] | WarmProcess]) -> None:
        try:
            self._launcher = start()
        except OSError as error:
            self._finish()
            raise StudyError.of("fleet.not_started", folder=self.folder, error=error) from error

    def _start(self, templates: WarmTemplates) -> subprocess.Popen[bytes] | WarmProcess:
        (self.folder / RANKS_DIR).mkdir(mode=0o700, exist_ok=True)
        spec = self._spec
        if (self._part.start or spec.measure.start) is Start.WARM:
            with self._logs("wb") as logs:
                warm = templates.launch(spec, self._part, self.port, self._environment, logs)
            if warm is not None:
                return warm
            if self._part.start is Start.WARM:
                self._finish()
                raise NoTemplateError(
                    "the ranks of other nodes started warm, and these cannot",
                    "the trial is run again, cold",
                )
        return self._start_cold()

    def _start_cold(self) -> subprocess.Popen[bytes]:
        command = ranks_command(self._part, self.port)
        if self._spec.workload.command:
            command = guest_command(self._part, self.port)
        with self._logs("ab") as (stdout, stderr):
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=self._environment,
                start_new_session=True,
            )

    def _was_never_started(self) -> bool:
        """True if the template is gone, or going, and has not come to this trial."""
        if "was_ended" in self._seen or not isinstance(self._launcher, WarmProcess):
            return False
        return self._part.n_nodes == 1 and not self._launcher.was_started

    def _restart_cold(self) -> None:
        """Start without the template once that is gone; it says why in the trial's log."""
        assert isinstance(self._launcher, WarmProcess)
        if not self._until_s:
            self._until_s = self._clock() + LAST_WORDS_S
        if self._launcher.has_template and not self._is_time():
            return
        self._until_s = 0.0
        self._launch(self._start_cold)

    @contextlib.contextmanager
    def _logs(self, mode: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
        out, errors = self._log_paths()
        with (
            open(out, mode, opener=_opened_private) as stdout,
            open(errors, mode, opener=_opened_private) as stderr,
        ):
            yield stdout, stderr

    def _log_paths(self) -> tuple[Path, Path]:
        prefix = f"node_{self._part.node:02d}." if self._part.node else ""
        return self.folder / f"{prefix}{STDOUT_FILE}", self.folder / f"{prefix}{STDERR_FILE}"


def _opened_private(path: str, flags: int) -> int:
    """A log is its user's alone: a script may print what nobody else should read."""
    return os.open(path, flags, PRIVATE_MODE)


def shorten_log(path: Path) -> int:
    """Leave out the middle of a long log that nobody writes to any more; bytes that went.

    It is done in place, as a full disk has no room for a second one. What is kept are whole lines
    where there are any, and the log says what is missing.
    """
    with contextlib.suppress(OSError), path.open("r+b") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        if size_bytes <= HEAD_BYTES + TAIL_BYTES:
            return 0
        file.seek(0)
        head = file.read(HEAD_BYTES)
        file.seek(-TAIL_BYTES, os.SEEK_END)
        tail = file.read()
        head = head[: head.rfind(b"\n") + 1] or head
        tail = tail[tail.find(b"\n") + 1 :] or tail
        left_out = size_bytes - len(head) - len(tail)
        file.seek(len(head))
        file.write(
            f"[autotune: {format_bytes(left_out)} are left out here: a trial's log keeps its "
            f"first {format_bytes(HEAD_BYTES)} and its last {format_bytes(TAIL_BYTES)}]\n".encode()
        )
        file.write(tail)
        file.truncate()
        return left_out
    return 0


def used_bytes(devices: Collection[str]) -> dict[str, int]:
    """Memory in use on each of some GPUs, by anybody; by UUID.

    Raises:
        FleetError: The driver does not answer: what is free is not known.
    """
    return {gpu.uuid: gpu.memory_used_bytes for gpu in visible_gpus() if gpu.uuid in devices}


def lacking_bytes(before: Mapping[str, int]) -> int:
    """Bytes that the worst GPU has free less than `used_bytes` said before; 0: next to none.

    The driver frees a dead process' memory a moment after it is gone; a trial that started
    meanwhile would run out of memory that is not its own.

    Raises:
        FleetError: The driver does not answer.
    """
    now = used_bytes(before) if before else {}
    lacking = max((now.get(uuid, 0) - used for uuid, used in before.items()), default=0)
    return lacking if lacking > TOLERANCE_BYTES else 0


def _oom_kills() -> int:
    """How often the kernel has killed for memory, in this process's cgroup or on the machine."""
    counted = cgroup.oom_kills()
    if counted is None:
        with contextlib.suppress(OSError, ValueError, StopIteration):
            lines = Path("/proc/vmstat").read_text(encoding="utf-8").splitlines()
            counted = next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return counted or 0
