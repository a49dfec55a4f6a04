"""Around a trial's measured steps: read-back, limits, diagnosis, and how it comes to its end."""

import os
import time
from typing import Any

from autotune.contract import Phase, TrialSpec
from autotune.trial.engines.base import Driver, LiveEngine, differences
from autotune.trial.faults import ReadBackError
from autotune.trial.reporter import Reporter
from autotune.trial.surroundings import Watch
from autotune.trial.variables import CORES_ENV


class Aftermath:
    """Work of a trial around its measured steps and after the last of them."""

    def __init__(self, spec: TrialSpec, driver: Driver, reporter: Reporter, meter: Any) -> None:
        self._spec = spec
        self._driver = driver
        self._reporter = reporter
        self._meter = meter
        self._live: Any = None
        self._soak: Any = None
        self._pass: Any = None
        self._watch: Any = None
        self._cpu_s_before = 0.0
        self._began_s = 0.0

    def prepare(self, live: LiveEngine) -> None:
        """Take the engine, before anything watches it."""
        self._live = live
        # A GPU's rank may be bound as well, but its steps are not made on these cores.
        is_watched = self._spec.layout.accelerator == "cpu" and self._has_cores()
        self._watch = Watch(os.sched_getaffinity(0) if is_watched else set())
        measure = self._spec.measure
        if measure.checkpoint is not None:
            from autotune.trial.checkpoint import Soak

            self._soak = Soak(
                measure.checkpoint, live, measure.budget_s, self._reporter, self._meter
            )
        elif measure.diagnoses:
            self._pass = self._diagnostic_pass(live)

    def _diagnostic_pass(self, live: LiveEngine) -> Any:
        from autotune.trial.diagnose import DiagnosticPass

        return DiagnosticPass(live, self._reporter)

    def on_first_step(self) -> None:
        report, expected = self._reporter.report, self._spec.engine.expected
        report.read_back = self._driver.read_back(self._live.engine, expected)
        report.differences = [*differences(expected, report.read_back), *self._more_differences()]
        if report.differences:
            raise ReadBackError("; ".join(report.differences))

    def _more_differences(self) -> list[str]:
        return []

    def on_warm(self) -> None:
        if self._soak is None:  # which is there to see what memory does later on
            self._meter.settle()
        self._watch.begin()
        self._cpu_s_before, self._began_s = time.process_time(), time.perf_counter()

    def _has_cores(self) -> bool:
        """True if other processes on this rank's cores are none of the trial's other ranks."""
        return bool(os.environ.get(CORES_ENV))

    def on_measured(self) -> None:
        report = self._reporter.report
        report.cpu_s = time.process_time() - self._cpu_s_before
        report.measured_s = time.perf_counter() - self._began_s
        report.surroundings = self._watch.end()

    def after_step(self) -> None:
        if self._soak is not None:
            self._soak.after_step()

    def finale(self) -> bool:
        """Called after each step once all are measured; says whether the trial ends."""
        if self._soak is not None and not self._soak.finale():
            return False
        report = self._reporter.report
        report.memory_bytes = self._meter.read()
        report.own_log = self._live.own_log(report)
        if self._pass is None:
            return True
        self._meter.lift()  # the profiler's own memory is no part of the configuration's
        return bool(self._pass.begin())

    def absorbs(self, error: BaseException) -> bool:
        """True if the trial keeps its figures: the error came after everything was measured."""
        if self._reporter.report.phase is not Phase.DIAGNOSE:
            return False
        self._pass.fail(error)  # nothing else enters that phase
        return True
