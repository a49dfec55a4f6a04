"""What a fleet is: it runs a trial on a gang of slots and says how it ended."""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autotune.contract import Phase, TrialResult, TrialSpec


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What is known of a running trial."""

    phase: Phase
    elapsed_s: float


class Handle(Protocol):
    """A trial in flight."""

    spec: TrialSpec
    folder: Path

    def poll(self) -> TrialResult | None:
        """The result once every process of the trial has ended, else None; never waits.

        The result has not been written to the record yet: that is the coordinator's to do.

        Raises:
            FleetError: The trial could not be started where it was submitted.
            StudyError: Its files could not be written there.
        """

    def wait(self, timeout_s: float = math.inf) -> TrialResult | None:
        """The result once every process of the trial has ended; None: it took longer."""
        deadline_s = time.monotonic() + timeout_s
        while (result := self.poll()) is None and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return result

    def progress(self) -> Progress:
        """The phase that the slowest rank is in."""

    def cancel(self) -> None:
        """Begin to end all processes of the trial; `poll` answers with `cancelled` in the end.

        One that has ended by itself meanwhile keeps its outcome.
        """


class Fleet(Protocol):
    """Runs trials, on accelerators or not."""

    def capacity(self, world: int) -> int:
        """How many trials of `world` slots can run at once; falls when slots are left out."""

    def quarantined(self) -> tuple[str, ...]:
        """Slots that run no more trials, since the platform ended several in a row there.

        Named as in a result's `devices`. They leave room for a trial at least.
        """

    def reap(self, folder: Path) -> None:
        """End what a dead coordinator may have left of the trials below a folder; waits for it.

        Raises:
            FleetError: A node does not answer.
        """

    def submit(self, spec: TrialSpec, folder: Path) -> Handle:
        """Start a trial whose `spec.json` and `config/` are already in `folder`.

        Raises:
            FleetError: No gang is free.
        """

    def close(self) -> None:
        """End everything that still runs."""
