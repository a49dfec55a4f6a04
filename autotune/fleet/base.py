"""What a fleet is: it runs a trial on a gang of slots and says how it ended."""

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
        """The result once every process of the trial has ended, else None.

        The result has not been written to the record yet: that is the coordinator's to do.
        """

    def progress(self) -> Progress:
        """The phase that the slowest rank is in."""

    def cancel(self) -> None:
        """End all processes of the trial; `poll` then answers with `cancelled`."""


class Fleet(Protocol):
    """Accelerators that run trials."""

    def capacity(self, world: int) -> int:
        """How many trials of `world` slots can run at once; falls when slots are left out."""

    def quarantined(self) -> tuple[str, ...]:
        """Slots that run no more trials, since the platform ended several in a row there.

        Named as in a result's `devices`. They leave room for a trial at least.
        """

    def submit(self, spec: TrialSpec, folder: Path) -> Handle:
        """Start a trial whose `spec.json` and `config/` are already in `folder`.

        Raises:
            FleetError: No gang is free.
        """

    def close(self) -> None:
        """End everything that still runs."""
