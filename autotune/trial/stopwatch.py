"""Times real optimizer steps of a live engine, decides when enough were seen, and ends the rank.

A step reaches from one optimizer step's end to the next: data, all micro-batches, reduction and
update, by the host's clock with the device synchronised. A step's time is the slowest rank's.
Steps that the engine did not apply (fp16 overflow) look fast and are not counted.
"""

import math
import os
import time
from typing import Any, Protocol

import torch
import torch.distributed as dist

from autotune.contract import Measure, Phase
from autotune.trial.diagnose import DiagnosticPass
from autotune.trial.engines.base import Driver, LiveEngine, differences
from autotune.trial.faults import NonFiniteLossError, ReadBackError
from autotune.trial.rank import Rank
from autotune.trial.statistics import (
    MIN_SAMPLES,
    median_interval,
    n_effective,
    relative_half_width,
    steady_from,
)
from autotune.trial.surroundings import Watch
from autotune.trial.variables import CORES_ENV

_LOOK_EVERY = 0.1
"""Share by which a series grows before it is judged again: that sorts, and comes between steps."""
_HOPELESS_STEPS, _HOPELESS = 3, 2.0
"""First steps after the floor, and how many times slower than the threshold each of them is, after
which a trial has lost: no warm-up that the floor leaves takes that many so long."""


class Course:
    """Takes the steps after the floor, one by one, and says when there are enough of them.

    Three stretches: the floor, under the close watch of the memory meter, with compilation and the
    search for a loss scale in it; what is warm-up still, once the meter has settled, by
    `steady_from`; the steady rest, which counts. All ranks decide alike: they get the same times.
    """

    def __init__(self, measure: Measure) -> None:
        """Begin with no step.

        A `target_half_width` of 0 (a soak) looks at no series, and goes on for the whole budget.
        """
        self._measure = measure
        self._looks_at_series = measure.target_half_width > 0
        self._times_s: list[float] = []
        self._total_s = 0.0
        self._next_look = measure.min_steps
        self.is_losing = False
        """Whether it ended because the steps are clearly slower than the spec's threshold."""

    def add(self, step_time_s: float) -> bool:
        """Take a step; return whether enough have been taken."""
        self._times_s.append(step_time_s)
        # Summed over agreed times, not read off this rank's clock: all ranks must stop together.
        self._total_s += step_time_s
        n_steps, measure = len(self._times_s), self._measure
        if n_steps < measure.min_steps:
            self.is_losing = n_steps == _HOPELESS_STEPS and self._is_hopeless
            return self.is_losing
        if n_steps >= measure.max_steps or self._total_s >= measure.budget_s:
            return True
        if not self._looks_at_series or n_steps < self._next_look:
            return False
        self._next_look = n_steps + max(1, int(n_steps * _LOOK_EVERY))
        return self._is_enough()

    @property
    def is_steady(self) -> bool:
        """True if warm-up was over before half of the steps were."""
        return not self._looks_at_series or steady_from(self._times_s) is not None

    @property
    def n_warm_up(self) -> int:
        """Steps that turned out to be warm-up: at most half, and `min_steps` are kept."""
        if not self._looks_at_series:
            return 0
        most = max(0, min(len(self._times_s) // 2, len(self._times_s) - self._measure.min_steps))
        steady = steady_from(self._times_s)
        return most if steady is None else min(most, steady)

    def _is_enough(self) -> bool:
        if not self.is_steady:
            return False
        times_s = self._times_s[self.n_warm_up :]
        if relative_half_width(times_s) <= self._measure.target_half_width:
            return True
        self.is_losing = self._loses(times_s)
        return self.is_losing

    @property
    def _is_hopeless(self) -> bool:
        slowest_s = self._measure.losing_step_time_s
        return slowest_s is not None and min(self._times_s) > _HOPELESS * slowest_s

    def _loses(self, times_s: list[float]) -> bool:
        """True if even the optimistic end of the interval is too slow."""
        slowest_s = self._measure.losing_step_time_s
        if slowest_s is None or math.floor(n_effective(times_s)) < MIN_SAMPLES:
            return False
        return median_interval(times_s)[1] > slowest_s


_MAX_SKIPPED = 50
"""Unapplied steps after which fp16 training is called non-finite: a dynamic loss scale that starts
at 2**16 needs 16 to reach 1."""


class Counter(Protocol):
    """Counts what goes through an engine, step by step."""

    def add(self) -> None:
        """Add the step at hand to those that are measured."""

    def since(self, first: int) -> tuple[int, int]:
        """Tokens of the measured steps from `first` on, without padding and with it."""

    def restart(self) -> None:
        """Begin a step."""


class Stopwatch:
    """Times the optimizer steps of one live engine, and does what belongs around them."""

    def __init__(
        self,
        rank: Rank,
        driver: Driver,
        live: LiveEngine,
        *,
        is_loss_scaled: bool,
        tokens: Counter | None = None,
    ) -> None:
        """Take the engine, before anything watches it; `attach` begins.

        Raises:
            ReadBackError: A soak that goes on from a checkpoint did not.
        """
        self._rank = rank
        self._driver = driver
        self._live = live
        self._is_loss_scaled = is_loss_scaled
        self._tokens = tokens
        self._report = rank.reporter.report
        self._measure: Measure = rank.spec.measure
        self._course = Course(self._measure)
        self._has_enough = False
        self._step_began_s = 0.0
        self._micro_losses: list[torch.Tensor] = []
        self._are_shares = False
        self._applied = 0
        self._skipped = 0
        # A GPU's rank may be bound as well, but its steps are not made on these cores.
        is_watched = rank.spec.layout.accelerator == "cpu" and self._has_cores()
        self._surroundings = Watch(os.sched_getaffinity(0) if is_watched else set())
        self._cpu_s_before = self._measured_from_s = 0.0
        self._soak: Any = None
        if self._measure.checkpoint is not None:
            from autotune.trial.checkpoint import Soak

            self._soak = Soak(
                self._measure.checkpoint, live, self._measure.budget_s, rank.reporter, rank.meter
            )
        elif self._measure.diagnoses:
            rank.diagnostic_pass = DiagnosticPass(live, rank.reporter, rank.finish)

    def attach(self) -> None:
        self._live.on_losses(self._note_loss)
        self._live.on_steps(self._on_step)
        self._rank.reporter.enter(Phase.WARM_UP)
        self._restart()

    def _note_loss(self, loss: torch.Tensor, is_share: bool) -> None:
        self._micro_losses.append(loss)
        self._are_shares = is_share

    def _on_step(self) -> None:
        try:
            self._step()
        except BaseException as error:  # whatever a training script catches
            self._rank.fail(error)

    def _step(self) -> None:
        self._take(*self._agree(*self._seen()))
        self._restart()

    def _seen(self) -> tuple[float, float, float]:
        """The step at hand on this rank: seconds, 1 where its loss is not finite, 1 if skipped."""
        was_applied = self._live.was_applied()
        self._live.synchronize()
        rank_time_s = time.perf_counter() - self._step_began_s
        is_nonfinite = not math.isfinite(self._rank_loss())
        return rank_time_s, float(is_nonfinite), float(not was_applied)

    def _agree(self, *seen: float) -> tuple[float, bool, bool]:
        """Share the step among the ranks, so that all decide alike: the slowest time counts."""
        facts = torch.tensor(seen, dtype=torch.float64, device=self._live.device)
        dist.all_reduce(facts, op=dist.ReduceOp.MAX)
        step_time_s, any_nonfinite, any_skipped = facts.tolist()
        return step_time_s, not any_nonfinite, not any_skipped

    def _take(
        self, step_time_s: float, loss_is_finite: bool, applied: bool, *, n_later: int = 0
    ) -> None:
        """Go on by a step that the ranks have agreed on; `n_later` more have ended since."""
        self._check(loss_is_finite, applied, at=len(self._report.losses) - 1 - n_later)
        if applied:
            self._count(step_time_s)

    def _rank_loss(self) -> float:
        """Loss of the step at hand on this rank; 0: a script may call `loss.backward()` itself."""
        if not self._micro_losses:
            return 0.0
        losses = torch.stack(self._micro_losses).float()
        loss = float((losses.sum() if self._are_shares else losses.mean()).item())
        self._report.losses.append(loss)
        self._micro_losses.clear()
        return loss

    def _check(self, loss_is_finite: bool, applied: bool, *, at: int) -> None:
        """Take note of a step that was not applied; `at` is the place of its loss."""
        # Without a loss scale nothing can mend it: DeepSpeed skips such a bf16 step, and the next.
        if not loss_is_finite and (applied or not self._is_loss_scaled):
            losses = self._report.losses
            is_here = at >= 0 and not math.isfinite(losses[at])
            whose = f"loss {losses[at]}" if is_here else "another rank's loss"
            n_steps = self._applied + self._skipped + 1
            raise NonFiniteLossError(f"{whose} in optimizer step {n_steps}")
        if not applied:
            self._skipped += 1
            self._report.skipped.append(at)
            if self._report.phase is Phase.MEASURED:
                self._report.steps_skipped += 1
            if self._skipped > _MAX_SKIPPED and self._skipped > self._applied:
                raise NonFiniteLossError(
                    f"{self._skipped} optimizer steps were skipped for overflow, "
                    f"{self._applied} applied"
                )

    def _count(self, step_time_s: float) -> None:
        report = self._report
        self._applied += 1
        if self._applied == 1:
            self._read_back()
        if self._applied <= self._measure.warmup_steps:
            report.warmup_step_times_s.append(step_time_s)
            if self._applied == 1:
                self._rank.reporter.write()  # cut off from here on, it was slow; before, it hung
            if self._applied >= self._measure.warmup_steps:
                self._begin_measuring()
            return
        if not self._has_enough:
            report.step_times_s.append(step_time_s)
            if self._tokens is not None:
                self._tokens.add()
            if self._soak is not None:
                self._soak.after_step()
            if self._course.add(step_time_s):
                self._end_measuring()
        if self._has_enough:
            self._finale()

    def _read_back(self) -> None:
        """Compare what the live engine trains with, after its first step, with what was asked.

        Raises:
            ReadBackError: It is something else.
        """
        report, expected = self._report, self._rank.spec.engine.expected
        report.read_back = self._driver.read_back(self._live.engine, expected)
        report.differences = [*differences(expected, report.read_back), *self._more_differences()]
        if report.differences:
            raise ReadBackError("; ".join(report.differences))

    def _more_differences(self) -> list[str]:
        return []

    def _has_cores(self) -> bool:
        """True if other processes on this rank's cores are none of the trial's other ranks."""
        return bool(os.environ.get(CORES_ENV))

    def _begin_measuring(self) -> None:
        if self._soak is None:  # which is there to see what memory does later on
            self._rank.meter.settle()
        self._surroundings.begin()
        self._cpu_s_before, self._measured_from_s = time.process_time(), time.perf_counter()
        self._rank.reporter.enter(Phase.MEASURED)

    def _end_measuring(self) -> None:
        """Move the steps that the series showed to be warm-up to those of the floor."""
        self._has_enough = True
        report, n_warm_up = self._report, self._course.n_warm_up
        report.cpu_s = time.process_time() - self._cpu_s_before
        report.measured_s = time.perf_counter() - self._measured_from_s
        report.surroundings = self._surroundings.end()
        report.warmup_step_times_s += report.step_times_s[:n_warm_up]
        del report.step_times_s[:n_warm_up]
        report.is_steady = self._course.is_steady
        report.stopped_early = self._course.is_losing
        if self._tokens is not None:
            report.tokens, report.padded_tokens = self._tokens.since(n_warm_up)

    def _finale(self) -> None:
        """Called after each step once all are measured: ends the rank, or begins its last pass."""
        if self._soak is not None and not self._soak.finale():
            return
        rank = self._rank
        self._report.memory_bytes = rank.meter.read()
        self._report.own_log = self._live.own_log(self._report)
        if rank.diagnostic_pass is None or self._report.stopped_early:
            rank.finish()
        rank.meter.lift()  # the profiler's own memory is no part of the configuration's
        rank.diagnostic_pass.begin()

    def _restart(self) -> None:
        if self._tokens is not None:
            self._tokens.restart()
        self._step_began_s = time.perf_counter()
