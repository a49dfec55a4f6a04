"""The lattice of a job on a fleet, ranked by the cost model, and how other fleets compare."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.base.errors import AutotuneError, JobError
from autotune.base.names import did_you_mean
from autotune.base.units import parse_bytes, parse_rate
from autotune.contract import is_count
from autotune.cost import Prediction
from autotune.cost.errors import Margin
from autotune.cost.problem import accelerator_of, topology_of
from autotune.devices.hardware import Environment
from autotune.devices.topology import TOPOLOGY_KEYS, Topology, changed
from autotune.job.job import Job
from autotune.planning.lattice import lattice_of
from autotune.planning.learned import Learned
from autotune.planning.outlook import Outlook, described
from autotune.space.candidate import Candidate

_LEAST_GAIN = 1.05
"""Gain from which another global batch is worth a word."""
_LEAST_GAIN_ELSEWHERE = 1.3
"""Gain from which another space or engine is: about what the predictions may be wrong by."""
MIN_FIT = 0.9
"""A candidate that fits less surely than this is ranked behind all that do."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The same lattice on another fleet."""

    change: str
    """`bandwidth=20Gbps`."""
    best: int
    """Index of the best there."""
    step_time_s: float
    fit_probability: float
    same_step_time_s: float
    """Step time there of the best candidate of the fleet as it is."""
    same_fit_probability: float


@dataclass(frozen=True, kw_only=True)
class OtherBatch:
    """The nearest global batch that all ranks can share as data, where the job's is none."""

    global_batch: int
    described: str
    """The fastest candidate there that a careful user would start from."""
    speedup: float
    """Samples/s of that candidate over those of the best one of the job's own batch."""


@dataclass(frozen=True, kw_only=True)
class FasterElsewhere:
    """The best of the same job in another space, or under another engine."""

    flags: str
    """What asks for it, such as `--space moe`."""
    described: str
    speedup: float
    """Samples/s over those of the best of the job as it is."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranking:
    """The candidates of a lattice, ranked without a trial."""

    job: Job
    environment: Environment
    home: str
    """The set that holds the candidates, in words."""
    candidates: Sequence[Candidate]
    describe: Callable[[Candidate], str]
    """A candidate in words."""
    prediction: Prediction
    order: NDArray[np.intp]
    """Indices of candidates, best first."""
    on_front: frozenset[int]
    """Indices of those that no other beats in time and memory both."""
    min_fit: float
    price_per_hour: float | None
    """Price of one accelerator."""
    reach: Margin
    """How far measured figures may be from the predicted ones, by candidate."""
    variants: tuple[Variant, ...]
    needs: Callable[[Candidate], tuple[str, ...]]
    """Packages that nodes must have for a candidate, as of `Outlook.needs`."""
    no_files: str = ""
    """Why no file can be made for the job, as of `Engine.no_files`."""
    learned: Learned | None = None
    """Trials that corrected the predictions; None: there were none on such devices."""
    other_batch: OtherBatch | None = None
    """None: it would gain nothing."""
    baseline: "PredictedBaseline | None" = None
    """None: the user named no configuration of their own."""
    spread_experts: tuple[FasterElsewhere, ...] = ()
    """What trains a mixture of experts much faster than ranks that gather all of them."""

    @property
    def n_likely(self) -> int:
        """Candidates that fit at least as surely as `min_fit`."""
        return int((self.prediction.fit_probability >= self.min_fit).sum())


@dataclass(frozen=True, kw_only=True)
class PredictedBaseline:
    """The user's own configuration, and what is predicted of it."""

    path: str
    described: str
    candidate: Candidate
    prediction: Prediction
    reach: Margin
    """How far measured figures may be from it."""
    notes: Mapping[str, tuple[Any, ...]]
    """Keys or arguments that no knob carries: what the user gave, and what is predicted with."""


def rank_lattice(
    outlook: Outlook,
    *,
    min_fit: float = MIN_FIT,
    price_per_hour: float | None = None,
    what_if: Sequence[str] = (),
) -> Ranking:
    """Rank the lattice.

    Candidates that fit less surely than `min_fit` come last. A what-if is a `key=value`: what the
    fleet would be otherwise.

    Raises:
        JobError: A wish is not one.
    """
    candidates = outlook.lattice.candidates
    found, reach = outlook.predict_plans(outlook.plans(candidates))
    order = ranked(*_judged(found), min_fit=min_fit)
    return Ranking(
        job=outlook.job,
        environment=outlook.environment,
        home=outlook.home,
        candidates=candidates,
        describe=outlook.engine.describe,
        prediction=found,
        order=order,
        on_front=_front(found, order, min_fit),
        min_fit=min_fit,
        price_per_hour=price_per_hour,
        reach=reach,
        needs=outlook.needs,
        no_files=outlook.engine.no_files(),
        learned=outlook.learned,
        other_batch=_other_batch(outlook, float(found.step_time_s[order[0]]), min_fit=min_fit),
        baseline=_baseline(outlook),
        spread_experts=_spread_experts(
            outlook, candidates[order[0]], float(found.step_time_s[order[0]]), min_fit=min_fit
        ),
        variants=tuple(
            _variant(outlook, wish, best=int(order[0]), min_fit=min_fit) for wish in what_if
        ),
    )


def _other_batch(outlook: Outlook, best_s: float, *, min_fit: float) -> OtherBatch | None:
    """What another batch gains where no candidate has all ranks in data parallel groups.

    The candidates of the engine's ladder alone are predicted there.
    """
    job = outlook.job
    if job.global_batch % job.world == 0:
        return None
    nearest = max(1, round(job.global_batch / job.world)) * job.world
    other = dataclasses.replace(outlook, job=dataclasses.replace(job, global_batch=nearest))
    engine = other.engine
    legal = [each for rung in engine.ladder() for each in rung if not engine.judge(each)]
    if not legal:
        return None
    found = other.predict(legal)
    order = ranked(*_judged(found), min_fit=min_fit)
    first = int(order[0])
    speedup = nearest / float(found.step_time_s[first]) * best_s / job.global_batch
    if speedup < _LEAST_GAIN or found.fit_probability[first] < min_fit:
        return None
    return OtherBatch(
        global_batch=nearest, described=engine.describe(legal[first]), speedup=speedup
    )


def _spread_experts(
    outlook: Outlook, best: Candidate, best_s: float, *, min_fit: float
) -> tuple[FasterElsewhere, ...]:
    """What gains much over a mixture of experts of which each rank gathers all."""
    found = []
    for flags, changes in outlook.engine.spread_experts(best).items():
        there = dataclasses.replace(outlook, job=dataclasses.replace(outlook.job, **changes))
        try:
            there = dataclasses.replace(there, lattice=lattice_of(there.job, there.engine))
            predicted = there.predict(there.lattice.candidates)
            first = int(ranked(*_judged(predicted), min_fit=min_fit)[0])
            there.engine.files(there.lattice.candidates[first])
        except AutotuneError:  # no such candidates, or the engine cannot build the model
            continue
        if there.engine.spread_experts(there.lattice.candidates[first]):
            continue  # its ranks gather all experts too
        speedup = best_s / float(predicted.step_time_s[first])
        if speedup >= _LEAST_GAIN_ELSEWHERE and predicted.fit_probability[first] >= min_fit:
            described = there.engine.describe(there.lattice.candidates[first])
            found.append(FasterElsewhere(flags=flags, described=described, speedup=speedup))
    return tuple(found)


def _judged(found: Prediction) -> tuple[NDArray[np.float64], ...]:
    return found.step_time_s, found.peak_memory_bytes, found.fit_probability


def _baseline(outlook: Outlook) -> "PredictedBaseline | None":
    path = outlook.job.baseline
    if path is None:
        return None
    engine, candidate = outlook.engine.baseline(path)
    found, reach = outlook.predict_plans(outlook.on_fleet(engine.plans([candidate])))
    return PredictedBaseline(
        path=str(path),
        described=engine.describe(candidate),
        candidate=candidate,
        prediction=found,
        reach=reach,
        notes={name: tuple(pair) for name, pair in engine.overridden(candidate).items()},
    )


def ranked(
    times_s: NDArray[np.float64],
    peaks_bytes: NDArray[np.float64],
    fit: NDArray[np.float64],
    *,
    min_fit: float,
) -> NDArray[np.intp]:
    """Indices of candidates, fastest first; after them those that may not fit, surest first.

    Of those that surely do not, the smallest come first.
    """
    fits = fit >= min_fit
    behind = np.where(fits, 0.0, -fit), np.where(fits, 0.0, peaks_bytes)
    return np.lexsort((times_s, behind[1], behind[0], ~fits))


def _variant(outlook: Outlook, wish: str, *, best: int, min_fit: float) -> Variant:
    """The lattice on another fleet; the rules are not asked again."""
    key, equals, value = (part.strip() for part in wish.partition("="))
    if not equals or not value or key not in _CHANGES:
        raise JobError(
            f"--what-if {wish}: not a change of the fleet",
            did_you_mean(key, _CHANGES, most=1)
            + f"write it as bandwidth=20Gbps; keys: {', '.join(_CHANGES)}",
        )
    other = _CHANGES[key](outlook, value, f"--what-if {wish}")
    found = other.predict(outlook.lattice.candidates)
    order = ranked(*_judged(found), min_fit=min_fit)
    first = int(order[0])
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
        wishes: dict[str, Any] = {name: value}
        return dataclasses.replace(outlook, wishes=dataclasses.replace(outlook.wishes, **wishes))

    return change


def _with_gpu(outlook: Outlook, value: str, where: str) -> Outlook:
    wishes = dataclasses.replace(outlook.wishes, gpu=value)
    environment = described(wishes, outlook.table, where=where)
    return dataclasses.replace(outlook, wishes=wishes, environment=environment)


def _with_topology(key: str) -> Callable[[Outlook, str, str], Outlook]:
    def change(outlook: Outlook, value: str, where: str) -> Outlook:
        here = (
            topology_of(outlook.job, accelerator_of(outlook.environment, outlook.table))
            or Topology()
        )
        topology = changed(here, key, value, where=where)
        job = dataclasses.replace(outlook.job, network_topology=topology)
        return dataclasses.replace(outlook, job=job)

    return change


def _with_memory(outlook: Outlook, value: str, where: str) -> Outlook:
    job = dataclasses.replace(outlook.job, memory_limit_bytes=parse_bytes(value, where=where))
    return dataclasses.replace(outlook, job=job)


def _with_per_node(outlook: Outlook, value: str, where: str) -> Outlook:
    if not is_count(value) or not 1 <= int(value) <= outlook.job.world:
        raise JobError(
            f"{where}: {value!r} is not a number of devices of a node",
            f"a whole number from 1 to {outlook.job.world}",
        )
    environment = dataclasses.replace(outlook.environment, n_devices=int(value))
    return dataclasses.replace(outlook, environment=environment)


_CHANGES: Mapping[str, Callable[[Outlook, str, str], Outlook]] = {
    "bandwidth": _with_link("network"),
    "network": _with_link("network"),
    "nvlink": _with_link("nvlink"),
    "gpu": _with_gpu,
    "memory": _with_memory,
    "per_node": _with_per_node,
    "topology": _with_topology("kind"),
    **{key: _with_topology(key) for key in TOPOLOGY_KEYS},
}
"""Key of a what-if -> the change that it is."""


def _front(found: Prediction, order: NDArray[np.intp], min_fit: float) -> frozenset[int]:
    """The candidates that fit and that no faster one beats in memory as well.

    On a given fleet, cost is proportional to time, so only time and memory have to be weighed.
    """
    n_fitting = int((found.fit_probability >= min_fit).sum())
    fitting = order[:n_fitting]
    peaks = found.peak_memory_bytes[fitting]
    least = np.minimum.accumulate(np.concatenate([[np.inf], peaks]))[:-1]
    return frozenset(int(index) for index in fitting[peaks < least])
