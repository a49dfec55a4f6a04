"""The engine of a user's script, watched as that of a built-in trial is."""

import math
import os
import statistics
import time
from typing import Any, NoReturn

import torch

from autotune.contract import RANKS_DIR, Measure, Phase, write_json
from autotune.trial.aftermath import Aftermath
from autotune.trial.diagnose import DiagnosticPass
from autotune.trial.engines import deepspeed as driver
from autotune.trial.engines.base import LiveEngine
from autotune.trial.guest.describe import describe
from autotune.trial.guest.edits import DESCRIPTION_FILE
from autotune.trial.guest.intake import Intake, is_training_pass
from autotune.trial.reporter import Reporter
from autotune.trial.stopwatch import Stopwatch, TrialDone

_TOGETHER_S = 0.25
"""Seconds of steps that are agreed on at once; decisions come as much later."""
_ALONE = 12
"""Measured steps that are agreed on one by one first: a script may end soon."""


def watch(guest: Any, engine: Any, meter: Any) -> "GuestStopwatch":
    """Time an engine's steps from now on; returns what does."""
    intake = Intake(engine)
    aftermath = GuestAftermath(guest, meter, intake)
    live = driver.live(engine)
    aftermath.prepare(live)
    spec = guest.spec
    is_loss_scaled = bool(getattr(engine, "fp16_enabled", lambda: False)())
    stopwatch = GuestStopwatch(
        guest, spec.measure, aftermath, intake=intake, is_loss_scaled=is_loss_scaled
    )
    stopwatch.attach(live)
    return stopwatch


class GuestAftermath(Aftermath):
    """Ends the rank by itself: a script may catch any exception."""

    def __init__(self, guest: Any, meter: Any, intake: Intake) -> None:
        super().__init__(guest.spec, driver, guest.reporter, meter)
        self._guest = guest
        self._intake = intake

    def finale(self) -> bool:
        self._describe()
        return super().finale()

    def _has_cores(self) -> bool:
        """The ranks of the user's own command share theirs, and are counted as one.

        Where another trial may run beside this one, it would be taken for other work.
        """
        n_local = int(os.environ.get("LOCAL_WORLD_SIZE", self._spec.layout.world))
        return n_local >= len(os.sched_getaffinity(0))

    def _diagnostic_pass(self, live: LiveEngine) -> Any:
        return _GuestPass(live, self._guest)

    def _more_differences(self) -> list[str]:
        """Compare the batch that arrived with the one that was asked for."""
        self._note_batch()
        if self._guest.edits.observes or not self._intake.micro_batches:
            return []
        rows_per_sample = self._guest.edits.rows_per_sample
        if not rows_per_sample:
            return []
        layout, arrived = self._spec.layout, self._intake.micro_batches
        asked = layout.micro_batch * layout.grad_accum
        found = []
        if max(arrived) != layout.micro_batch * rows_per_sample:
            found.append(
                f"micro_batch: asked {layout.micro_batch}, the batch that arrived has "
                f"{max(arrived) / rows_per_sample:g} samples"
            )
        if sum(arrived) != asked * rows_per_sample:
            found.append(
                f"samples of a rank in a step: asked {asked}, {sum(arrived) / rows_per_sample:g} "
                "went through the engine"
            )
        return found

    def _note_batch(self) -> None:
        seen, intake = self._guest.seen, self._intake
        seen["micro_batches"] = list(intake.micro_batches)

    def _describe(self) -> None:
        seen, intake = self._guest.seen, self._intake
        seen["lengths"] = sorted(intake.all_lengths)
        if self._guest.reporter.report.rank == 0:
            path = self._guest.folder / RANKS_DIR / DESCRIPTION_FILE
            write_json(path, describe(self._live.engine, self._guest.seen))


class GuestStopwatch(Stopwatch):
    """Ends the rank where the built-in trial's stopwatch raises.

    Short steps are agreed on several at once. What is done between two steps is no part of them,
    and workers load the next samples meanwhile: done at every step, it would hide a part of the
    time for which a script waits for its data.
    """

    def __init__(
        self,
        guest: Any,
        measure: Measure,
        listener: GuestAftermath,
        *,
        intake: Intake,
        is_loss_scaled: bool,
    ) -> None:
        reporter: Reporter = guest.reporter
        super().__init__(reporter, measure, listener, is_loss_scaled=is_loss_scaled, tokens=intake)
        self.intake = intake
        self._guest = guest
        self._aftermath = listener
        self._outputs: list[torch.Tensor] = []
        """Losses that the engine's forward passes gave back."""
        self._held: list[tuple[float, float, float]] = []
        """Steps that are not agreed on yet: seconds, 1 where the loss is not finite, and 1 where
        the step was not applied."""
        self._n_at_once = 1

    def cut_short(self) -> NoReturn:
        """The script is done, and enough steps were measured: that is the figure."""
        self._forget_held()  # another rank may have ended before
        try:
            if not self._has_enough:
                self._end_measuring()
            self._listener.finale()
        except BaseException as error:
            self._guest.fail(error)
        self._guest.finish()
        raise AssertionError("the rank has ended")

    @property
    def n_applied(self) -> int:
        return self._applied

    def attach(self, live: LiveEngine) -> None:
        """A script may call `loss.backward()` past the engine."""
        super().attach(live)
        live.engine.register_forward_hook(self._note_output)

    def _note_output(self, module: Any, _: Any, output: Any) -> None:
        loss = loss_in(output)
        if loss is not None and is_training_pass(module):
            self._outputs.append(loss.detach())

    def _on_step(self, live: LiveEngine) -> None:
        self._guest.on_step()
        if not self._micro_losses:
            self._micro_losses.extend(self._outputs)
        self._outputs.clear()
        try:
            if not self._held:
                self._n_at_once = self._steps_at_once()
            if self._n_at_once == 1:
                super()._on_step(live)
            else:
                self._hold(live)
        except TrialDone:
            self._guest.finish()
        except BaseException as error:
            if self._aftermath.absorbs(error):
                self._guest.finish()
            self._guest.fail(error)

    def _steps_at_once(self) -> int:
        """How many of the next steps are agreed on together; all ranks find the same."""
        report = self._reporter.report
        times_s = report.step_times_s
        is_measured = report.phase is Phase.MEASURED
        if not is_measured or self._is_loss_scaled or len(times_s) < _ALONE:
            return 1
        fitting = int(_TOGETHER_S / statistics.median(times_s[-_ALONE:]))
        return max(1, min(fitting, len(times_s) // 4))

    def _hold(self, live: LiveEngine) -> None:
        """Keep a step, and agree on those that were kept once there are enough."""
        was_applied = live.was_applied()
        live.synchronize()
        rank_time_s = time.perf_counter() - self._step_began_s
        is_odd = not math.isfinite(self._rank_loss())
        self._held.append((rank_time_s, float(is_odd), float(not was_applied)))
        self.intake.note()
        if len(self._held) >= self._n_at_once:
            self._settle(live.device)
        self._restart()

    def _settle(self, device: str) -> None:
        # Within a step ranks wait for one another: over several each takes as long, and the
        # slowest of each step would add up what that one makes up for in the next.
        facts = torch.tensor(self._held, dtype=torch.float64, device=device)
        torch.distributed.all_reduce(facts)
        facts[:, 0] /= torch.distributed.get_world_size()
        n_later = len(self._held)
        self._held.clear()
        for step_time_s, n_nonfinite, n_skipped in facts.tolist():
            n_later -= 1
            self._take(step_time_s, not n_nonfinite, not n_skipped, n_later=n_later)
            if n_skipped:
                self.intake.pass_over()
            if self._has_enough:  # the diagnostic pass has begun
                break
        self._forget_held()

    def _forget_held(self) -> None:
        self._held.clear()
        self.intake.forget()


class _GuestPass(DiagnosticPass):
    """A diagnostic pass that ends the rank where the built-in trial's raises."""

    def __init__(self, live: LiveEngine, guest: Any) -> None:
        super().__init__(live, guest.reporter)
        self._guest = guest

    def _on_step(self) -> None:
        try:
            super()._on_step()
        except TrialDone:
            self._guest.finish()


def loss_in(output: Any) -> torch.Tensor | None:
    """The loss in what a model gives back; None: it gives none back."""
    found = getattr(output, "loss", None)
    if found is None and isinstance(output, tuple | list) and output:
        found = output[0]
    if found is None:
        found = output
    is_one = isinstance(found, torch.Tensor) and found.numel() == 1 and found.requires_grad
    return found if is_one else None
