"""What the cost model says of a job's candidates on a fleet, here or described; nothing runs."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.app.outlook import FleetWishes, Outlook
from autotune.app.session import read_job
from autotune.base.errors import JobError
from autotune.base.units import parse_bytes, parse_rate
from autotune.cost import Prediction
from autotune.cost.constants import constants_of
from autotune.devices.described import described
from autotune.devices.hardware import detect_environment
from autotune.engines.base import bind_engine, find_engine
from autotune.export.door import export_handout, handout_of
from autotune.job.job import DEFAULT_ENGINE, read_accelerators_of
from autotune.planning.lattice import lattice_of
from autotune.report.explain.ranking import Ranking, Variant, ranking_as_dict

MIN_FIT = 0.9
"""A candidate that fits less surely than this is ranked behind all that do."""


def open_outlook(
    job_file: Path | None,
    flags: Mapping[str, Any],
    wishes: FleetWishes,
    *,
    engine: str = DEFAULT_ENGINE,
) -> Outlook:
    """Read the job, and find out what is legal for it on the fleet.

    Args:
        job_file: YAML, or None.
        flags: Keys of the job that come before the file's.
        wishes: The fleet.
        engine: Name of an installed one.

    Raises:
        JobError: The job, the space, the table or a description is not valid, or there is no such
            engine.
        FleetError: The accelerator is in no table.
        NothingFeasibleError: The rules refuse everything.
    """
    find_engine(engine, where="--engine")
    wishes.links()  # a wrong rate is said before anything is computed
    table = read_accelerators_of(job_file, wishes.accelerators or flags.get("accelerators"))
    here = detect_environment()
    environment = (
        here if wishes.gpu is None else described(wishes.gpu, wishes.per_node, here, table)
    )
    job, keys = read_job(job_file, {**flags, "engine": engine}, environment)
    if wishes.accelerators is not None:
        job = dataclasses.replace(job, accelerators=wishes.accelerators)
    lattice = lattice_of(job, bind_engine(job, environment))
    if lattice.is_laid_out and keys.get("space") is not None:
        raise JobError(
            f"engine {engine}: space: all its legal candidates are ranked, not those of a space",
            "leave it out",
        )
    return Outlook(job=job, environment=environment, wishes=wishes, lattice=lattice)


def rank_lattice(
    outlook: Outlook,
    *,
    min_fit: float = MIN_FIT,
    price_per_hour: float | None = None,
    what_if: Sequence[str] = (),
) -> Ranking:
    """Rank the lattice.

    Args:
        outlook: The job and the fleet.
        min_fit: Candidates that fit less surely come last.
        price_per_hour: Of one accelerator; None where nobody said.
        what_if: `key=value` each; what the fleet would be otherwise.

    Raises:
        JobError: A wish is not one.
    """
    candidates = outlook.lattice.candidates
    found = outlook.predict(candidates)
    order = ranked(found, min_fit)
    return Ranking(
        job=outlook.job,
        environment=outlook.environment,
        candidates=candidates,
        describe=outlook.engine.describe,
        prediction=found,
        order=order,
        on_front=_front(found, order, min_fit),
        min_fit=min_fit,
        price_per_hour=price_per_hour,
        time_sigma=constants_of(outlook.environment).time_sigma,
        variants=tuple(
            _variant(outlook, wish, best=int(order[0]), min_fit=min_fit) for wish in what_if
        ),
    )


def ranked(found: Prediction, min_fit: float) -> NDArray[np.intp]:
    """Indices of candidates, fastest first; after them those that may not fit, surest first."""
    return _in_order(found.step_time_s, found.fit_probability, min_fit)


def place_of(candidate: Prediction, others: Prediction, min_fit: float) -> int:
    """The rank that one candidate would have among others, from 1; it comes after its equals."""
    times_s = np.append(others.step_time_s, candidate.step_time_s)
    fit = np.append(others.fit_probability, candidate.fit_probability)
    order = _in_order(times_s, fit, min_fit)
    return int(np.flatnonzero(order == len(order) - 1)[0]) + 1


def _in_order(
    times_s: NDArray[np.float64], fit: NDArray[np.float64], min_fit: float
) -> NDArray[np.intp]:
    fits = fit >= min_fit
    return np.lexsort((times_s, np.where(fits, 0.0, -fit), ~fits))


def export_ranked(
    outlook: Outlook, kept: Ranking, rank: int, folder: Path, to: str | None = None
) -> list[Path]:
    """Write the files of a ranked candidate, with what was predicted of it.

    Args:
        outlook: The job and the fleet.
        kept: Its lattice, ranked.
        rank: From 1.
        folder: Where to.
        to: Name of a dialect; None: the engine's own.

    Raises:
        JobError: There is no such rank or dialect.
        RenderError: The folder cannot be written, or the dialect is another engine's.
    """
    if not 1 <= rank <= len(kept.candidates):
        raise JobError(
            f"--rank {rank}: there are {len(kept.candidates)} candidates", "1 is the best one"
        )
    handout = handout_of(
        kept.candidates[int(kept.order[rank - 1])],
        engine=outlook.engine,
        job=outlook.job,
        environment=outlook.environment,
        prediction=ranking_as_dict(kept, [rank])["candidates"][0],
    )
    return export_handout(handout, folder, to=to or find_engine(outlook.job.engine).dialect)


_CHANGES: Mapping[str, str] = {
    "bandwidth": "network",
    "network": "network",
    "nvlink": "nvlink",
    "gpu": "gpu",
    "memory": "memory",
    "per_node": "per_node",
}
"""Key of a what-if -> what it changes."""


def _variant(outlook: Outlook, wish: str, *, best: int, min_fit: float) -> Variant:
    """The lattice on another fleet; what is legal is not asked again."""
    key, equals, value = (part.strip() for part in wish.partition("="))
    if not equals or not value or key not in _CHANGES:
        raise JobError(
            f"--what-if {wish}: not a change of the fleet",
            f"write it as bandwidth=20Gbps; keys: {', '.join(_CHANGES)}",
        )
    other = _CHANGED[_CHANGES[key]](outlook, value, f"--what-if {wish}")
    found = other.predict(outlook.lattice.candidates)
    first = int(ranked(found, min_fit)[0])
    return Variant(
        change=f"{key}={value}",
        best=first,
        step_time_s=float(found.step_time_s[first]),
        fit_probability=float(found.fit_probability[first]),
        same_step_time_s=float(found.step_time_s[best]),
        same_fit_probability=float(found.fit_probability[best]),
    )


def _with_link(name: str) -> Callable[[Outlook, str, str], Outlook]:
    def change(outlook: Outlook, value: str, where: str) -> Outlook:
        parse_rate(value, where=where)
        wishes = outlook.wishes
        if name == "network":
            return dataclasses.replace(outlook, wishes=dataclasses.replace(wishes, network=value))
        return dataclasses.replace(outlook, wishes=dataclasses.replace(wishes, nvlink=value))

    return change


def _with_gpu(outlook: Outlook, value: str, _: str) -> Outlook:
    wishes = dataclasses.replace(outlook.wishes, gpu=value)
    environment = described(value, wishes.per_node, outlook.environment, outlook.table)
    return dataclasses.replace(outlook, wishes=wishes, environment=environment)


def _with_memory(outlook: Outlook, value: str, where: str) -> Outlook:
    job = dataclasses.replace(outlook.job, memory_limit_bytes=parse_bytes(value, where=where))
    return dataclasses.replace(outlook, job=job)


def _with_per_node(outlook: Outlook, value: str, where: str) -> Outlook:
    if not value.isdecimal() or not 1 <= int(value) <= outlook.job.world:
        raise JobError(
            f"{where}: {value!r} is not a number of devices of a node",
            f"a whole number from 1 to {outlook.job.world}",
        )
    environment = dataclasses.replace(outlook.environment, n_devices=int(value))
    return dataclasses.replace(outlook, environment=environment)


_CHANGED: Mapping[str, Callable[[Outlook, str, str], Outlook]] = {
    "network": _with_link("network"),
    "nvlink": _with_link("nvlink"),
    "gpu": _with_gpu,
    "memory": _with_memory,
    "per_node": _with_per_node,
}


def _front(found: Prediction, order: NDArray[np.intp], min_fit: float) -> frozenset[int]:
    """Those that fit and that no faster one beats in memory as well.

    With the fleet given, cost goes with time, so time and memory are all there is to weigh.
    """
    n_fitting = int((found.fit_probability >= min_fit).sum())
    fitting = order[:n_fitting]
    peaks = found.peak_memory_bytes[fitting]
    least = np.minimum.accumulate(np.concatenate([[np.inf], peaks]))[:-1]
    return frozenset(int(index) for index in fitting[peaks < least])
