"""The part of a trial that a soak adds: memory watched all the time, a checkpoint.

The engine's checkpoint holds weights, optimizer states and counters. A training that goes on where
it was also needs its place in the data, which follows from the number of steps, and the state of
the random numbers (dropout), which stands beside it, a file per rank.
"""

import time
from pathlib import Path

import torch
import torch.distributed as dist

from autotune.contract import Checkpoint
from autotune.trial.engines.base import LiveEngine
from autotune.trial.faults import ReadBackError
from autotune.trial.memory import Meter
from autotune.trial.reporter import Reporter

_TAG = "soak"
_N_SAMPLES = 200
"""Memory samples per trial, spread evenly over its time: enough for a slope."""


class Soak:
    """One engine's part in a soak; made when the engine is, before its first step."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        live: LiveEngine,
        budget_s: float,
        reporter: Reporter,
        meter: Meter,
    ) -> None:
        """Take the engine, and resume it where the spec says so.

        Raises:
            ReadBackError: The checkpoint is not there, or is of another step.
        """
        self._checkpoint = checkpoint
        self._live = live
        self._report = reporter.report
        self._meter = meter
        self._period_s = budget_s / _N_SAMPLES
        self._began_s = time.monotonic()
        self._next_sample_s = 0.0
        if checkpoint.resumes_at is not None:
            self._resume(checkpoint.resumes_at)

    def after_step(self) -> None:
        elapsed_s = time.monotonic() - self._began_s
        if elapsed_s >= self._next_sample_s:
            self._next_sample_s = elapsed_s + self._period_s
            sample = {name: float(size) for name, size in self._meter.now().items()}
            self._report.memory_samples.append({"elapsed_s": elapsed_s, **sample})

    def finale(self) -> bool:
        """Save once, then let a few more steps be trained; return whether they are done."""
        if self._checkpoint.resumes_at is not None:
            return True
        steps = len(self._report.losses)
        if not self._report.checkpoint:
            self._save(steps)
        return steps - self._report.checkpoint["steps"] >= self._checkpoint.steps_after

    def _save(self, steps: int) -> None:
        began_s = time.monotonic()
        folder = self._checkpoint.folder
        self._live.save(folder, _TAG, steps)
        state = {"cpu": torch.get_rng_state()}
        if self._live.device != "cpu":
            state["device"] = torch.cuda.get_rng_state()
        torch.save(state, _random_file(folder))
        dist.barrier()
        self._report.checkpoint = {"steps": steps, "seconds": time.monotonic() - began_s}

    def _resume(self, steps: int) -> None:
        began_s = time.monotonic()
        folder = self._checkpoint.folder
        path, client_state = self._live.load(folder, _TAG)
        if path is None or client_state.get("steps") != steps:
            raise ReadBackError(
                f"the engine did not resume: asked for step {steps} of {folder}, it loaded "
                f"{path} with {client_state}"
            )
        state = torch.load(_random_file(folder), weights_only=True)
        torch.set_rng_state(state["cpu"])
        if "device" in state:
            torch.cuda.set_rng_state(state["device"])
        self._report.checkpoint = {"steps": steps, "seconds": time.monotonic() - began_s}


def _random_file(folder: str) -> Path:
    return Path(folder) / f"random_state_{dist.get_rank():04d}.pt"
