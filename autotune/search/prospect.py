"""What a search can expect before its first trial: what fits, and how long a trial takes."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.base.data import shipped_spaces
from autotune.base.errors import AutotuneError, JobError
from autotune.base.units import format_bytes, format_seconds, typed_bytes, typed_seconds
from autotune.contract import KnobValue
from autotune.cost.constants import constants_of
from autotune.cost.predict import predict
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine, bind_engine
from autotune.job.job import Job
from autotune.planning.choices import MIN_FIT
from autotune.search.climb import CERTAIN
from autotune.search.history import History
from autotune.search.steering import MODEL_MARGIN, Steering
from autotune.search.trial_spec import MEASURE
from autotune.space.candidate import Candidate, format_value
from autotune.space.knobs import canonical
from autotune.space.space import load_space

START_S = 12.0
"""Seconds of a cold trial of a small model until its first step, on a slow machine."""
TIME_MARGIN = 3.0
"""Factor by which a predicted step time may be wrong before any trial."""
MOST_CHANGES = 6
"""Knobs that are changed, at most, to make a candidate fit."""
_WORLDS = tuple(2**k for k in range(1, 9))
"""Factors by which more accelerators are tried."""


@dataclass(frozen=True, kw_only=True)
class Prospect:
    """What is predicted of a search's trials."""

    n_fit: int
    """Candidates that fit at least as surely as `planning.choices.MIN_FIT`."""
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


def prospect_of(
    steering: Steering, history: History, job: Job, engine: Engine, environment: Environment
) -> Prospect:
    """What the forecast says of a search's trials, by what was measured so far.

    Lessons of other studies correct the time that is shown, and nothing else: they make the
    forecast of a much larger model less sure, not less true.

    Raises:
        FleetError: The accelerator is in no table.
        JobError: The model's sizes cannot be seen.
    """
    taught, steering = steering, steering.untaught
    own: Sequence[Candidate] = steering.lattice.candidates
    rungs: list[Candidate] = []
    if job.baseline is None:
        rungs = [c for rung in engine.ladder() for c in rung if not engine.judge(c)]

    def at_row(row: int) -> Candidate:
        """The candidate of a row: a lattice makes those alone that are asked for."""
        return own[row] if row < len(own) else rungs[row - len(own)]

    forecasts = [steering.forecast(each) for each in (own, rungs) if each]
    seconds = np.concatenate([each.seconds for each in forecasts])
    peaks = np.concatenate(
        [np.zeros(len(each)) if each.peak_bytes is None else each.peak_bytes for each in forecasts]
    )
    risk = np.concatenate([steering.risk(history, own), steering.risk(history, rungs)])
    fits = risk <= 1 - MIN_FIT
    rows = np.flatnonzero(fits) if fits.any() else np.arange(len(seconds))
    steps_s = seconds[rows]
    typical = int(rows[np.argsort(steps_s)[len(rows) // 2]])
    correction = _correction(taught, history, at_row(typical), predicted_s=float(seconds[typical]))
    allowed_bytes = steering.objective.allowed_bytes
    found = Prospect(
        n_fit=int(fits[: len(own)].sum()),
        n_candidates=len(own),
        least_peak_bytes=float(peaks.min()),
        allowed_bytes=allowed_bytes,
        step_s=float(np.median(steps_s)) * correction,
        fastest_step_s=float(steps_s.min()),
    )
    if any(tried.measured is not None for tried in history.tried):
        return found  # one has succeeded
    is_above = found.least_peak_bytes >= MODEL_MARGIN * allowed_bytes
    if steering.knows_memory and risk.min() >= CERTAIN and (is_above or _is_host(steering)):
        least = at_row(int(peaks.argmin()))
        return dataclasses.replace(
            found,
            problem=_too_large(found, steering, history, least),
            nearest="; or ".join(_more_memory(found, steering, job, engine, environment, least)),
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


def _is_host(steering: Steering) -> bool:
    return len(steering.above_host) == len(steering.lattice.candidates)


def _correction(
    steering: Steering, history: History, typical: Candidate, *, predicted_s: float
) -> float:
    """Factor by which measured steps, here and in other studies, differ from the forecast."""
    if steering.recalled is None and not history.tried:
        return 1.0
    return steering.predict(history, typical).step_time_s / predicted_s


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
    limits = [("--trial-timeout", job.trial_timeout_s)]
    if job.budget.time_s is not None:
        limits.append(("--budget", job.budget.time_s))
    return min(limits, key=lambda limit: limit[1])


def _more_memory(
    found: Prospect,
    steering: Steering,
    job: Job,
    engine: Engine,
    environment: Environment,
    least: Candidate,
) -> Iterator[str]:
    """Changes with which something is predicted to fit, in words."""
    allowed_bytes = found.allowed_bytes / math.sqrt(MODEL_MARGIN)
    if changes := _fitting_changes(engine, job, steering, least):
        settings = " ".join(f"{n}={format_value(v)}" for n, v in changes.items())
        name = _shipped_space(engine, job, steering, least, changes)
        yield f"--space {name}, which has {settings}" if name else f"a space with {settings}"
    if world := _fitting_world(job, environment, allowed_bytes):
        yield f"--world {world}"
    more_bytes = found.least_peak_bytes * math.sqrt(MODEL_MARGIN)
    if job.memory_limit_bytes:
        yield f"--memory-limit {typed_bytes(more_bytes)} or more"
    else:
        yield f"devices with {format_bytes(more_bytes)} each"


def _fitting_changes(
    engine: Engine, job: Job, steering: Steering, least: Candidate
) -> dict[str, KnobValue]:
    """Knobs that make a candidate fit when they are changed together; empty: none are found.

    One or two are changed at a time, those that save most: alone, offload without its ZeRO stage
    is no change, and the stage saves nothing on one device. In the end what is not needed is left
    out again. What the rules refuse is no change.
    """
    changes: dict[str, KnobValue] = {}
    at = least
    while not _fits(steering, at):
        if (
            len(changes) >= MOST_CHANGES
            or (step := _saving_step(engine, job, steering, at)) is None
        ):
            return {}
        at, changed = step
        changes |= changed
    for name in tuple(changes):
        fewer = {other: value for other, value in changes.items() if other != name}
        without = _changed(engine, job, least, fewer)
        if without is not None and not engine.judge(without) and _fits(steering, without):
            changes = fewer
    return changes


def _shipped_space(
    engine: Engine,
    job: Job,
    steering: Steering,
    least: Candidate,
    changes: Mapping[str, KnobValue],
) -> str:
    """The shipped space that has a candidate with some changes that fits; empty: none has.

    Of several the one in which the fewest knobs change what is trained, then the smallest.
    """
    found: dict[str, tuple[int, int]] = {}
    knobs = engine.context.knobs
    for name in shipped_spaces():
        try:
            domains = load_space(name, knobs, engine.name).domains
        except JobError:  # of another engine
            continue
        wanted = {**least.values, **changes}
        inside = {knob: wanted[knob] for knob in domains if knob in wanted}
        if not changes.keys() <= inside.keys() or any(
            domains[knob].when or value not in domains[knob].values
            for knob, value in inside.items()
        ):
            continue
        empty = Candidate.of({}, world=job.world, global_batch=job.global_batch)
        candidate = _changed(engine, job, empty, inside)
        if candidate is None or engine.judge(candidate) or not _fits(steering, candidate):
            continue
        n_changing = sum(bool(knobs[knob].changes_training) for knob in domains)
        found[name] = n_changing, math.prod(len(each.values) for each in domains.values())
    return min(found, key=found.__getitem__, default="")


def _fits(steering: Steering, candidate: Candidate) -> bool:
    return float(steering.risk(History(), [candidate])[0]) <= 1 - MIN_FIT


def _saving_step(
    engine: Engine, job: Job, steering: Steering, at: Candidate
) -> tuple[Candidate, dict[str, KnobValue]] | None:
    """The legal step from a candidate that saves most memory, of one knob or two; None: none."""
    one = _steps(engine, job, at)
    steps = dict(one)
    for first, changed in one.items():
        for second, more in _steps(engine, job, first).items():
            if second != at:
                steps.setdefault(second, changed | more)
    others = list(steps)
    if not others:
        return None
    over_now = float(steering.overrun(History(), [at])[0])
    over = steering.overrun(History(), others)
    for row in np.argsort(over, kind="stable").tolist():
        if over[row] >= over_now:
            return None
        if not engine.judge(others[row]):
            return others[row], steps[others[row]]
    return None


def _steps(engine: Engine, job: Job, at: Candidate) -> dict[Candidate, dict[str, KnobValue]]:
    """Candidates that one knob tells from a candidate, each with that knob."""
    found: dict[Candidate, dict[str, KnobValue]] = {}
    for name, value in engine.steps(at):
        other = _changed(engine, job, at, {name: value})
        if other is not None and other != at:
            found.setdefault(other, {name: value})
    return found


def _changed(
    engine: Engine, job: Job, at: Candidate, changes: Mapping[str, KnobValue]
) -> Candidate | None:
    """A candidate with some knobs changed; None where one of them does not act then."""
    values = canonical({**at.values, **changes}, engine.context)
    other = Candidate.of(values, world=job.world, global_batch=job.global_batch)
    return other if all(other.get(name) == value for name, value in changes.items()) else None


def _fitting_world(job: Job, environment: Environment, allowed_bytes: float) -> int | None:
    """The smallest larger world on which the baseline's ladder has a candidate that fits."""
    for factor in _WORLDS:
        world: int = job.world * factor
        if job.global_batch % world:
            return None
        wider = dataclasses.replace(job, world=world)
        try:
            engine = bind_engine(wider, environment)
            rungs = [candidate for rung in engine.ladder() for candidate in rung]
            peaks = predict(engine.plans(rungs), constants_of(environment)).peak_memory_bytes
        except AutotuneError:
            return None
        fitting: list[int] = np.flatnonzero(peaks <= allowed_bytes).tolist()
        if any(not engine.judge(rungs[row]) for row in fitting):
            return world
    return None
