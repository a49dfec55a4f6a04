"""A fleet that has no devices: something else answers for them, at once."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from autotune.base.errors import FleetError
from autotune.contract import Origin, Outcome, Phase, TrialResult, TrialSpec
from autotune.fleet.base import Handle, Progress

Answer = Callable[[TrialSpec], TrialResult]
"""A trial's result; it says that it was not measured (`TrialResult.origin`)."""


class AnsweringFleet:
    """Answers instead of running; implements `autotune.fleet.base.Fleet`."""

    def __init__(self, answer: Answer, origin: Origin, *, at_once: int = 1) -> None:
        """Take who answers.

        Args:
            answer: Answers each trial.
            origin: Where it says that its figures come from.
            at_once: Trials that are in flight together.
        """
        self._answer = answer
        self._origin = origin
        self._at_once = at_once
        self._running: list[AnsweredTrial] = []

    def capacity(self, world: int) -> int:
        """See `Fleet.capacity`."""
        return self._at_once

    def quarantined(self) -> tuple[str, ...]:
        """See `Fleet.quarantined`."""
        return ()

    def reap(self, folder: Path) -> None:
        """See `Fleet.reap`: nothing runs."""

    def prepare(self, command: Sequence[str], note: Callable[[str], None]) -> None:
        """See `Fleet.prepare`: nothing has to be."""
        note(f"figures are {self._origin}: nothing runs on this machine")

    def submit(self, spec: TrialSpec, folder: Path) -> "AnsweredTrial":
        """See `Fleet.submit`."""
        if len(self._running) >= self._at_once:
            raise FleetError(
                f"{len(self._running)} trials are in flight, as many as this fleet takes",
                "wait for one of them",
            )
        trial = AnsweredTrial(spec, folder, self._answer, on_end=self._running.remove)
        self._running.append(trial)
        return trial

    def close(self) -> None:
        """See `Fleet.close`."""
        for trial in list(self._running):
            trial.cancel()


class AnsweredTrial(Handle):
    """One answer; implements `Handle`."""

    def __init__(
        self,
        spec: TrialSpec,
        folder: Path,
        answer: Answer,
        *,
        on_end: Callable[["AnsweredTrial"], None],
    ) -> None:
        self.spec = spec
        self.folder = folder
        self._answer = answer
        self._on_end = on_end
        self._started_at_s = time.time()
        self._is_cancelled = False
        self._result: TrialResult | None = None

    def poll(self) -> TrialResult | None:
        """See `Handle.poll`."""
        if self._result is None:
            result = replace(self._answer(self.spec), started_at_s=self._started_at_s)
            if self._is_cancelled:
                result = TrialResult(
                    number=self.spec.identity.number,
                    role=self.spec.identity.role,
                    candidate_hash=self.spec.identity.candidate_hash,
                    outcome=Outcome.CANCELLED,
                    started_at_s=self._started_at_s,
                    origin=result.origin,
                )
            self._result = result
            self._on_end(self)
        return self._result

    def progress(self) -> Progress:
        """See `Handle.progress`."""
        return Progress(phase=Phase.SPAWN, elapsed_s=time.time() - self._started_at_s)

    def cancel(self) -> None:
        """See `Handle.cancel`."""
        self._is_cancelled = self._result is None
