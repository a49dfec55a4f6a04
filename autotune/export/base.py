"""What a dialect is: one consumer's files for a configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from autotune.base.templates import Templates
from autotune.devices.hardware import Environment
from autotune.engines.base import RankSettings
from autotune.job.job import Job
from autotune.record.soak import SoakResult
from autotune.space.candidate import Candidate
from autotune.space.knob import Context


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What was measured of a configuration, as its README states it."""

    trial: int
    """Number of the trial whose files stand for it."""
    n_runs: int
    """Fresh sets of processes behind the figure."""
    n_disturbed: int = 0
    """Of those, the ones that something else on the machine disturbed."""
    samples_per_s: float
    samples_per_s_low: float
    """Lower end of the 95% prediction interval: where a re-run would be."""
    samples_per_s_high: float
    step_time_s: float | None = None
    """Median seconds of one optimizer step."""
    peak_memory_bytes: int | None = None
    """Per device, the highest of any rank."""
    baseline_samples_per_s: float | None = None
    speedup: float | None = None
    """Ratio of samples/s to the baseline's; None where there is no confirmed one."""
    speedup_low: float | None = None
    speedup_high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Export:
    """A configuration to hand out."""

    job: Job
    candidate: Candidate
    files: Mapping[str, str]
    """The engine's configuration files: path -> text."""
    context: Context
    """Of the job and its engine."""
    ranks: RankSettings
    environment: Environment
    figures: Figures | None
    """None: rendered, not tried."""
    soak: SoakResult | None = None
    """Of this configuration; None: it was not soaked."""
    overridden: Mapping[str, tuple[Any, Any]]
    """Keys of the user's own configuration that do not run as written: key -> (theirs, ours)."""


class Dialect(Protocol):
    """One consumer's file format."""

    name: str
    engine: str
    """Name of the engine whose configurations it writes."""
    marker: str
    """A file that all its exports have."""

    def files(self, export: Export, templates: Templates) -> dict[str, str]:
        """Path below the export folder -> text; what ends in `.sh` is made executable.

        Raises:
            RenderError: A template does not render.
        """
