"""The diagnostic pass: a few optimizer steps after the measured ones, watched closely.

First under torch's profiler, which says where the time of a step goes, then one under the engine's
log of collectives, which says what each costs. None of them counts as a step of the trial.
Nothing that happens here costs the trial its figure: what fails is written down as the pass's
problem, and a clock ends a rank that does not come back.
"""

import contextlib
import functools
import gc
import os
import statistics
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from torch.autograd import DeviceType
from torch.autograd.profiler import profile, record_function

from autotune.contract import Phase, RankDiagnosis, Split
from autotune.trial import timeline
from autotune.trial.engines.base import LiveEngine
from autotune.trial.faults import evidence_of
from autotune.trial.reporter import Reporter
from autotune.trial.timeline import BEGIN

_MAX_PROFILED = 3
"""Steps under the profiler, at the most: more only where they are short and so differ much."""
_PROFILED_S = 0.15
"""Seconds of steps that are enough."""
_LONGEST_STEP_S = 60.0
"""A step that takes longer is not worth two more."""
_PATIENCE = 20
"""Factor by which the pass may take longer than its steps did when they were measured, and
seconds that it gets besides: reading a trace of a million events takes a while."""


class DiagnosticPass:
    """One engine's pass; made before anything watches the engine, so that it can do without."""

    def __init__(
        self, live: LiveEngine, reporter: Reporter, finish: Callable[[], NoReturn]
    ) -> None:
        """Take the engine; `finish` ends the rank once the pass is over."""
        self._live = live
        self._reporter = reporter
        self._finish = finish
        self._steps = 0
        self._n_done = 0
        self._profiler: Any = None
        self._log = live.collective_log()
        self._split: Split | None = None
        self._problems: list[str] = []
        self._ending = threading.Lock()

    def begin(self) -> None:
        """Watch from the next step on; a step that takes long is not taken again."""
        # The slowest rank's times, which all ranks know: so all decide alike.
        step_time_s = statistics.median(self._reporter.report.step_times_s)
        if step_time_s > _LONGEST_STEP_S:
            self._problems.append(f"left out: a step takes {step_time_s:.0f} s")
            self._keep()
            self._finish()
        self._steps = max(1, min(_MAX_PROFILED, int(_PROFILED_S / max(step_time_s, 1e-6))))
        limit_s = _PATIENCE * (1 + (self._steps + 1) * step_time_s)
        clock = threading.Timer(limit_s, self._run_out, (limit_s,))
        clock.daemon = True
        clock.start()
        self._reporter.enter(Phase.DIAGNOSE)
        self._live.watch(self._in_range)
        self._live.on_steps(self._on_step)
        with self._attempt("profiler"):
            self._start_profiler()

    def fail(self, error: BaseException) -> None:
        """The pass has ended with an error; what it had found until then is kept."""
        if not self._ending.locked():
            self._problems.append(evidence_of(error))
            self._keep()

    def _on_step(self) -> None:
        self._n_done += 1
        if self._n_done == self._steps:
            with self._attempt("profiler"):
                self._stop_profiler()
            with self._attempt("log of collectives"):
                self._log.start()
        elif self._n_done > self._steps:
            with self._attempt("log of collectives"):
                self._log.stop()
            self._keep()
            self._finish()

    def _in_range(self, label: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method as a range of the profiler, which ends when the device has done its work."""

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            with record_function(label):
                outcome = method(*args, **kwargs)
                self._live.synchronize()
            return outcome

        return call

    def _start_profiler(self) -> None:
        # Not torch.profiler.profile: to write down versions it imports torch's whole inductor.
        is_on_device = self._live.device != "cpu"
        self._profiler = profile(use_kineto=True, use_device="cuda" if is_on_device else None)
        self._profiler.__enter__()
        with record_function(BEGIN):
            self._live.synchronize()

    def _stop_profiler(self) -> None:
        if self._profiler is None:
            return
        self._profiler.__exit__(None, None, None)
        on_device = self._live.device != "cpu"
        # Thousands of new objects would make Python's collector scan all objects of torch and
        # transformers, again and again.
        gc.disable()
        try:
            events = _read(self._profiler.kineto_results.events())
            self._split = timeline.split(events, steps=self._steps, on_device=on_device)
        finally:
            gc.enable()

    def _keep(self) -> None:
        """Put what was found into the report; the rank ends by it."""
        if not self._ending.acquire(blocking=False):
            threading.Event().wait()  # the clock has run out, and ends this process
        if self._log.is_cut:
            self._problems.append("of the collectives only the first were looked at")
        self._tell()

    def _tell(self) -> None:
        self._reporter.report.diagnosis = RankDiagnosis(
            steps=self._steps if self._split is not None else 0,
            split=self._split,
            calls=self._log.calls,
            problem="; ".join(self._problems),
        )

    def _run_out(self, limit_s: float) -> None:
        """End this rank, which is stuck; the others' clocks end them too."""
        if not self._ending.acquire(blocking=False):
            return
        self._problems.append(f"ended after {limit_s:.0f} s")
        self._tell()
        self._reporter.enter(Phase.TEARDOWN)
        self._reporter.finish()
        os._exit(0)

    @contextlib.contextmanager
    def _attempt(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._problems.append(f"{what}: {evidence_of(error)}")


def _read(raw_events: Iterable[Any]) -> list[timeline.Event]:
    """The events that count; to look at each of the others would cost as much."""
    events = []
    for raw in raw_events:
        name, on_device = raw.name(), raw.device_type() != DeviceType.CPU
        if on_device or name.startswith(timeline.HOST_NAMES):
            span = (raw.start_ns(), raw.end_ns())
            events.append(timeline.Event(name, *span, raw.start_thread_id(), on_device))
    return events
