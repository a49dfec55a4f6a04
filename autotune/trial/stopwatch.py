"""Times real optimizer steps of a live engine and decides when enough were seen.

A step reaches from one optimizer step's end to the next: data, all micro-batches, reduction and
update, by the host's clock with the device synchronised. A step's time is the slowest rank's.
Steps that the engine did not apply (fp16 overflow) look fast and are not counted.
"""

import math
import time
from typing import Any, Protocol

import torch
import torch.distributed as dist

from autotune.contract import Measure, Phase
from autotune.trial.course import Course
from autotune.trial.engines.base import LiveEngine
from autotune.trial.faults import NonFiniteLossError
from autotune.trial.reporter import Reporter
from autotune.trial.scripts.train import IGNORED

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


class TrialDone(BaseException):
    """Raised out of the optimizer step that completes the trial; no training script catches it."""


class _Listener(Protocol):
    """Is told how far a trial is, as `Aftermath` says."""

    def on_first_step(self) -> None: ...
    def on_warm(self) -> None: ...
    def after_step(self) -> None: ...
    def on_measured(self) -> None: ...
    def finale(self) -> bool: ...


class Stopwatch:
    """Times the optimizer steps of one live engine."""

    def __init__(
        self,
        reporter: Reporter,
        measure: Measure,
        listener: _Listener,
        *,
        is_loss_scaled: bool,
        tokens: Counter | None = None,
    ) -> None:
        self._reporter = reporter
        self._measure = measure
        self._listener = listener
        self._is_loss_scaled = is_loss_scaled
        self._course = Course(measure)
        self._has_enough = False
        self._tokens = tokens
        self._step_began_s = 0.0
        self._micro_losses: list[torch.Tensor] = []
        self._are_shares = False
        self._applied = 0
        self._skipped = 0

    def attach(self, live: LiveEngine) -> None:
        live.on_losses(self._note_loss)
        live.on_steps(lambda: self._on_step(live))
        self._reporter.enter(Phase.WARM_UP)
        self._restart()

    def _note_loss(self, loss: torch.Tensor, is_share: bool) -> None:
        self._micro_losses.append(loss)
        self._are_shares = is_share

    def _on_step(self, live: LiveEngine) -> None:
        was_applied = live.was_applied()
        live.synchronize()
        rank_time_s = time.perf_counter() - self._step_began_s
        self._take(*self._agree(rank_time_s, was_applied, device=live.device))
        self._restart()

    def _take(
        self, step_time_s: float, loss_is_finite: bool, applied: bool, *, n_later: int = 0
    ) -> None:
        """Go on by a step that the ranks have agreed on; `n_later` more have ended since."""
        self._check(loss_is_finite, applied, at=len(self._reporter.report.losses) - 1 - n_later)
        if applied:
            self._count(step_time_s)

    def _agree(
        self, rank_time_s: float, was_applied: bool, *, device: str
    ) -> tuple[float, bool, bool]:
        """Share the step among the ranks, so that all decide alike: the slowest time counts."""
        facts = torch.tensor(
            [rank_time_s, float(not math.isfinite(self._rank_loss())), float(not was_applied)],
            dtype=torch.float64,
            device=device,
        )
        dist.all_reduce(facts, op=dist.ReduceOp.MAX)
        step_time_s, any_nonfinite, any_skipped = facts.tolist()
        return step_time_s, not any_nonfinite, not any_skipped

    def _rank_loss(self) -> float:
        """Loss of the step at hand on this rank; 0: a script may call `loss.backward()` itself."""
        if not self._micro_losses:
            return 0.0
        losses = torch.stack(self._micro_losses).float()
        loss = float((losses.sum() if self._are_shares else losses.mean()).item())
        self._reporter.report.losses.append(loss)
        self._micro_losses.clear()
        return loss

    def _check(self, loss_is_finite: bool, applied: bool, *, at: int) -> None:
        """Take note of a step that was not applied; `at` is the place of its loss."""
        # Without a loss scale nothing can mend it: DeepSpeed skips such a bf16 step, and the next.
        if not loss_is_finite and (applied or not self._is_loss_scaled):
            losses = self._reporter.report.losses
            is_here = at >= 0 and not math.isfinite(losses[at])
            whose = f"loss {losses[at]}" if is_here else "another rank's loss"
            n_steps = self._applied + self._skipped + 1
            raise NonFiniteLossError(f"{whose} in optimizer step {n_steps}")
        if not applied:
            self._skipped += 1
            self._reporter.report.skipped.append(at)
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
            self._listener.on_first_step()
        if self._applied <= self._measure.warmup_steps:
            report.warmup_step_times_s.append(step_time_s)
            if self._applied == 1:
                self._reporter.write()  # cut off from here on, it was slow; before, it hung
            if self._applied >= self._measure.warmup_steps:
                self._listener.on_warm()
                self._reporter.enter(Phase.MEASURED)
            return
        if not self._has_enough:
            report.step_times_s.append(step_time_s)
            if self._tokens is not None:
                self._tokens.add()
            self._listener.after_step()
            if self._course.add(step_time_s):
                self._end_measuring()
        if self._has_enough and self._listener.finale():
            raise TrialDone

    def _end_measuring(self) -> None:
        self._has_enough = True
        self._listener.on_measured()
        self._keep_steady()

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


class TokenCounter:
    """Counts what goes through an engine's forward passes where samples differ in length."""

    def __init__(self, engine: Any) -> None:
        self._real: list[torch.Tensor] = []
        self._padded = 0
        self._steps: list[tuple[int, int]] = []
        engine.register_forward_pre_hook(self._see, with_kwargs=True)

    def add(self) -> None:
        self._steps.append((int(torch.stack(self._real).sum().item()), self._padded))

    def since(self, first: int) -> tuple[int, int]:
        real, padded = zip(*self._steps[first:], strict=True)
        return sum(real), sum(padded)

    def restart(self) -> None:
        self._real.clear()
        self._padded = 0

    def _see(self, _: torch.nn.Module, __: tuple[Any, ...], inputs: dict[str, Any]) -> None:
        # Counted on the device and read after the step: reading here would wait for the device.
        self._real.append((inputs["labels"] != IGNORED).sum())
        self._padded += inputs["labels"].numel()
