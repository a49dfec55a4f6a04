"""The lattice of a job on a fleet, ranked by the cost model, and how other fleets compare."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.base.errors import AutotuneError, JobError
from autotune.base.flags import flag
from autotune.base.names import did_you_mean
from autotune.base.units import parse_bytes, parse_rate
from autotune.contract import is_count
from autotune.cost import Prediction
from autotune.cost.errors import Margin
from autotune.cost.problem import accelerator_of, topology_of
from autotune.devices.hardware import Environment
from autotune.devices.topology import TOPOLOGY_KEYS, Topology, changed
from autotune.job.job import PLAN_SPACE, Job, keys_of
from autotune.planning.choices import (
    MIN_FIT,
    PROBABLE,
    SAME,
    TIE,
    Choices,
    best_of_kinds,
    best_probable,
    choices_of,
    is_exotic,
    worthwhile_fit,
)
from autotune.planning.fitting import ways_to_fit
from autotune.planning.lattice import Lattice, laid, lattice_of
from autotune.planning.other_job import OtherJob, rank_other_job
from autotune.planning.outlook import FleetWishes, Outlook
from autotune.space.candidate import Candidate

TOP = 10
"""Rows of a plan that are judged where nobody wants more."""
_LEAST_GAIN = 1.05
"""Gain from which another global batch is worth a word."""
LEAST_GAIN_ELSEWHERE = 1.3
"""Gain from which another space or engine is: about what the predictions may be wrong by."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Variant(OtherJob):
    """The job on another fleet; `flags` is the change, such as `bandwidth=20Gbps`."""

    same_step_time_s: float
    """Step time there of the best candidate of the fleet as it is."""
    same_fit_probability: float

    @property
    def price_per_billion_tokens(self) -> float | None:
        """Price of the best there; None: that of such an accelerator is not given."""
        return self.outlook.token_price(self.step_time_s)


@dataclass(frozen=True, kw_only=True)
class PredictedBaseline:
    """A configuration to begin with, mostly the user's own, and what is predicted of it."""

    described: str
    candidate: Candidate
    prediction: Prediction
    reach: Margin
    """How far measured figures may be from it."""
    path: str = ""
    """Empty: it is none of the user's."""
    notes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Keys or arguments that no knob carries: what the user gave, and what is predicted with."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LegalRows:
    """The rows of a plan, of which all that it names is legal."""

    outlook: Outlook
    """The job on its fleet, and the candidates, of which the rules have judged those that a plan
    names."""
    prediction: Prediction
    reach: Margin
    """How far measured figures may be from the predicted ones, by candidate."""
    choices: Choices
    """The candidates as rows: what differs little is one choice."""
    baseline: PredictedBaseline | None
    """The user's baseline, or the one that a search would probably find; None: nothing fits."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranking(LegalRows):
    """The candidates of a lattice, ranked without a trial."""

    on_front: frozenset[int]
    """Indices of the rows' candidates that no other row's beats in time and memory both."""
    is_min_fit_lowered: bool
    """Whether less than `MIN_FIT` is asked of rows though the user did not say so."""
    variants: tuple[Variant, ...]
    no_plans: Mapping[str, str] = field(default_factory=dict)
    """What-if -> why nothing can be planned there."""
    probable: Mapping[int, float] = field(default_factory=dict)
    """Candidates that only probably fit and are faster than all that do more surely -> the
    probability of which each is the fastest."""
    best_of: Mapping[str, int] = field(default_factory=dict)
    """ZeRO stage or kind of layout -> its best candidate."""
    otherwise: int | None = None
    """The best that trains the same numbers, where the first does not; else the best that changes
    the training, where that is faster or needs less of the host."""
    ways_to_fit: tuple[OtherJob, ...] = ()
    """The smallest changes with which something fits, where nothing does."""
    other_batch: OtherJob | None = None
    """The job with the nearest global batch that all ranks can share as data; None: it would gain
    nothing."""
    spread_experts: tuple[OtherJob, ...] = ()
    """What trains a mixture of experts much faster than ranks that gather all of them, or else
    the fastest that spreads them."""

    @property
    def candidates(self) -> Sequence[Candidate]:
        """The candidates that no rule has refused."""
        return self.outlook.lattice.candidates

    @property
    def order(self) -> NDArray[np.intp]:
        """Indices of candidates, best first."""
        return self.choices.order

    @property
    def min_fit(self) -> float:
        """Probability to fit from which on a candidate surely does."""
        return self.choices.min_fit

    def described(self, index: int) -> str:
        """A candidate in words."""
        return self.outlook.engine.describe(self.candidates[index])

    @property
    def passed_over(self) -> int | None:
        """The fastest row that the first ties with, where that is faster; None: none is."""
        firsts, times_s = self.choices.firsts, self.prediction.step_time_s
        first_s, fit = times_s[firsts[0]], self.prediction.fit_probability[firsts]
        is_so = self.choices.like_first(firsts) & (fit >= self.min_fit)
        is_so &= (times_s[firsts] < first_s) & (times_s[firsts] * TIE >= first_s)
        return int(min(firsts[is_so], key=times_s.__getitem__)) if is_so.any() else None

    def close_variants(self, rank: int) -> list[int]:
        """The variants of a row within 1% of its time that fit as surely, or with `min_fit`."""
        times_s, fit = self.prediction.step_time_s, self.prediction.fit_probability
        first, others = self.choices.firsts[rank - 1], self.choices.variants(rank)
        is_so = times_s[others] < SAME * times_s[first]
        is_so &= fit[others] >= min(self.min_fit, fit[first])
        return [int(other) for other in others[is_so]]

    @property
    def n_probable(self) -> int:
        """Rows that probably fit; they come first."""
        fit = self.prediction.fit_probability[self.choices.firsts]
        return int((fit >= min(PROBABLE, self.min_fit)).sum())

    def shown(self, top: int) -> range:
        """Ranks of the best rows: of those that probably fit, or of all where none does."""
        return range(1, min(top, self.n_probable or len(self.choices)) + 1)

    @property
    def n_sure(self) -> int:
        """Rows that fit at least as surely as `min_fit`."""
        return int((self.prediction.fit_probability[self.choices.firsts] >= self.min_fit).sum())

    @property
    def n_likely(self) -> int:
        """Candidates that fit at least as surely as `min_fit`, judged or not."""
        return int((self.prediction.fit_probability >= self.min_fit).sum())


def rank_lattice(
    outlook: Outlook,
    *,
    min_fit: float | None = None,
    what_if: Sequence[str] = (),
    top: int = TOP,
) -> Ranking:
    """Rank the lattice; the rules judge its first `top` rows, and what else a plan names.

    Candidates that fit less surely than `min_fit` come last; None: as of `legal_rows`. A what-if
    is a `key=value`: what the fleet would be otherwise.

    Raises:
        JobError: A wish is not one.
    """
    for wish in what_if:  # a wrong one is said before anything is ranked
        _elsewhere(outlook, wish)
    rows = legal_rows(outlook, min_fit=min_fit, top=top)
    outlook, found, choices = rows.outlook, rows.prediction, rows.choices
    candidates, asked, min_fit = outlook.lattice.candidates, min_fit, choices.min_fit
    best = int(choices.order[0])
    best_s, fits = float(found.step_time_s[best]), (found.fit_probability >= min_fit).any()
    variants, no_plans = [], {}
    for wish in what_if:
        try:
            variants.append(_variant(outlook, wish, best=best, min_fit=asked))
        except AutotuneError as error:
            no_plans[wish] = error.message
    return Ranking(
        **vars(rows),
        on_front=_front(outlook, found, choices, min_fit),
        is_min_fit_lowered=asked is None and min_fit < MIN_FIT,
        probable=best_probable(found, choices, min_fit=min_fit),
        best_of=best_of_kinds(found, choices),
        otherwise=_otherwise(outlook, found, choices, min_fit=min_fit),
        ways_to_fit=() if fits else ways_to_fit(outlook, found, min_fit=min_fit),
        other_batch=_other_batch(outlook, best_s, min_fit=min_fit),
        spread_experts=_spread_experts(outlook, candidates[best], best_s, min_fit=min_fit),
        variants=tuple(variants),
        no_plans=no_plans,
    )


def planned_lattice(job: Job, environment: Environment, lattice: Lattice) -> Lattice:
    """The lattice that a plan of a job has: layouts save memory at a price where none else fits.

    Where nothing can be predicted it is as it was.
    """
    if not lattice.is_laid_out or job.space != PLAN_SPACE:
        return lattice
    outlook = Outlook(job=job, environment=environment, wishes=FleetWishes(), lattice=lattice)
    with suppress(AutotuneError):
        outlook, *_ = _that_may_fit(outlook, MIN_FIT)
    return outlook.lattice


def _that_may_fit(outlook: Outlook, min_fit: float) -> tuple[Outlook, Prediction, Margin]:
    """What is predicted of the candidates, with layouts that save memory where no other fits.

    One that changes the training is no other.
    """
    lattice = outlook.lattice
    found, reach = outlook.predict_plans(outlook.plans(lattice.candidates))
    fits = found.fit_probability >= min_fit
    if lattice.is_laid_out and not (fits & (outlook.setbacks(lattice.candidates) == 0)).any():
        smaller = outlook.engine.layouts(saves_memory=True)
        if smaller is not None:
            outlook = dataclasses.replace(outlook, lattice=laid(smaller, outlook.engine))
            found, reach = outlook.predict_plans(outlook.plans(smaller))
    return outlook, found, reach


def legal_rows(outlook: Outlook, *, min_fit: float | None = None, top: int = TOP) -> LegalRows:
    """The rows of a plan, of which all that it names is legal.

    What is predicted ranks the candidates, legal or not. The rules judge what the plan would name;
    the others are ranked again, and where that goes on ever more rows are judged at a time.
    Without a `min_fit` it is `MIN_FIT`, or less where that is worth it. The outlook returned is
    without what was refused.
    """
    is_open, min_fit = min_fit is None, MIN_FIT if min_fit is None else min_fit
    outlook, found, reach = _that_may_fit(outlook, min_fit)
    baseline, rounds = baseline_of(outlook), 0
    while True:
        lattice = outlook.lattice
        setbacks = outlook.setbacks(lattice.candidates)
        choices = choices_of(found, setbacks, min_fit=min_fit, splits=outlook.is_space_named)
        rounds += 1
        top *= 2 if rounds > _PATIENT_ROUNDS else 1
        wanted = _named(outlook, found, choices, min_fit=min_fit, top=top)
        if lattice.is_counted or all([lattice.is_legal(place) for place in wanted]):
            usual = baseline.prediction if baseline else None
            worth = worthwhile_fit(found, choices, usual) if is_open else min_fit
            if worth == min_fit:
                return LegalRows(
                    outlook=outlook,
                    prediction=found,
                    reach=reach,
                    choices=choices,
                    baseline=baseline,
                )
            is_open, min_fit = False, worth
            continue
        lattice, left = lattice.without_refused()
        outlook = dataclasses.replace(outlook, lattice=lattice)
        found, reach = found.take(left), reach.take(left)


_PATIENT_ROUNDS = 8
"""Rounds in which no more rows are judged than are wanted."""


def _named(
    outlook: Outlook, found: Prediction, choices: Choices, *, min_fit: float, top: int
) -> set[int]:
    """Candidates that a plan names or counts: those of its rows, and those on the front."""
    firsts = choices.firsts[:top].tolist()
    firsts += best_probable(found, choices, min_fit=min_fit)
    firsts += best_of_kinds(found, choices).values()
    if (otherwise := _otherwise(outlook, found, choices, min_fit=min_fit)) is not None:
        firsts.append(otherwise)
    rows = choices.row_of[np.array(firsts)]
    is_named = np.isin(choices.row_of, rows)
    return {*np.flatnonzero(is_named).tolist(), *_front(outlook, found, choices, min_fit)}


def _otherwise(
    outlook: Outlook, found: Prediction, choices: Choices, *, min_fit: float
) -> int | None:
    """The best row that trains other numbers than the first; None: there is none worth a word.

    Where that one changes the training, it surely fits, and is faster than a tie or needs
    less of the host.
    """
    firsts = choices.firsts
    changes = outlook.engine.changes_training(outlook.lattice.candidates)[firsts]
    is_other = changes != changes[0]
    if not changes[0]:
        is_gain = found.step_time_s[firsts] * TIE < found.step_time_s[firsts[0]]
        is_gain |= found.host_memory_bytes[firsts] < found.host_memory_bytes[firsts[0]]
        is_other &= is_gain & (found.fit_probability[firsts] >= min_fit)
    return int(firsts[np.argmax(is_other)]) if is_other.any() else None


def _other_batch(outlook: Outlook, best_s: float, *, min_fit: float) -> OtherJob | None:
    """What another batch gains where no candidate has all ranks in data parallel groups.

    Layouts that the engine lays out itself split the model where the batch is below the world.
    """
    job, is_laid_out = outlook.job, outlook.lattice.is_laid_out
    if job.global_batch % job.world == 0 or (is_laid_out and job.global_batch < job.world):
        return None
    nearest = max(1, round(job.global_batch / job.world)) * job.world
    flags, changes = f"--global-batch {nearest}", {"global_batch": nearest}
    other = rank_other_job(outlook, flags, changes, min_fit=min_fit)
    if other is None or other.fit_probability < min_fit:
        return None
    return other if other.speedup(job, best_s) >= _LEAST_GAIN else None


def _spread_experts(
    outlook: Outlook, best: Candidate, best_s: float, *, min_fit: float
) -> tuple[OtherJob, ...]:
    """What gains much over a mixture of experts of which each rank gathers all; or the fastest."""
    others = (
        rank_other_job(outlook, flags, changes, min_fit=min_fit)
        for flags, changes in outlook.engine.spread_experts(best).items()
    )
    spread = tuple(
        other
        for other in others
        if other is not None
        and other.fit_probability >= min_fit
        and other.has_files
        and not other.outlook.engine.spread_experts(other.candidate)
    )
    much = (o for o in spread if o.speedup(outlook.job, best_s) >= LEAST_GAIN_ELSEWHERE)
    return tuple(much) or tuple(sorted(spread, key=lambda other: other.step_time_s)[:1])


def baseline_of(outlook: Outlook) -> PredictedBaseline | None:
    """The user's baseline, or the one that a search would probably find.

    That is the first legal candidate of the engine's ladder that probably fits; None: none does.
    """
    if (path := outlook.job.baseline) is not None:
        engine, candidate = outlook.engine.baseline(path)  # with the other keys of its file
        found, reach = outlook.predict_plans(outlook.on_fleet(engine.plans([candidate])))
        return PredictedBaseline(
            path=str(path),
            described=engine.describe(candidate),
            candidate=candidate,
            prediction=found,
            reach=reach,
            notes={n: tuple(pair) for n, pair in engine.overridden(candidate).items()},
        )
    engine = outlook.engine
    for rung in filter(None, engine.ladder()):
        found, reach = outlook.predict_plans(outlook.plans(rung))
        fitting = np.flatnonzero(found.fit_probability >= PROBABLE)
        for row in reversed(fitting.tolist()):
            if not engine.judge(candidate := rung[row]):
                return PredictedBaseline(
                    described=engine.describe(candidate),
                    candidate=candidate,
                    prediction=found.take(np.array([row])),
                    reach=reach.take(np.array([row])),
                )
    return None


def _elsewhere(outlook: Outlook, wish: str) -> Outlook:
    """The job on the fleet of a wish, or a `JobError` where that is not one."""
    key, equals, value = (part.strip() for part in wish.partition("="))
    key = key.replace("-", "_")
    if not equals or not value or key not in _CHANGES:
        hint = f"write it as bandwidth=20Gbps; keys: {', '.join(_CHANGES)}"
        if key not in _CHANGES:
            hint = did_you_mean(_WHAT_IF_OF.get(key, key), _CHANGES, most=1) + hint
        elif key != "bandwidth":
            hint = f"give {key} a value: `autotune plan --help` has one"
        if equals and value and key in keys_of("plan").keys() - _WHAT_IF_OF.keys():
            hint = f"a what-if keeps that: set {flag(key)} and plan again"
        raise JobError(f"{flag('what_if')} {wish}: not a change of the fleet", hint)
    return _CHANGES[key](outlook, value, f"{flag('what_if')} {wish}")


def _variant(outlook: Outlook, wish: str, *, best: int, min_fit: float | None) -> Variant:
    """The job on another fleet; other devices and nodes have candidates and rules of theirs.

    Raises:
        AutotuneError: Nothing is legal there, or nothing can be predicted.
    """
    other = _elsewhere(outlook, wish)
    same = other.predict([outlook.lattice.candidates[best]])  # before many are judged there
    if other.environment != outlook.environment:
        other = dataclasses.replace(other, lattice=lattice_of(other.engine))
    rows = legal_rows(other, min_fit=min_fit, top=1)
    found, first = rows.prediction, int(rows.choices.firsts[0])
    best_there = rows.outlook.lattice.candidates[first]
    return Variant(
        **vars(OtherJob.of_row(wish, rows.outlook, best_there, found, first)),
        same_step_time_s=float(same.step_time_s[0]),
        same_fit_probability=float(same.fit_probability[0]),
    )


def _with_link(name: str) -> Callable[[Outlook, str, str], Outlook]:
    def change(outlook: Outlook, value: str, where: str) -> Outlook:
        parse_rate(value, where=where)
        wishes: dict[str, Any] = {name: value}
        return dataclasses.replace(outlook, wishes=dataclasses.replace(outlook.wishes, **wishes))

    return change


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
        known = {"where": where, "value": value, "world": outlook.job.world}
        raise JobError.of("planning.no_devices_of_node", **known)
    environment = dataclasses.replace(outlook.environment, n_devices=int(value))
    return dataclasses.replace(outlook, environment=environment)


_CHANGES: Mapping[str, Callable[[Outlook, str, str], Outlook]] = {
    **dict.fromkeys(("bandwidth", "network"), _with_link("network")),
    "nvlink": _with_link("nvlink"),
    "gpu": Outlook.on,
    "memory": _with_memory,
    "per_node": _with_per_node,
    "topology": _with_topology("kind"),
    **{key: _with_topology(key) for key in TOPOLOGY_KEYS},
}
"""Key of a what-if -> the change that it is."""
_WHAT_IF_OF = {"memory_limit": "memory", "network_topology": "topology"}
"""Key of a job that is one of a fleet -> that of the what-if."""


def _front(
    outlook: Outlook, found: Prediction, choices: Choices, min_fit: float
) -> frozenset[int]:
    """The rows that fit and that no faster one beats in memory as well.

    They have the setbacks of the first row, train the same, and are no more exotic.

    On a given fleet, cost is proportional to time, so only time and memory have to be weighed.
    """
    firsts, exotic = choices.firsts, is_exotic(found.plans)
    changes = outlook.engine.changes_training(outlook.lattice.candidates)[firsts]
    is_in = choices.like_first(firsts) & (changes == changes[0])
    is_in &= exotic[firsts] <= exotic[firsts[0]]
    fitting = firsts[is_in & (found.fit_probability[firsts] >= min_fit)]
    peaks, times_s = found.peak_memory_bytes[fitting], found.step_time_s[fitting]
    order = np.lexsort((peaks, times_s))
    least = np.minimum.accumulate(np.concatenate([[np.inf], peaks[order]]))[:-1]
    return frozenset(int(index) for index in fitting[order][peaks[order] < least])
