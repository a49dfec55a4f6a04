"""The smallest changes with which a job fits, where no candidate of its plan does."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np

from autotune.base.data import shipped_spaces
from autotune.base.errors import AutotuneError
from autotune.base.units import format_bytes, typed_bytes
from autotune.cost import Plans, Prediction
from autotune.engines.base import Engine, find_engine
from autotune.job.job import DEFAULT_SPACE, Job
from autotune.planning.choices import CHANCES, MIN_FIT, ordered
from autotune.planning.lattice import Lattice, build_lattice, lattice_of
from autotune.planning.outlook import PLAN_SPACE, Outlook
from autotune.space.candidate import Candidate
from autotune.space.space import load_space

_WORLDS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Factors by which a larger world is tried."""
_LENGTHS = (2, 4, 8, 16, 32, 64)
"""Divisors by which shorter samples are tried."""
_LEAST_TOKENS = 512
_SMALLEST = 500
"""Candidates, the smallest ones, that more memory is tried with."""
_MOST_MEMORY = 2.0**20
"""Factor of the memory that is tried, at most."""
_MEMORY_STEP = 1.01
"""Factor by which the memory that is named may be too large."""


@dataclass(frozen=True, kw_only=True)
class WayToFit:
    """A change of the job or the fleet with which a candidate fits."""

    flags: str
    """What asks for it, such as `--world 64`."""
    described: str
    """The candidate that fits then."""
    fit_probability: float


def ways_to_fit(outlook: Outlook, found: Prediction) -> tuple[WayToFit, ...]:
    """The smallest world, device, memory and other change of the job with which something fits."""
    place = outlook.lattice.first_legal(np.argsort(found.peak_memory_bytes, kind="stable"))
    assert place is not None, "a lattice has a legal candidate"
    smallest = outlook.lattice.candidates[place]
    ways = (
        _larger_world(outlook, smallest),
        _more_memory(outlook, found),
        _other_space(outlook, smallest),
        _shorter_samples(outlook, smallest),
    )
    return tuple(way for way in ways if way is not None)


def _larger_world(outlook: Outlook, smallest: Candidate) -> WayToFit | None:
    worlds = [outlook.job.world * factor for factor in _WORLDS]
    jobs = {f"--world {n}": dataclasses.replace(outlook.job, world=n) for n in worlds}
    return _first_fitting(outlook, jobs, smallest)


def _shorter_samples(outlook: Outlook, smallest: Candidate) -> WayToFit | None:
    lengths = [outlook.job.seq_len // divisor for divisor in _LENGTHS]
    jobs = {
        f"--seq-len {n}": dataclasses.replace(outlook.job, seq_len=n)
        for n in lengths
        if n >= _LEAST_TOKENS
    }
    return _first_fitting(outlook, jobs, smallest)


def _first_fitting(
    outlook: Outlook, jobs: Mapping[str, Job], smallest: Candidate
) -> WayToFit | None:
    """The first of some jobs, by their flags, that surely fits; else the first that may well."""
    fallback = None
    for flags, job in jobs.items():
        way = _fitting(outlook, job, smallest, flags)
        if way is not None and way.fit_probability >= MIN_FIT:
            return way
        fallback = fallback or way
    return fallback


def _other_space(outlook: Outlook, smallest: Candidate) -> WayToFit | None:
    """The first shipped space of the engine that has a candidate that fits."""
    if outlook.job.script is not None:
        return None
    knobs, names = outlook.lattice.context.knobs, shipped_spaces(outlook.job.engine)
    jobs = {
        f"--space {name}": dataclasses.replace(outlook.job, space=name)
        for name in sorted(names, key=lambda name: name != PLAN_SPACE)
        if name != outlook.job.space
        and not any(
            knobs[knob].changes_training
            for knob in load_space(name, knobs, outlook.job.engine).domains
        )
    }
    return _first_fitting(outlook, jobs, smallest)


def _more_memory(outlook: Outlook, found: Prediction) -> WayToFit | None:
    """The least memory with which something fits, and the smallest accelerator that has it."""
    smallest = np.argsort(found.peak_memory_bytes, kind="stable").tolist()
    rows = np.array(list(islice(filter(outlook.lattice.is_legal, smallest), _SMALLEST)))
    plans = found.plans.take(rows)
    low, high = 1.0, 2.0
    there = float(np.max(plans.memory_bytes))
    while not _fits(outlook, plans, high * there):
        low, high = high, 2 * high
        if high > _MOST_MEMORY:
            return None
    while high / low > _MEMORY_STEP:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _fits(outlook, plans, middle * there) else (middle, high)
    at = _with_memory(plans, high * there)
    predicted = outlook.predict_plans(at)[0]
    best = int(ordered(predicted, min_fit=MIN_FIT)[0])
    device_bytes = high * outlook.environment.device_memory_bytes
    return WayToFit(
        flags=_memory_in_words(outlook, high * there, device_bytes),
        described=outlook.engine.describe(outlook.lattice.candidates[int(rows[best])]),
        fit_probability=float(predicted.fit_probability[best]),
    )


def _memory_in_words(outlook: Outlook, allowed_bytes: float, device_bytes: float) -> str:
    job, there = outlook.job, outlook.environment.device_memory_bytes
    if job.memory_limit_bytes and allowed_bytes / (1 - job.head_room) <= there:
        return f"--memory-limit {typed_bytes(allowed_bytes / (1 - job.head_room))}"
    larger = [
        each
        for each in outlook.table
        if each.memory_bytes >= device_bytes
        and each.name != "CPU"
        and job.precision in (*each.peak_flops, "fp32")
    ]
    smallest = min(larger, key=lambda each: each.memory_bytes, default=None)
    named = "" if smallest is None else f", such as --gpu {smallest.name}"
    return f"accelerators of {format_bytes(device_bytes)} or more{named}"


def _fits(outlook: Outlook, plans: Plans, memory_bytes: float) -> bool:
    predicted = outlook.predict_plans(_with_memory(plans, memory_bytes))[0]
    return bool((predicted.fit_probability >= MIN_FIT).any())


def _with_memory(plans: Plans, memory_bytes: float) -> Plans:
    return dataclasses.replace(plans, memory_bytes=memory_bytes)


def _fitting(outlook: Outlook, job: Job, smallest: Candidate, flags: str) -> WayToFit | None:
    """The best small candidate of another job; None: none may well fit."""
    other = dataclasses.replace(outlook, job=job)
    engine = other.engine
    try:
        lattice = _small_lattice(job, engine, smallest)
        predicted = dataclasses.replace(other, lattice=lattice).predict(lattice.candidates)
    except AutotuneError:  # the rules refuse everything there
        return None
    best = lattice.first_legal(ordered(predicted, min_fit=MIN_FIT))
    if best is None or predicted.fit_probability[best] < CHANCES[0]:
        return None
    return WayToFit(
        flags=flags,
        described=engine.describe(lattice.candidates[best]),
        fit_probability=float(predicted.fit_probability[best]),
    )


def _small_lattice(job: Job, engine: Engine, smallest: Candidate) -> Lattice:
    """The legal candidates that are like the smallest one in all that saves no memory.

    Raises:
        AutotuneError: There are none.
    """
    if find_engine(job.engine).lays_out and job.space == DEFAULT_SPACE:
        return lattice_of(job, engine)
    space, plugin = engine.space, find_engine(job.engine)
    free = {*plugin.predicted, *(name for name, _, _ in plugin.saves_memory)} - {"micro_batch"}
    domains = {}
    for name, domain in space.domains.items():
        values = domain.values
        if name not in free:
            value = smallest.get(name)
            values = (value,) if value is not None and value in values else values[:1]
        domains[name] = dataclasses.replace(domain, values=values)
    return build_lattice(dataclasses.replace(space, domains=domains), engine, most_counted=0)
