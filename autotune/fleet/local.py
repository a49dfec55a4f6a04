"""The accelerators of this machine: each trial has a gang, and processes, of its own."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psutil

from autotune.base.errors import FleetError, StudyError
from autotune.contract import (
    LIST_VARIABLES,
    RANKS_DIR,
    STDERR_FILE,
    STDOUT_FILE,
    TRIAL_ENV,
    ContractError,
    Outcome,
    Phase,
    Start,
    TrialResult,
    TrialSpec,
    read_json,
)
from autotune.devices.hardware import Environment, usable_cores, visible_gpus
from autotune.engines.deepspeed.extensions import environment as extensions_environment
from autotune.fleet.base import Progress
from autotune.fleet.collect import Ending, collect, oom_kills, read_reports
from autotune.fleet.drain import used_bytes, wait_until_drained
from autotune.fleet.gangs import Gang, GangAllocator, Slot
from autotune.fleet.ports import PortLease, lease_port, sweep_segments
from autotune.fleet.processes import ask_for_stacks, is_stopped, kill_all, ranks_command
from autotune.fleet.telemetry import Telemetry
from autotune.fleet.warm import Templates, WarmProcess
from autotune.trial.launcher import COORDINATOR_ENV, EXIT_FILE
from autotune.trial.wrapper import CAPACITY_ENV, CORES_ENV, SUBMITTED_ENV

_STACKS_WAIT_S = 1.0
"""What ranks get to write their stacks before a hung trial is killed."""


class LocalFleet:
    """Runs trials on this machine; implements `autotune.fleet.base.Fleet`."""

    def __init__(self, environment: Environment, *, world: int) -> None:
        """Take the machine's devices.

        Args:
            environment: What `detect_environment` found.
            world: Ranks of the job; a CPU rank has a core as its device.

        Raises:
            FleetError: The machine has fewer GPUs than the job has ranks.
        """
        self._environment = environment
        self._allocator = GangAllocator(_slots(environment, world))
        if self._allocator.capacity(world) == 0:
            raise FleetError(
                f"the job's world is {world}, this machine has {environment.n_devices} "
                f"{environment.accelerator} device(s)",
                f"run on a machine with {world} GPUs, or set --world to at most "
                f"{environment.n_devices}",
            )
        sweep_segments()
        self._world = world
        self._templates = Templates()
        self._running: list[LocalTrial] = []

    def capacity(self, world: int) -> int:
        """See `Fleet.capacity`."""
        return self._allocator.capacity(world)

    def quarantined(self) -> tuple[str, ...]:
        """See `Fleet.quarantined`."""
        return tuple(_name_of(slot) for slot in self._allocator.quarantined)

    def submit(self, spec: TrialSpec, folder: Path) -> "LocalTrial":
        """See `Fleet.submit`."""
        gang = self._allocator.allocate(spec.layout.world)
        try:
            trial = LocalTrial(
                spec,
                folder,
                gang,
                self._capacity_bytes(),
                n_sharing=self._world,
                on_end=self._release,
                on_result=self._judge,
                templates=self._templates,
            )
        except BaseException:
            self._allocator.release(gang)
            raise
        self._running.append(trial)
        return trial

    def close(self) -> None:
        """See `Fleet.close`."""
        try:
            for trial in list(self._running):
                trial.cancel()
                trial.wait()
        finally:
            self._templates.close()

    def _release(self, trial: "LocalTrial") -> None:
        self._running.remove(trial)
        self._allocator.release(trial.gang)

    def _judge(self, gang: Gang, result: TrialResult) -> None:
        if result.outcome is not Outcome.CANCELLED:
            is_fault = result.outcome.is_platform_fault
            self._allocator.judge(gang, result.candidate_hash, is_fault=is_fault)

    def _capacity_bytes(self) -> int | None:
        """A CPU rank's device memory, less where ranks share a core; a GPU knows its own."""
        if self._environment.accelerator != "cpu":
            return None
        n_cores = self._environment.n_devices
        return self._environment.device_memory_bytes * n_cores // max(n_cores, self._world)


class LocalTrial:
    """One torchrun, or what does its work in a warm start; implements `Handle`."""

    def __init__(
        self,
        spec: TrialSpec,
        folder: Path,
        gang: Gang,
        capacity_bytes: int | None,
        *,
        n_sharing: int,
        on_end: Callable[["LocalTrial"], None],
        on_result: Callable[[Gang, TrialResult], None],
        templates: Templates,
    ) -> None:
        """Start the trial's processes.

        Args:
            spec: The trial.
            folder: Its folder.
            gang: Its slots.
            capacity_bytes: Memory of a CPU rank; None: a GPU knows its own.
            n_sharing: Ranks of the job, which share the host's cores; where a reduced trial has
                fewer, each still gets no more of them.
            on_end: Called once its processes are gone.
            on_result: Called with what it came to.
            templates: For a warm start.

        Raises:
            FleetError: No port is free.
            StudyError: The logs cannot be written.
        """
        self.spec = spec
        self.folder = folder.resolve()
        self.gang = gang
        self._n_sharing = n_sharing
        self._on_end = on_end
        self._on_result = on_result
        self._result: TrialResult | None = None
        self._cancelled = False
        self._timed_out_after_s: float | None = None
        self._stopped_ranks: tuple[int, ...] = ()
        self._oom_kills_before = oom_kills()
        is_gpu = spec.layout.accelerator == "cuda"
        self._device_used_before = used_bytes(gang) if is_gpu else {}
        uuids = [slot.device for slot in gang.slots]
        self._telemetry = Telemetry(uuids) if is_gpu else None
        self._started_at_s = time.time()
        self._started = time.monotonic()
        self._port: PortLease = lease_port()
        self._environment = self._make_environment(capacity_bytes)
        try:
            self._process = self._start(templates)
        except OSError as error:
            self._port.release()
            raise _not_started(self.folder, error) from error
        if self._telemetry is not None:
            self._telemetry.start()

    def poll(self) -> TrialResult | None:
        """See `Handle.poll`."""
        if self._result is not None:
            return self._result
        elapsed_s = self._elapsed_s()
        if self._process.poll() is None:
            if elapsed_s <= self.spec.measure.timeout_s:
                return None
            self._timed_out_after_s = elapsed_s
            self._end_hung()
        elif self._was_never_started():
            # Its template is gone, and says why in the trial's log.
            self._restart_cold()
            return None
        self._result = self._collect()
        self._on_result(self.gang, self._result)
        return self._result

    def wait(self) -> TrialResult:
        """Block until the trial has ended."""
        while (result := self.poll()) is None:
            time.sleep(0.05)
        return result

    def progress(self) -> Progress:
        """See `Handle.progress`."""
        reports = read_reports(self.folder, self.spec.layout.world)
        order = list(Phase)
        phase = min((r.phase for r in reports), key=order.index, default=Phase.SPAWN)
        return Progress(phase=phase, elapsed_s=self._elapsed_s())

    def cancel(self) -> None:
        """See `Handle.cancel`."""
        # One that has ended by itself keeps its result, polled or not.
        if self._result is None and (self._process.poll() is None or self._was_never_started()):
            self._cancelled = True
            self._kill(hangs=False)
            self._process.wait()

    def _elapsed_s(self) -> float:
        """Seconds since the trial was submitted; the wall clock may jump meanwhile."""
        return time.monotonic() - self._started

    def _start(self, templates: Templates) -> subprocess.Popen[bytes] | WarmProcess:
        (self.folder / RANKS_DIR).mkdir(exist_ok=True)
        if self.spec.measure.start is Start.WARM and self.spec.layout.accelerator == "cpu":
            with self._logs("wb") as (stdout, stderr):
                warm = templates.launch(
                    self.spec,
                    self.folder,
                    port=self._port.port,
                    environment=self._environment,
                    stdout=stdout,
                    stderr=stderr,
                )
            if warm is not None:
                return warm
        return self._start_cold()

    def _start_cold(self) -> subprocess.Popen[bytes]:
        command = ranks_command(
            self.folder,
            world=self.spec.layout.world,
            port=self._port.port,
            module="autotune.trial.wrapper",
            arguments=[str(self.folder)],
        )
        with self._logs("ab") as (stdout, stderr):
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=self._environment,
                start_new_session=True,
            )

    def _restart_cold(self) -> None:
        try:
            self._process = self._start_cold()
        except OSError as error:
            self._cancelled = True  # it is not started again
            raise _not_started(self.folder, error) from error

    @contextmanager
    def _logs(self, mode: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
        with (
            (self.folder / STDOUT_FILE).open(mode) as stdout,
            (self.folder / STDERR_FILE).open(mode) as stderr,
        ):
            yield stdout, stderr

    def _was_never_started(self) -> bool:
        if self._cancelled or not isinstance(self._process, WarmProcess):
            return False
        return not self._process.was_started

    def _kill(self, *, hangs: bool) -> None:
        if isinstance(self._process, WarmProcess):
            self._process.give_up(hangs=hangs)
        kill_all(self.folder)

    def _make_environment(self, capacity_bytes: int | None) -> dict[str, str]:
        slots = self.gang.slots
        made = {
            **os.environ,
            **extensions_environment(self.spec.layout.accelerator),
            TRIAL_ENV: str(self.folder),
            COORDINATOR_ENV: str(os.getpid()),
            SUBMITTED_ENV: repr(self._started_at_s),
            CAPACITY_ENV: str(capacity_bytes or 0),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONUNBUFFERED": "1",
        }
        if self.spec.layout.accelerator == "cuda":
            made["CUDA_VISIBLE_DEVICES"] = ",".join(slot.device for slot in slots)
            # As the export's launch.sh sets it: an offloaded optimizer runs on the host's cores.
            threads = max(1, len(usable_cores()) // self._n_sharing)
            made.setdefault("OMP_NUM_THREADS", str(threads))
            if self.spec.engine.binds_cores:
                made[CORES_ENV] = _shares(usable_cores(), self._n_sharing)
        else:
            made[CORES_ENV] = ";".join(slot.device for slot in slots)
            made["OMP_NUM_THREADS"] = "1"
            made["LOCAL_SIZE"] = str(self.spec.layout.world)
            made["GLOO_SOCKET_IFNAME"] = "lo"
        for name, value in self.spec.engine.environment.items():
            is_added = name in LIST_VARIABLES and made.get(name)
            made[name] = f"{made[name]},{value}" if is_added else value
        return made

    def _end_hung(self) -> None:
        reports = read_reports(self.folder, self.spec.layout.world)
        self._stopped_ranks = tuple(r.rank for r in reports if is_stopped(r.pid))
        ask_for_stacks([r.pid for r in reports if psutil.pid_exists(r.pid)])
        time.sleep(_STACKS_WAIT_S)
        self._kill(hangs=True)

    def _collect(self) -> TrialResult:
        undrained_bytes, driver_error = 0, ""
        if self._telemetry is not None:
            self._telemetry.stop()
        try:
            kill_all(self.folder)
            launcher_code = self._process.wait()
            undrained_bytes = wait_until_drained(self.gang, self._device_used_before)
        except FleetError as error:
            driver_error = error.message
        finally:
            self._port.release()
            self._on_end(self)
        ending = Ending(
            started_at_s=self._started_at_s,
            wall_s=self._elapsed_s(),
            exit_codes=_exit_codes(self.folder),
            launcher_code=launcher_code,
            start=Start.WARM if isinstance(self._process, WarmProcess) else Start.COLD,
            was_cancelled=self._cancelled,
            timed_out_after_s=self._timed_out_after_s,
            stopped_ranks=self._stopped_ranks,
            oom_killed=oom_kills() > self._oom_kills_before,
            undrained_bytes=undrained_bytes,
            driver_error=driver_error,
            telemetry=self._telemetry,
        )
        devices = [_name_of(slot) for slot in self.gang.slots]
        return collect(self.spec, self.folder, ending, devices, self._environment)


def _not_started(folder: Path, error: OSError) -> StudyError:
    return StudyError(
        f"{folder}: the trial could not be started: {error}",
        "free some space or mend the permissions, then run the same command again",
    )


def _name_of(slot: Slot) -> str:
    return f"localhost:{slot.index}"


def _slots(environment: Environment, world: int) -> tuple[Slot, ...]:
    if environment.accelerator == "cuda":
        return tuple(Slot(index=gpu.index, device=gpu.uuid) for gpu in visible_gpus())
    # A CPU device is one core. More ranks than cores train all the same, only slowly.
    cores = usable_cores()
    n_slots = max(world, len(cores))
    return tuple(Slot(index=i, device=str(cores[i % len(cores)])) for i in range(n_slots))


def _shares(cores: Sequence[int], world: int) -> str:
    """Neighbouring cores for each rank, as `CORES_ENV` spells them; a core for two if need be."""
    size = max(1, len(cores) // world)
    starts = [rank * size % len(cores) for rank in range(world)]
    return ";".join(",".join(map(str, cores[start : start + size])) for start in starts)


def _exit_codes(folder: Path) -> dict[int, int]:
    try:
        codes = read_json(folder / RANKS_DIR / EXIT_FILE)
        return {int(rank): code for rank, code in codes.items() if isinstance(code, int)}
    except (ContractError, ValueError):
        return {}
