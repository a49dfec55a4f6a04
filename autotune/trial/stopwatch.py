"""Times real optimizer steps of a live engine and decides when enough were seen.

A step reaches from one optimizer step's end to the next: data, all micro-batches, reduction and
update, by the host's clock with the device synchronised. A step's time is the slowest rank's.
Steps that the engine did not apply (fp16 overflow) look fast and are not counted.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.pipe.engine import PipelineEngine

from autotune.contract import Measure, Phase
from autotune.trial.course import Course
from autotune.trial.faults import NonFiniteLossError
from autotune.trial.reporter import Reporter
from autotune.trial.tokens import TokenCounter

_MAX_SKIPPED = 50
"""Unapplied steps after which fp16 training is called non-finite: a dynamic loss scale that starts
at 2**16 needs 16 to reach 1."""


def no_finale() -> bool:
    """The trial is done once it has measured."""
    return True


class TrialDone(BaseException):
    """Raised out of the optimizer step that completes the trial; no training script catches it."""


class Stopwatch:
    """Hooks into one engine's `backward` and `step`, or into the `train_batch` of a pipeline."""

    def __init__(
        self,
        reporter: Reporter,
        measure: Measure,
        *,
        is_loss_scaled: bool,
        on_first_step: Callable[[], None],
        on_warm: Callable[[], None] = lambda: None,
        on_measured: Callable[[], None] = lambda: None,
        after_step: Callable[[], None] = lambda: None,
        finale: Callable[[], bool] = no_finale,
        tokens: TokenCounter | None = None,
    ) -> None:
        """Prepare to watch an engine.

        Args:
            reporter: Where phases, times and losses go.
            measure: How long to measure.
            is_loss_scaled: Whether training is fp16, where steps are skipped until the scale fits.
            on_first_step: Called after the first step that was applied.
            on_warm: Called after the last step of the floor.
            on_measured: Called after the last measured step.
            after_step: Called after every step that is measured.
            finale: Called after the last measured step and every one after it; says whether the
                trial is done. Those steps are not measured.
            tokens: Counts them where samples differ in length.
        """
        self._reporter = reporter
        self._measure = measure
        self._is_loss_scaled = is_loss_scaled
        self._on_first_step = on_first_step
        self._on_warm = on_warm
        self._on_measured = on_measured
        self._after_step = after_step
        self._finale = finale
        self._course = Course(measure)
        self._has_enough = False
        self._tokens = tokens
        self._step_began_s = 0.0
        self._micro_losses: list[torch.Tensor] = []
        self._applied = 0
        self._skipped = 0

    def attach(self, engine: Any) -> None:
        """Wrap the engine's methods on this instance; call once, before the first step."""
        if isinstance(engine, PipelineEngine):
            self._attach_to_pipeline(engine)
        else:
            self._attach_to_steps(engine)
        self._reporter.enter(Phase.WARM_UP)
        self._restart()

    def _attach_to_pipeline(self, engine: Any) -> None:
        train_batch = engine.train_batch

        def timed_train_batch(*args: Any, **kwargs: Any) -> Any:
            mean_loss = train_batch(*args, **kwargs)
            # Only the last stage computes it; the engine has sent it to the others.
            self._micro_losses.append(engine.dp_group_loss)
            self._on_step(bool(engine.was_step_applied()))
            return mean_loss

        engine.train_batch = timed_train_batch

    def _attach_to_steps(self, engine: Any) -> None:
        backward, step = engine.backward, engine.step

        def timed_backward(loss: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self._micro_losses.append(loss.detach())
            return backward(loss, *args, **kwargs)

        def timed_step(*args: Any, **kwargs: Any) -> Any:
            is_boundary = engine.is_gradient_accumulation_boundary()
            outcome = step(*args, **kwargs)
            if is_boundary:
                self._on_step(bool(engine.was_step_applied()))
            return outcome

        engine.backward, engine.step = timed_backward, timed_step

    def _on_step(self, was_applied: bool) -> None:
        get_accelerator().synchronize()
        own_step_time_s = time.perf_counter() - self._step_began_s
        step_time_s, loss_is_finite, applied = self._agree(own_step_time_s, was_applied)
        self._check(loss_is_finite, applied)
        if applied:
            self._count(step_time_s)
        self._restart()

    def _agree(self, own_step_time_s: float, was_applied: bool) -> tuple[float, bool, bool]:
        """Share the step among the ranks, so that all decide alike: the slowest time counts."""
        loss = torch.stack(self._micro_losses).float().mean().item()
        self._reporter.report.losses.append(loss)
        self._micro_losses.clear()
        device = get_accelerator().current_device_name()
        facts = torch.tensor(
            [own_step_time_s, float(not math.isfinite(loss)), float(not was_applied)],
            dtype=torch.float64,
            device=device,
        )
        dist.all_reduce(facts, op=dist.ReduceOp.MAX)
        step_time_s, any_nonfinite, any_skipped = facts.tolist()
        return step_time_s, not any_nonfinite, not any_skipped

    def _check(self, loss_is_finite: bool, applied: bool) -> None:
        # Without a loss scale nothing can mend it: DeepSpeed skips such a bf16 step, and the next.
        if not loss_is_finite and (applied or not self._is_loss_scaled):
            losses = self._reporter.report.losses
            whose = "another rank's loss" if math.isfinite(losses[-1]) else f"loss {losses[-1]}"
            raise NonFiniteLossError(f"{whose} in optimizer step {len(losses)}")
        if not applied:
            self._skipped += 1
            if self._reporter.report.phase is Phase.MEASURED:
                self._reporter.report.steps_skipped += 1
            if self._skipped > _MAX_SKIPPED and self._skipped > self._applied:
                raise NonFiniteLossError(
                    f"{self._skipped} optimizer steps were skipped for overflow, "
                    f"{self._applied} applied"
                )

    def _count(self, step_time_s: float) -> None:
        report = self._reporter.report
        self._applied += 1
        if self._applied == 1:
            self._on_first_step()
        if self._applied <= self._measure.warmup_steps:
            report.warmup_step_times_s.append(step_time_s)
            if self._applied == 1:
                self._reporter.write()  # cut off from here on, it was slow; before, it hung
            if self._applied == self._measure.warmup_steps:
                self._on_warm()
                self._reporter.enter(Phase.MEASURED)
            return
        if not self._has_enough:
            report.step_times_s.append(step_time_s)
            if self._tokens is not None:
                self._tokens.add()
            self._after_step()
            self._has_enough = self._course.add(step_time_s)
            if self._has_enough:
                self._on_measured()
                self._keep_steady()
        if self._has_enough and self._finale():
            raise TrialDone

    def _keep_steady(self) -> None:
        """Move the steps that the series showed to be warm-up to those of the floor."""
        report, n_warm_up = self._reporter.report, self._course.n_warm_up
        report.warmup_step_times_s += report.step_times_s[:n_warm_up]
        del report.step_times_s[:n_warm_up]
        report.is_steady = self._course.is_steady
        report.stopped_early = self._course.is_losing
        if self._tokens is not None:
            report.tokens, report.padded_tokens = self._tokens.since(n_warm_up)

    def _restart(self) -> None:
        if self._tokens is not None:
            self._tokens.restart()
        self._step_began_s = time.perf_counter()
