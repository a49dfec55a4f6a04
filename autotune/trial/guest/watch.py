"""The engine of a user's script, watched as that of a built-in trial is."""

import os
import statistics
from typing import Any, NoReturn

import torch

from autotune.contract import RANKS_DIR, Phase, write_json
from autotune.trial.engines import deepspeed as driver
from autotune.trial.guest.describe import describe
from autotune.trial.guest.edits import DESCRIPTION_FILE
from autotune.trial.guest.intake import Intake, is_training_pass
from autotune.trial.stopwatch import Stopwatch

_TOGETHER_S = 0.25
"""Seconds of steps that are agreed on at once; decisions come as much later."""
_ALONE = 12
"""Measured steps that are agreed on one by one first, with a wait: a script may end soon."""


class GuestStopwatch(Stopwatch):
    """Times an engine of a user's script.

    Ranks agree on most steps while they make the next, on short ones several at once. What is done
    between two steps is no part of them, and workers load the next samples meanwhile: to wait
    there for the other ranks would hide a part of the time of a step, and of that for which a
    script waits for its data.
    """

    def __init__(self, guest: Any, engine: Any, passes: torch.nn.Module) -> None:
        """Take the engine, and what the script calls: that, or its module.

        A script may call `loss.backward()` past it.
        """
        self.intake = Intake(engine, passes, sizes=guest.seen["loader_batches"])
        is_loss_scaled = bool(getattr(engine, "fp16_enabled", lambda: False)())
        live = driver.live(engine)
        super().__init__(guest, driver, live, is_loss_scaled=is_loss_scaled, tokens=self.intake)
        self._guest = guest
        self._outputs: list[torch.Tensor] = []
        """Losses that the engine's forward passes gave back."""
        self._held: list[tuple[tuple[float, float, float], tuple[int, int, int]]] = []
        """Steps that are not agreed on yet: what this rank has seen of each, and its counts."""
        self._asked: tuple[torch.Tensor, Any, list[Any]] | None = None
        """Facts of steps that the ranks share at present, the call that does, and those steps."""
        passes.register_forward_hook(self._note_output)

    @property
    def n_applied(self) -> int:
        return self._applied

    def cut_short(self) -> NoReturn:
        """The script is done, and enough steps were measured: that is the figure."""
        self._held.clear()  # another rank may have ended before
        self._asked = None
        try:
            if not self._has_enough:
                self._end_measuring()
            self._finale()
        except BaseException as error:
            self._rank.fail(error)
        self._rank.finish()

    def _note_output(self, module: Any, _: Any, output: Any) -> None:
        loss = loss_in(output)
        if loss is not None and is_training_pass(module):
            self._outputs.append(loss.detach())

    def _step(self) -> None:
        if self._guest.watched is not self._live.engine:  # another one is timed since
            self._restart()
            return
        self._guest.on_step()
        if not self._micro_losses:
            self._micro_losses.extend(self._outputs)
        self._outputs.clear()
        is_measured = self._report.phase is Phase.MEASURED
        if self._is_loss_scaled or not is_measured or len(self._report.step_times_s) < _ALONE:
            super()._step()
            return
        step = self._seen(), self.intake.counted()
        if self._asked is not None:
            self._settle()
        if not self._has_enough:
            self._held.append(step)
            if len(self._held) >= self._steps_at_once():
                self._ask()
        self._restart()

    def _steps_at_once(self) -> int:
        """How many of the next steps are agreed on together; all ranks find the same."""
        times_s = self._report.step_times_s
        fitting = int(_TOGETHER_S / statistics.median(times_s[-_ALONE:]))
        return max(1, min(fitting, len(times_s) // 4))

    def _ask(self) -> None:
        """Begin to share the steps held among the ranks, which go on meanwhile."""
        held, self._held = self._held, []
        seen = [of_rank for of_rank, _ in held]
        facts = torch.tensor(seen, dtype=torch.float64, device=self._live.device)
        # NCCL's call returns at once in any case.
        sharing = torch.distributed.all_reduce(facts, async_op=not facts.is_cuda)
        self._asked = facts, sharing, held

    def _settle(self) -> None:
        """Go on by the steps that all ranks have shared by the end of this one."""
        assert self._asked is not None
        (facts, sharing, held), self._asked = self._asked, None
        if sharing is not None:
            sharing.wait()
        # Within a step ranks wait for one another: over several each takes as long, and the
        # slowest of each step would add up what that one makes up for in the next.
        facts[:, 0] /= torch.distributed.get_world_size()
        n_later = len(held) + 1
        agreed = zip(facts.tolist(), held, strict=True)
        for (step_time_s, n_nonfinite, n_skipped), (_, self.intake.decided) in agreed:
            n_later -= 1
            self._take(step_time_s, not n_nonfinite, not n_skipped, n_later=n_later)
            if self._has_enough:  # the diagnostic pass has begun
                break
        self.intake.decided = None

    def _has_cores(self) -> bool:
        """The ranks of the user's own command share theirs, and are counted as one.

        Where another trial may run beside this one, it would be taken for other work.
        """
        n_local = int(os.environ.get("LOCAL_WORLD_SIZE", self._rank.spec.layout.world))
        return n_local >= len(os.sched_getaffinity(0))

    def _more_differences(self) -> list[str]:
        """Compare the batch that arrived with the one that was asked for."""
        arrived, edits = self.intake.micro_batches, self._guest.edits
        self._guest.seen["micro_batches"] = arrived
        read_back, found = self._report.read_back, list[str]()
        recomputes = bool(read_back.get("recomputed_layers") or self._guest.seen["recomputes"])
        read_back["recomputes"] = recomputes
        if edits.recomputes not in (None, recomputes):
            wish, runs = ("full" if one else "none" for one in (edits.recomputes, recomputes))
            found.append(f"recompute: asked {wish}, the model runs {runs}")
        if edits.observes or not arrived or not edits.rows_per_sample:
            return found
        layout = self._rank.spec.layout
        asked = layout.micro_batch * layout.grad_accum
        largest, total = (rows / edits.rows_per_sample for rows in (max(arrived), sum(arrived)))
        if largest != layout.micro_batch:
            found.append(
                f"micro_batch: asked {layout.micro_batch}, the batch that arrived has "
                f"{largest:g} samples"
            )
        if total != asked:
            found.append(
                f"samples of a rank in a step: asked {asked}, {total:g} went through the engine"
            )
        return found

    def _finale(self) -> None:
        """What the command trains is written down as well, by the first rank."""
        self._guest.seen["lengths"] = sorted(self.intake.all_lengths)
        self._guest.seen["rows"] = sorted(self.intake.rows.items())
        if self._report.rank == 0:
            path = self._guest.folder / RANKS_DIR / DESCRIPTION_FILE
            write_json(path, describe(self._live.engine, self._guest.seen))
        super()._finale()


def loss_in(output: Any) -> torch.Tensor | None:
    """The loss in what a model gives back; None: it gives none back."""
    found = getattr(output, "loss", None)
    if found is None and isinstance(output, tuple | list) and output:
        found = output[0]
    if found is None:
        found = output
    is_one = isinstance(found, torch.Tensor) and found.numel() == 1 and found.requires_grad
    return found if is_one else None
