"""What a search can expect before its first trial: what fits, and how long a trial takes."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.base.flags import flag
from autotune.base.units import format_bytes, format_seconds, typed_bytes, typed_seconds
from autotune.engines.base import find_engine
from autotune.job.job import Job
from autotune.planning.choices import MIN_FIT, PROBABLE
from autotune.search.climb import CERTAIN
from autotune.search.history import History
from autotune.search.session import Session
from autotune.search.steering import MODEL_MARGIN, Steering
from autotune.search.trial_spec import MEASURE
from autotune.space.candidate import Candidate

START_S = 12.0
"""Seconds of a cold trial of a small model until its first step, on a slow machine."""
TIME_MARGIN = 3.0
"""Factor by which a predicted step time may be wrong before any trial."""


@dataclass(frozen=True, kw_only=True)
class Prospect:
    """What is predicted of a search's trials."""

    n_fit: int
    """Candidates that fit at least as surely as `planning.choices.MIN_FIT`."""
    may_fit: bool
    """Whether any of them has run, or fits at least as likely as not."""
    n_candidates: int
    least_peak_bytes: float
    """Smallest predicted peak of a candidate, the baseline's ladder included."""
    allowed_bytes: float
    """Memory of a device that a trial may use."""
    step_s: float
    """Median step of the candidates that fit, or of all where none does, by what was measured."""
    fastest_step_s: float
    """Fastest step among the same, by the model alone."""
    problem: str = ""
    """Why no trial can succeed; empty: one may."""
    nearest: str = ""
    """The nearest changes with which one would."""

    @property
    def trial_s(self) -> float:
        """Seconds of a typical trial."""
        return trial_s(self.step_s)


def trial_s(step_s: float) -> float:
    """Seconds of a cold trial whose steps take so long."""
    return START_S + max(MEASURE.budget_s, _LEAST_STEPS * step_s)


_LEAST_STEPS = MEASURE.warmup_steps + MEASURE.min_steps
"""Steps without which a trial has no figure."""


def prospect_of(steering: Steering, history: History, session: Session) -> Prospect:
    """What the forecast says of a search's trials, by what was measured so far.

    Lessons of other studies correct the time that is shown, and nothing else: they make the
    forecast of a much larger model less sure, not less true.

    Raises:
        FleetError: The accelerator is in no table.
        JobError: The model's sizes cannot be seen.
    """
    job, engine = session.job, session.engine
    taught, steering = steering, steering.untaught
    lattice: Sequence[Candidate] = steering.lattice.candidates
    rungs: list[Candidate] = []
    if job.baseline is None:
        rungs = [c for rung in engine.ladder() for c in rung if not engine.judge(c)]
    parts = [part for part in (lattice, rungs) if part]
    forecasts = [steering.forecast(part) for part in parts]
    seconds = np.concatenate([forecast.seconds for forecast in forecasts])
    peaks = [f.peak_bytes if f.peak_bytes is not None else np.zeros(len(f)) for f in forecasts]
    peaks_bytes = np.concatenate(peaks)
    risk = np.concatenate([steering.risk(history, part) for part in parts])
    fits = risk <= 1 - MIN_FIT

    def at_row(row: int) -> Candidate:
        """The candidate of a row: a lattice makes those alone that are asked for."""
        return lattice[row] if row < len(lattice) else rungs[row - len(lattice)]

    rows = np.flatnonzero(fits) if fits.any() else np.arange(len(seconds))
    steps_s = seconds[rows]
    typical = int(rows[np.argsort(steps_s)[len(rows) // 2]])
    correction = 1.0
    if taught.recalled is not None or history.tried:
        measured_s = taught.predict(history, at_row(typical)).step_time_s
        correction = measured_s / float(seconds[typical])
    has_run = any(tried.measured is not None for tried in history.tried)
    found = Prospect(
        n_fit=int(fits[: len(lattice)].sum()),
        may_fit=has_run or bool((risk[: len(lattice)] <= 1 - PROBABLE).any()),
        n_candidates=len(lattice),
        least_peak_bytes=float(peaks_bytes.min()),
        allowed_bytes=steering.objective.allowed_bytes,
        step_s=float(np.median(steps_s)) * correction,
        fastest_step_s=float(steps_s.min()),
    )
    if has_run:
        return found
    is_above = found.least_peak_bytes >= MODEL_MARGIN * found.allowed_bytes
    is_host = len(steering.above_host) == len(lattice)
    if steering.knows_memory and risk.min() >= CERTAIN and (is_above or is_host):
        least = at_row(int(peaks_bytes.argmin()))
        return dataclasses.replace(
            found,
            problem=_too_large(found, steering, history, least),
            nearest="; or ".join(_more_memory(found, job, least)),
        )
    name, limit_s = _time_limit(job)
    # By its steps alone: how long a trial takes to start is not predicted, but assumed.
    if _LEAST_STEPS * found.fastest_step_s / TIME_MARGIN > limit_s:
        return dataclasses.replace(
            found,
            problem=(
                f"no trial is predicted to end in time: the fastest step takes "
                f"{format_seconds(found.fastest_step_s)}, a trial {_LEAST_STEPS} of them at "
                f"least, and {name} is {format_seconds(limit_s)}"
            ),
            nearest=(
                f"give {name} {typed_seconds(trial_s(found.fastest_step_s))} or more; or "
                "train a smaller model, shorter samples or a smaller global batch; or use "
                "faster devices or more of them"
            ),
        )
    return found


def _too_large(found: Prospect, steering: Steering, history: History, least: Candidate) -> str:
    if found.least_peak_bytes < found.allowed_bytes:
        return f"nothing is predicted to fit: {steering.describe_overrun(history, least)}"
    return (
        f"nothing is predicted to fit: of {found.n_candidates} candidates the smallest needs "
        f"{format_bytes(found.least_peak_bytes)} per device, and "
        f"{format_bytes(found.allowed_bytes)} are allowed"
    )


def _time_limit(job: Job) -> tuple[str, float]:
    """The flag of the nearest limit of a trial's time, and its seconds."""
    limits = [(flag("trial_timeout"), job.trial_timeout_s)]
    if job.budget.time_s is not None:
        limits.append((flag("budget"), job.budget.time_s))
    return min(limits, key=lambda limit: limit[1])


def _more_memory(found: Prospect, job: Job, least: Candidate) -> Iterator[str]:
    """Changes with which something may fit, in words; a plan searches for the smallest."""
    yield from find_engine(job.engine).unused_savings([least])
    more_bytes = found.least_peak_bytes * math.sqrt(MODEL_MARGIN)
    if found.least_peak_bytes < found.allowed_bytes:
        yield "nodes with more host memory"
    elif job.memory_limit_bytes:
        yield f"{flag('memory_limit')} {typed_bytes(more_bytes)} or more"
    else:
        yield f"devices with {format_bytes(more_bytes)} each"
    yield f"a larger {flag('world')}: `autotune plan` says which fits"
