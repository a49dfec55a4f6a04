"""What a search can expect before its first trial: what fits, and how long a trial takes."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.base.flags import flag
from autotune.base.templates import Fact, tell
from autotune.base.units import typed_bytes, typed_seconds
from autotune.contract import Start
from autotune.engines.base import find_engine
from autotune.planning.choices import MIN_FIT, PROBABLE
from autotune.search.climb import CERTAIN
from autotune.search.history import History
from autotune.search.session import Session
from autotune.search.steering import MODEL_MARGIN, Steering
from autotune.search.trial_spec import MEASURE, WARM_MEASURE
from autotune.space.candidate import Candidate

START_S = {Start.COLD: 12.0, Start.WARM: 4.0}
"""Seconds of a trial of a small model until its first step: cold on a slow machine, warm on a GPU
(`docs/gpu.md`)."""
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

    plan_gain: float = 1.0
    """Forecast speed of the best of the space `plan` over the fastest here; 1: nobody asked."""
    plan_first: str = ""
    """That candidate, in words, where it is the faster one or the only one that fits."""
    plan_fit: float = 1.0
    """Probability that it fits."""

    start: Start = Start.COLD
    """Start of the median candidate's trial."""

    @property
    def trial_s(self) -> float:
        return trial_s(self.step_s, self.start)


def trial_s(step_s: float, start: Start = Start.COLD) -> float:
    """Seconds of a trial whose steps take so long."""
    measure = WARM_MEASURE if start is Start.WARM else MEASURE
    return START_S[start] + max(measure.budget_s, _LEAST_STEPS * step_s)


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
        start=Start.WARM if session.may_start_warm(at_row(typical)) else Start.COLD,
    )
    if has_run:
        return found
    least = at_row(int(peaks_bytes.argmin()))
    runs_out = steering.knows_memory and float(risk.min()) >= CERTAIN
    overrun = steering.describe_overrun(history, least) if runs_out else ""
    facts = _why_hopeless(found, session, steering, least, overrun)
    nearest = "; or ".join(text for name, text in facts if name == "nearest")
    return dataclasses.replace(found, problem=dict(facts).get("problem", ""), nearest=nearest)


def _why_hopeless(
    found: Prospect, session: Session, steering: Steering, least: Candidate, overrun: str
) -> list[Fact]:
    """Why no trial can succeed, and the nearest changes with which one would; empty: one may.

    `least` is the candidate that needs the least memory; `overrun` says how it runs out of it, and
    is empty where that is not certain.
    """
    job = session.job
    is_too_large = bool(overrun) and (
        found.least_peak_bytes >= MODEL_MARGIN * found.allowed_bytes
        or len(steering.above_host) == len(steering.lattice.candidates)
    )
    limits = [(flag("trial_timeout"), job.trial_timeout_s)]
    if job.budget.time_s is not None:
        limits.append((flag("budget"), job.budget.time_s))
    limit, limit_s = min(limits, key=lambda limit: limit[1])
    # By its steps alone: how long a trial takes to start is not predicted, but assumed.
    is_too_slow = _LEAST_STEPS * found.fastest_step_s / TIME_MARGIN > limit_s
    if not is_too_large and not is_too_slow:
        return []
    return tell(
        "hopeless",
        {
            "found": found,
            "job": job,
            "is_too_large": is_too_large,
            "is_above_device": found.least_peak_bytes >= found.allowed_bytes,
            "overrun": overrun,
            "savings": find_engine(job.engine).unused_savings([least]),
            "more_bytes": found.least_peak_bytes * math.sqrt(MODEL_MARGIN),
            "least_steps": _LEAST_STEPS,
            "limit": limit,
            "limit_s": limit_s,
            "trial_s": trial_s(found.fastest_step_s),
            "flag": flag,
            "typed_bytes": typed_bytes,
            "typed_seconds": typed_seconds,
        },
    )
