"""The calibrated sampler in a search: the lattice's candidates, one row per known choice.

Some knobs say nothing to the analytic model, and bucket sizes next to nothing. Candidates that
differ in these alone are one row; the row is chosen by the calibrated forecast, and among its
candidates the one that is nearest to what Optuna's TPE proposes.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import starmap

import numpy as np

from autotune.contract import KnobValue, Predicted
from autotune.cost.constants import constants_of
from autotune.cost.forecast import Forecast, forecast
from autotune.cost.knowledge import (
    STUDY_KINSHIP,
    Lesson,
    Recalled,
    Situation,
    columns_of,
    recall_lessons,
)
from autotune.cost.residual import MOST_SEEN, Seen, spread_over
from autotune.devices.hardware import Environment
from autotune.engines.base import bind_engine, find_engine
from autotune.job.job import Job
from autotune.planning.lattice import Lattice
from autotune.search.acquisition import Chooser, Shot, seen_peaks, seen_times
from autotune.search.calibrated import VARIATION, CalibratedSampler
from autotune.search.history import History, Tried
from autotune.search.objective import Objective
from autotune.search.optuna_study import ask, make_axes, sampler_seed, tpe_sampler
from autotune.space.candidate import Candidate

_NORMAL = 1.96
"""The normal distribution's quantile of a 95% interval."""

Forecaster = Callable[[Sequence[Candidate]], Forecast]
"""Predictions of a model for candidates, in their order."""

_Key = tuple[KnobValue | None, ...]
_Kind = tuple[int | None, int]


@dataclass(frozen=True, kw_only=True, eq=False)
class Steering:
    """A lattice with what is said of it before any trial."""

    lattice: Lattice
    objective: Objective
    """Objective, with the memory that there is."""
    forecaster: Forecaster
    recalled: Recalled | None = None
    """Errors of the forecast that other studies saw."""

    @property
    def steers(self) -> bool:
        """Whether a proposal would be worth more than TPE's.

        It is for speed only, and only where candidates differ in what the model tells apart.
        """
        return self.objective.wish.name == "samples_per_s" and bool(self.knobs)

    @property
    def knobs(self) -> tuple[str, ...]:
        """The knobs that vary over the lattice and that the model tells apart."""
        known = find_engine(self.lattice.context.engine).predicted
        return tuple(name for name in known if name in self.lattice.values)

    def propose(
        self, history: History, closed: Set[str], *, n_budget: int, seed: int
    ) -> Candidate | None:
        """The candidate to try next, as of `Sampler.propose` with a `Request` of these."""
        rows = self._rows(history, closed)
        if len(rows.closed) == len(rows.keys):
            return None
        axes = make_axes(self.lattice.values, history)
        columns = {
            name: [None if value is None else axes[name].encode(value) for value in column]
            for name, column in zip(self.knobs, zip(*rows.keys, strict=True), strict=True)
        }
        # The study maximises samples/s: per sample, as their inverse is.
        seconds = rows.forecast.seconds / self.lattice.context.global_batch
        sampler = CalibratedSampler(
            columns,
            forecast=replace(rows.forecast, seconds=seconds),
            known=self._known(history, self.lattice.candidates[0]),
            n_beside=len(history.reduced.tried),
            closed=rows.closed,
            others=tpe_sampler(n_budget, sampler_seed(seed, history)),
        )
        values = ask(sampler, axes, history, self.objective)
        chosen = rows.keys[sampler.last_row]
        others = {c.hash for c in self.lattice.candidates if self._key(c) != chosen}
        # Among these, take the one whose reduced trial is why they were chosen.
        ran = {t.trials[0].spec.identity.reduced_of for t in history.reduced.tried if t.measured}
        for candidate in self.lattice.candidates:
            if candidate.hash in ran - closed - others:
                return candidate
        return self.lattice.nearest({**self.lattice.constants, **values}, closed | others)

    def expected_gain(self, history: History, closed: Collection[str]) -> float:
        """Expected gain of another trial over the best step time, as a share of it.

        Returns:
            Infinity while nothing feasible was measured, 0 where nothing is left that may fit.
        """
        rows = self._rows(history, closed)
        row_of = {key: row for row, key in enumerate(rows.keys)}
        feasible = self.objective.figures(history)
        chooser = Chooser(
            forecast=rows.forecast,
            shots=[
                _shot(row_of[self._key(t.candidate)], t, is_feasible=t.candidate.hash in feasible)
                for t in history.tried
            ],
            known=self._known(history, self.lattice.candidates[0]),
            variation=VARIATION if set(self.lattice.values) - set(self.knobs) else 0.0,
        )
        is_open = np.ones(len(rows.keys), bool)
        is_open[list(rows.closed)] = False
        return chooser.expected_gain(is_open)

    def predict(self, history: History, candidate: Candidate) -> Predicted:
        """Expected measurement of a candidate's trial, by all that ran so far.

        The candidate may be outside the lattice, and a reduced form.
        """
        told = [t for t in _telling(history) if _kind(t.candidate) == _kind(candidate)]
        believed = Chooser(
            forecast=self._forecast([*(t.candidate for t in told), candidate]),
            shots=[_shot(row, t) for row, t in enumerate(told)],
            known=self._known(history, candidate),
        )
        # The difference between runs adds to the uncertainty of the figure itself.
        deviations = float(believed.time.deviation[-1]), VARIATION, history.spread.variance**0.5
        reach = np.exp(_NORMAL * math.hypot(*deviations))
        memory_reach = np.exp(_NORMAL * float(believed.memory.deviation[-1]))
        step_time_s = float(np.exp(believed.log_seconds[-1]))
        peak_bytes = float(np.exp(believed.log_peak[-1]))
        return Predicted(
            step_time_s=step_time_s,
            step_time_low_s=step_time_s / reach,
            step_time_high_s=step_time_s * reach,
            peak_memory_bytes=peak_bytes,
            peak_memory_low_bytes=peak_bytes / memory_reach,
            peak_memory_high_bytes=peak_bytes * memory_reach,
        )

    def alike(self, hashes: Collection[str]) -> set[str]:
        """Hashes of the lattice's candidates that the model does not tell from some of these."""
        keys = {self._key(c) for c in self.lattice.candidates if c.hash in hashes}
        return {c.hash for c in self.lattice.candidates if self._key(c) in keys}

    def _known(self, history: History, of: Candidate) -> Recalled | None:
        """Knowledge of the model's errors besides trials of the candidate's kind.

        It comes from other studies, and from trials of this one that ran more or fewer layers or
        accelerators. The model errs differently there, so each kind counts as a study of its own.
        """
        known = self.recalled
        kinds: dict[_Kind, list[Tried]] = {}
        for tried in _telling(history):
            if _kind(tried.candidate) != _kind(of):
                kinds.setdefault(_kind(tried.candidate), []).append(tried)
        first = 1 if known is None else 1 + max(*known.times.study, *known.peaks.study, 0)
        for number, tries in enumerate(kinds.values(), start=first):
            said = self._forecast([t.candidate for t in tries])
            shots = [_shot(row, t) for row, t in enumerate(tries)]
            times, peaks = (
                seen(said, shots).elsewhere(number, kinship=STUDY_KINSHIP)
                for seen in (seen_times, seen_peaks)
            )
            if known is not None:
                times, peaks = Seen.join(known.times, times), Seen.join(known.peaks, peaks)
            known = Recalled(times=times, peaks=peaks)
        return known

    def _forecast(self, candidates: Sequence[Candidate]) -> Forecast:
        return replace(self.forecaster(candidates), limit_bytes=self.objective.allowed_bytes)

    @cached_property
    def _lattice_forecast(self) -> Forecast:
        return self._forecast(self.lattice.candidates)

    def _rows(self, history: History, closed: Collection[str]) -> "_ForecastRows":
        """The lattice, and what was tried besides, by known choice."""
        in_lattice = {c.hash for c in self.lattice.candidates}
        strays = [t.candidate for t in history.tried if t.candidate.hash not in in_lattice]
        said = self._lattice_forecast
        if strays:
            said = Forecast.join(said, self._forecast(strays))
        candidates = [*self.lattice.candidates, *strays]
        members: dict[_Key, list[int]] = {}
        for index, candidate in enumerate(candidates):
            members.setdefault(self._key(candidate), []).append(index)
        is_open = [c.hash in in_lattice and c.hash not in closed for c in candidates]
        lowest = [min(of_it, key=lambda i: said.seconds[i]) for of_it in members.values()]
        return _ForecastRows(
            keys=tuple(members),
            forecast=said.take(np.array(lowest, dtype=np.intp)),
            closed=tuple(
                row
                for row, of_it in enumerate(members.values())
                if not any(is_open[index] for index in of_it)
            ),
        )

    def _key(self, candidate: Candidate) -> _Key:
        return tuple(candidate.get(name) for name in self.knobs)


@dataclass(frozen=True, kw_only=True, eq=False)
class _ForecastRows:
    keys: tuple[_Key, ...]
    forecast: Forecast
    """For each row, what is predicted of its candidate with the lowest time."""
    closed: tuple[int, ...]


def _telling(history: History) -> list[Tried]:
    """Candidates that ran or ran out of memory, reduced or not; of very many, some."""
    tried = [*history.tried, *history.reduced.tried]
    telling = [t for t in tried if t.measured is not None or t.is_out_of_memory]
    if len(telling) <= MOST_SEEN:
        return telling
    return [telling[at] for at in spread_over(len(telling), MOST_SEEN // 2)]


def _kind(candidate: Candidate) -> _Kind:
    """Traits that all candidates of one job share, and in which their reduced forms differ."""
    return candidate.layers, candidate.world


def _shot(row: int, tried: Tried, *, is_feasible: bool = True) -> Shot:
    """Lessons of a candidate's trials; an infeasible one teaches only the memory it needed."""
    result = tried.measured
    return Shot(
        row=row,
        seconds=result.step_time_s if result is not None and is_feasible else None,
        peak_bytes=None if result is None else result.peak_memory_bytes,
        is_out_of_memory=tried.is_out_of_memory,
        is_running=tried.is_running,
    )


def steering_of(
    job: Job,
    environment: Environment,
    lattice: Lattice,
    *,
    lessons: Sequence[Lesson] = (),
    study: str = "",
    forecaster: Forecaster | None = None,
) -> Steering:
    """Steer by a model.

    Args:
        job: What is trained.
        environment: Where.
        lattice: The legal candidates.
        lessons: Of other studies, and perhaps of this one.
        study: The name by which this one's own lessons are left out.
        forecaster: The model; None: the analytic one.

    Raises:
        FleetError: The accelerator is in no table, so nothing can be predicted.
        JobError: The model's sizes cannot be seen.
    """
    constants = constants_of(environment)
    engine = bind_engine(job, environment)

    def analytic(candidates: Sequence[Candidate]) -> Forecast:
        return forecast(engine.plans(candidates), constants)

    forecaster = forecaster or analytic
    forecaster(lattice.candidates[:1])  # what cannot be predicted is said before anything runs
    return Steering(
        lattice=lattice,
        objective=Objective.of(job, environment),
        forecaster=forecaster,
        recalled=recall_lessons(
            lessons, situation=situation_of(job, environment), study=study, constants=constants
        ),
    )


def situation_of(job: Job, environment: Environment) -> Situation:
    """Facts that decide how wrong the model is here."""
    config: Mapping[str, object] = job.model.source.get("config", {})
    return Situation(
        device=environment.device_name,
        engine=f"{job.engine} {environment.deepspeed_version}",
        torch=environment.torch_version,
        family=str(config.get("model_type", job.model.name)),
    )


def lessons_of(
    history: History,
    job: Job,
    environment: Environment,
    *,
    study: str,
) -> list[Lesson]:
    """Lessons of a search for the next one, under a name in the file of lessons.

    It is what ran or ran out of memory, reduced or not.

    Raises:
        FleetError: As `steering_of`.
        JobError: As `steering_of`.
    """
    told = _telling(history)
    if not told:
        return []
    ran = [t.candidate for t in told]
    plans = bind_engine(job, environment).plans(ran)
    situation = situation_of(job, environment)
    limit_bytes = Objective.of(job, environment).allowed_bytes
    return [
        Lesson(
            situation=situation,
            study=study,
            plan=columns_of(plans, shot.row),
            seconds=shot.seconds,
            # A meter may read nothing; a peak of 0 bytes teaches nothing.
            peak_bytes=shot.peak_bytes or None,
            is_out_of_memory=shot.is_out_of_memory,
            limit_bytes=limit_bytes,
        )
        for shot in starmap(_shot, enumerate(told))
    ]
