"""The smallest changes with which a job fits, where no candidate of its plan does."""

import dataclasses
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from autotune.base.data import shipped_spaces
from autotune.base.units import format_bytes, typed_bytes
from autotune.cost import Prediction
from autotune.engines.base import find_engine
from autotune.job.job import PLAN_SPACE
from autotune.planning.choices import CHANCES, ordered
from autotune.planning.lattice import Lattice, build_lattice, laid, lattice_of
from autotune.planning.other_job import OtherJob, rank_other_job
from autotune.planning.outlook import Outlook
from autotune.space.candidate import Candidate
from autotune.space.space_file import load_space

_WORLDS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Factors by which a larger world is tried."""
_LENGTHS = (2, 4, 8, 16, 32, 64)
"""Divisors by which shorter samples are tried."""
_LEAST_TOKENS = 512
_SMALLEST = 500
"""Candidates, the smallest ones, that more memory is tried with."""
_MEMORY_STEP = 1.01
"""Factor by which the memory that is named may be too large."""
_MOST_STEPS = 1_400
"""Steps of more memory that are tried, at most: a million times as much."""


def ways_to_fit(outlook: Outlook, found: Prediction, *, min_fit: float) -> tuple[OtherJob, ...]:
    """The smallest world, device, memory and other change of the job with which something fits.

    It does with a probability of `min_fit` or more; where nothing does, with a half or more.
    """
    place = outlook.lattice.first_legal(np.argsort(found.peak_memory_bytes, kind="stable"))
    assert place is not None, "a lattice has a legal candidate"
    smallest = outlook.lattice.candidates[place]
    first_fitting = partial(_first_fitting, outlook, smallest, min_fit)
    worlds = [outlook.job.world * factor for factor in _WORLDS]
    lengths = [outlook.job.seq_len // divisor for divisor in _LENGTHS]
    shorter = [length for length in lengths if length >= _LEAST_TOKENS]
    ways = (
        first_fitting({f"--world {n}": {"world": n} for n in worlds}),
        _more_memory(outlook, found, min_fit=min_fit),
        _more_host_memory(outlook, found, min_fit=min_fit),
        first_fitting(_other_spaces(outlook)),
        first_fitting({f"--seq-len {n}": {"seq_len": n} for n in shorter}),
    )
    return tuple(way for way in ways if way is not None)


def _first_fitting(
    outlook: Outlook, smallest: Candidate, min_fit: float, changes: Mapping[str, Mapping[str, Any]]
) -> OtherJob | None:
    """The first of some changes, by their flags, that surely fits; else one that may well."""
    fallback, lattice = None, partial(_small_lattice, smallest)
    for flags, changed in changes.items():
        way = rank_other_job(outlook, flags, changed, min_fit=min_fit, lattice=lattice)
        if way is not None and way.fit_probability >= min_fit:
            return way
        if way is not None and way.fit_probability >= CHANCES[0]:
            fallback = fallback or way
    return fallback


def _small_lattice(smallest: Candidate, there: Outlook) -> Lattice:
    """The legal candidates that are like the smallest one in all that saves no memory.

    Raises:
        AutotuneError: There are none.
    """
    engine, plugin = there.engine, find_engine(there.job.engine)
    if plugin.lays_out and there.job.space == PLAN_SPACE:
        smaller = engine.layouts(saves_memory=True)
        return lattice_of(engine) if smaller is None else laid(smaller, engine)
    space = engine.space
    free = {*plugin.predicted, *(name for name, _, _ in plugin.saves_memory)}
    domains = {}
    for name, domain in space.domains.items():
        values = domain.values
        if name not in free - {"micro_batch"}:
            value = smallest.get(name)
            values = (value,) if value is not None and value in values else values[:1]
        domains[name] = dataclasses.replace(domain, values=values)
    return build_lattice(dataclasses.replace(space, domains=domains), engine, most_counted=0)


def _other_spaces(outlook: Outlook) -> dict[str, Mapping[str, Any]]:
    """The shipped spaces of the engine that train the same numbers, the plan's own one first."""
    if outlook.job.script is not None:
        return {}
    knobs, names = outlook.lattice.context.knobs, shipped_spaces(outlook.job.engine)
    return {
        f"--space {name}": {"space": name}
        for name in sorted(names, key=lambda name: name != PLAN_SPACE)
        if name != outlook.job.space
        and not any(
            knobs[knob].changes_training
            for knob in load_space(name, knobs, outlook.job.engine).domains
        )
    }


def _more_memory(outlook: Outlook, found: Prediction, *, min_fit: float) -> OtherJob | None:
    """The least memory with which something fits, and the smallest accelerator that has it."""
    smallest = np.argsort(found.peak_memory_bytes, kind="stable").tolist()
    rows = np.array(list(islice(filter(outlook.lattice.is_legal, smallest), _SMALLEST)))
    plans = found.plans.take(rows)

    def predicted(factor: float) -> Prediction:
        at = dataclasses.replace(plans, memory_bytes=factor * there)
        return outlook.predict_plans(at)[0]

    def fits(n_steps: int) -> bool:
        return bool((predicted(_MEMORY_STEP**n_steps).fit_probability >= min_fit).any())

    there = float(np.max(plans.memory_bytes))
    n_steps = bisect_left(range(_MOST_STEPS), True, key=fits)
    if n_steps == _MOST_STEPS:
        return None
    factor = _MEMORY_STEP**n_steps
    at = predicted(factor)
    best = int(ordered(at, min_fit=min_fit)[0])
    device_bytes = factor * outlook.environment.device_memory_bytes
    candidates = [outlook.lattice.candidates[row] for row in rows.tolist()]
    flags = _memory_in_words(outlook, factor * there, device_bytes, candidates, min_fit)
    return OtherJob.of_row(flags, outlook, candidates[best], at, best)


def _more_host_memory(outlook: Outlook, found: Prediction, *, min_fit: float) -> OtherJob | None:
    """The least memory of a node's host with which something fits, where hosts have less."""
    most_bytes = int(np.ceil(found.host_memory_bytes.max()))
    if most_bytes <= outlook.host_limit_bytes:
        return None
    job = dataclasses.replace(outlook.job, host_memory_bytes=most_bytes)
    there = dataclasses.replace(outlook, job=job)
    at = there.predict_plans(found.plans)[0]
    order = np.lexsort((at.step_time_s, at.host_memory_bytes))
    best = outlook.lattice.first_legal(order[at.fit_probability[order] >= min_fit])
    if best is None:
        return None
    flags = f"--host-memory {typed_bytes(at.host_memory_bytes[best])}"
    return OtherJob.of_row(flags, there, there.lattice.candidates[best], at, best)


def _memory_in_words(
    outlook: Outlook,
    allowed_bytes: float,
    device_bytes: float,
    candidates: Sequence[Candidate],
    min_fit: float,
) -> str:
    """So much memory, and the smallest accelerator with it on which one of the candidates fits."""
    job, there = outlook.job, outlook.environment.device_memory_bytes
    if job.memory_limit_bytes and allowed_bytes / (1 - job.head_room) <= there:
        return f"--memory-limit {typed_bytes(allowed_bytes / (1 - job.head_room))}"
    larger = (
        outlook.on(accelerator.name)
        for accelerator in sorted(outlook.table, key=lambda one: one.memory_bytes)
        if accelerator.memory_bytes >= device_bytes
        and accelerator.name != "CPU"
        and job.precision in (*accelerator.peak_flops, "fp32")
    )
    # Intervals are wider on accelerators that few have measured.
    fitting = (one for one in larger if one.predict(candidates).fit_probability.max() >= min_fit)
    such = next((f", such as --gpu {one.wishes.gpu}" for one in fitting), "")
    return f"accelerators of {format_bytes(device_bytes)} or more{such}"
