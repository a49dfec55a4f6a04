"""This process as a rank of a trial: its spec, its report, its memory, and its end."""

import os
import platform
import re
import sys
import threading
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

from autotune.contract import SPEC_FILE, Outcome, Phase, TrialSpec, read_json
from autotune.trial.communication import listen
from autotune.trial.faults import OutOfMemoryError, evidence_of, outcome_of
from autotune.trial.rendezvous import RankStore
from autotune.trial.reporter import begin_rank
from autotune.trial.variables import CAPACITY_ENV, CORES_ENV

_PACKAGES = ("torch", "deepspeed", "megatron-core", "transformers", "accelerate", "peft", "trl")
_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_DRIVER = re.compile(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)*)\s")


class Rank:
    """One rank of the trial in a folder. It leaves without waiting for destructors."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        self.reporter = begin_rank(folder, number)
        self.spec = TrialSpec.from_dict(read_json(folder / SPEC_FILE))
        self.store = RankStore()
        self.meter: Any = None
        """The meter of its memory; None before `start_meter`."""
        self.diagnostic_pass: Any = None
        """The pass that follows its measured steps; None: there is none."""
        self.is_over = False
        self._limit_bytes: int | None = None
        self._lock = threading.RLock()
        listen(self.spec, folder, number)

    def start_meter(self) -> None:
        """Count memory from here on, and hold it to the limit."""
        from autotune.trial.memory import make_meter  # torch

        capacity = int(os.environ.get(CAPACITY_ENV, "0")) or None
        self._limit_bytes = self.spec.measure.memory_limit_bytes or capacity
        self.meter = make_meter(self.spec.layout.accelerator)
        self.meter.start(self._limit_bytes)

    def finish(self) -> NoReturn:
        """All is measured: end this process here, whatever its script would still do."""
        with self._lock:
            self._close()
            self.reporter.enter(Phase.TEARDOWN)
            self.reporter.finish()
        self._leave(0)

    def fail(self, error: BaseException, outcome: Outcome | None = None) -> NoReturn:
        """End this process by an error that its script may not answer."""
        self._leave(0 if self.record(error, outcome) else 1)

    def record(self, error: BaseException, outcome: Outcome | None = None) -> bool:
        """Write down the error that ends this rank; True if it came once all was measured."""
        with self._lock:
            if self.is_over:
                return False
            self._close()
            report = self.reporter.report
            if report.phase is Phase.DIAGNOSE:  # nothing else enters that phase
                self.diagnostic_pass.fail(error)
                self.reporter.enter(Phase.TEARDOWN)
                self.reporter.finish()
                return True
            if self.meter is not None:
                self.meter.lift()
                report.memory_bytes = self.meter.read()
                error = self._explained(error, outcome)
            self.reporter.fail(error, outcome)
        print(report.traceback, file=sys.stderr, flush=True)
        return False

    def _explained(self, error: BaseException, outcome: Outcome | None) -> BaseException:
        """The error, or the limit of memory that caused it though it does not speak of memory."""
        says_so = outcome_of(error, self.reporter.report.phase) is Outcome.OOM
        if says_so or outcome is not None or not self.meter.explains(error):
            return error
        peak_bytes = self.reporter.report.memory_bytes["peak"]
        explained = OutOfMemoryError(
            f"{evidence_of(error)} (memory stood at {peak_bytes} of {self._limit_bytes} bytes)"
        )
        explained.__cause__ = error
        return explained

    def _close(self) -> None:
        """Note that the rank is over, before its last report is written."""
        self.is_over = True

    def _leave(self, code: int) -> NoReturn:
        sys.stdout.flush()
        sys.stderr.flush()
        if code == 0:
            self.store.leave()
        # Destructors of process groups and worker threads can hang or crash after a good run.
        os._exit(code)


def pin(local_rank: int) -> None:
    """Bind this process to the cores that its node gives the rank, before torch is imported."""
    groups = [group for group in os.environ.get(CORES_ENV, "").split(";") if group]
    if groups:
        cores = {int(core) for core in groups[local_rank % len(groups)].split(",")}
        os.sched_setaffinity(0, cores)


def versions() -> dict[str, str]:
    """Releases of what trains in this process, by package, and of the kernel's NVIDIA driver."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    # A checkout that comes before an installed package.
    core = sys.modules.get("megatron.core")
    if core is not None:
        found["megatron-core"] = core.__version__
    with suppress(OSError):
        driver = _DRIVER.search(_DRIVER_FILE.read_text(encoding="utf-8"))
        found |= {} if driver is None else {"nvidia-driver": driver[1]}
    return found
