"""What an engine is: what a candidate means there, and what the live engine must say of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from autotune.contract import KnobValue
from autotune.rules.base import Setup
from autotune.space.candidate import Candidate


class Engine(Protocol):
    """One training engine."""

    name: str

    @property
    def base_knobs(self) -> Mapping[str, KnobValue]:
        """Knobs that the user's base configuration sets; empty where there is none."""

    @property
    def optimizer(self) -> str:
        """Type of the optimizer that trains, in lower case."""

    def setup(self, candidate: Candidate) -> Setup:
        """Render the candidate: what would really run.

        Raises:
            RenderError: A template or the base configuration does not render.
        """

    def expected(self, setup: Setup) -> dict[str, Any]:
        """What the live engine must read back for this setup (`TrialSpec.expected`)."""

    def files(self, candidate: Candidate) -> dict[str, str]:
        """Configuration files of the candidate: path below `config/` -> text."""

    def overridden(self, candidate: Candidate) -> Mapping[str, tuple[Any, Any]]:
        """Keys of the user's base configuration that a knob overrides: key -> (theirs, ours)."""

    def baseline(self, path: Path) -> tuple["Engine", Candidate]:
        """A user's own configuration as a candidate, with the engine that renders it as it is.

        Raises:
            RenderError: The file cannot be read.
            JobError: It trains something else than the job.
        """
