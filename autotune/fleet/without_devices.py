"""A fleet that has no devices: something else answers for them, at once."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from autotune.base.clock import unix_now_s
from autotune.base.errors import FleetError
from autotune.contract import Origin, Outcome, Phase, TrialResult, TrialSpec
from autotune.fleet.base import Fleet, Handle, Progress

Answer = Callable[[TrialSpec], TrialResult]
"""A trial's result; it says that it was not measured (`TrialResult.origin`)."""


class AnsweringFleet(Fleet):
    """Answers instead of running, one trial at a time."""

    def __init__(self, answer: Answer, origin: Origin) -> None:
        self._answer = answer
        self._origin = origin
        self._trial: _AnsweredTrial | None = None

    def capacity(self, world: int) -> int:
        return 1

    def reap(self, folder: Path) -> None:
        """See `Fleet.reap`: nothing runs."""

    def prepare(self, command: Sequence[str], note: Callable[[str], None]) -> None:
        """Nothing has to be."""
        note(f"figures are {self._origin}: nothing runs on this machine")

    def submit(self, spec: TrialSpec, folder: Path) -> "_AnsweredTrial":
        if self._trial is not None and self._trial.result is None:
            raise FleetError("a trial is in flight, and this fleet takes one", "wait for it")
        self._trial = _AnsweredTrial(spec, folder, self._answer)
        return self._trial

    def close(self) -> None:
        if self._trial is not None:
            self._trial.cancel()


class _AnsweredTrial(Handle):
    """One answer, given when it is first asked for."""

    def __init__(self, spec: TrialSpec, folder: Path, answer: Answer) -> None:
        self.spec = spec
        self.folder = folder
        self.result: TrialResult | None = None
        self._answer = answer
        self._started_at_s = unix_now_s()
        self._is_cancelled = False

    def poll(self) -> TrialResult | None:
        if self.result is None:
            self.result = replace(self._answer(self.spec), started_at_s=self._started_at_s)
            if self._is_cancelled:
                self.result = TrialResult.of(
                    self.spec.identity,
                    Outcome.CANCELLED,
                    origin=self.result.origin,
                    started_at_s=self._started_at_s,
                )
        return self.result

    def progress(self) -> Progress:
        return Progress(phase=Phase.SPAWN, elapsed_s=unix_now_s() - self._started_at_s)

    def cancel(self) -> None:
        self._is_cancelled = self.result is None
