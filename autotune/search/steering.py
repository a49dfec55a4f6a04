"""The calibrated sampler: what is believed of candidates by some trials, and what is tried next.

Some knobs say nothing to the analytic model, and bucket sizes next to nothing. Candidates that
differ in these alone are one row; the row is chosen by the calibrated forecast, and among its
candidates the one that is nearest to what Optuna's TPE proposes.

One posterior serves a search whole: it predicts single trials, prices the memory of a baseline's
ladder, chooses the next candidate and says what another trial is expected to gain.
"""

import math
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autotune.base.units import format_bytes
from autotune.contract import KnobValue, Predicted
from autotune.cost.constants import constants_of
from autotune.cost.forecast import Forecast, SeenErrors, Shot, forecast
from autotune.cost.knowledge import STUDY_KINSHIP, Lesson, columns_of, recall_lessons
from autotune.cost.normal import Floats, below, log_expected_gain
from autotune.cost.predict import predict
from autotune.cost.problem import situation_of
from autotune.cost.residual import (
    MEMORY_PRIOR,
    MEMORY_VARIATION,
    TIME_PRIOR,
    VARIATION,
    Calibration,
    ErrorFits,
    Seen,
    calibrate,
    learn,
    reach_of,
)
from autotune.engines.base import find_engine
from autotune.planning.lattice import Lattice
from autotune.search.climb import CERTAIN
from autotune.search.history import CandidateTrials, History
from autotune.search.objective import Objective
from autotune.search.optuna_study import ask, make_axes, sampler_seed, tpe_sampler
from autotune.search.session import Session
from autotune.space.candidate import Candidate
from autotune.space.rows import answers_of

Flags = NDArray[np.bool_]

FIRST_RISK = 0.35
"""Highest P(out of memory) of a candidate that is tried while nothing ran."""
RISK_PER_RUN = 0.1
"""Rise of that limit with each trial that ran: the estimate is better known, and what can be
gained without risk has mostly been gained."""
LAST_RISK = 0.8
"""Highest P(out of memory), however many ran; candidates are still weighed by P(fits)."""
_ROUNDING = 1e-9
"""Log peaks that differ by less are one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Posterior:
    """Candidates as they are expected to be, by a forecast and the errors that trials saw."""

    forecast: Forecast
    tried: Forecast
    """The forecast of what the trials of this search ran, one each."""
    shots: Sequence[Shot] = ()
    """Those trials."""
    known: SeenErrors | None = None
    """Errors of the forecast that other trials saw."""
    variation: float = 0.0
    """Deviation of log seconds by choices that the forecast does not know: they are made after a
    candidate was chosen."""

    @cached_property
    def _errors(self) -> SeenErrors:
        errors = self.tried.errors(self.shots)
        return errors if self.known is None else errors.join(self.known)

    @cached_property
    def _time_fits(self) -> ErrorFits:
        return learn(self._errors.times, TIME_PRIOR)

    @cached_property
    def _memory_fits(self) -> ErrorFits:
        return learn(self._errors.peaks, MEMORY_PRIOR)

    @cached_property
    def time(self) -> Calibration:
        """Belief about the error of the seconds."""
        return self._time_fits.at(self.forecast.features)

    @cached_property
    def memory(self) -> Calibration:
        return self._memory_fits.at(self.forecast.peak_features)

    @cached_property
    def log_seconds(self) -> Floats:
        """Calibrated, by candidate."""
        return np.asarray(np.log(self.forecast.seconds) + self.time.mean)

    @cached_property
    def log_peak(self) -> Floats:
        """Calibrated, by candidate."""
        assert self.forecast.peak_bytes is not None, "asked for only where memory decides"
        return np.asarray(np.log(self.forecast.peak_bytes) + self.memory.mean)

    @cached_property
    def overrun(self) -> Floats:
        """By how many deviations a peak is expected above the limit, by candidate.

        It tells candidates apart whose risk is 1 to all digits.
        """
        limit_bytes = self.forecast.limit_bytes
        if limit_bytes is None or self.forecast.peak_bytes is None:
            return np.full(len(self.forecast), -np.inf)
        return (self.log_peak - math.log(limit_bytes)) / self.memory.deviation

    @cached_property
    def risk(self) -> Floats:
        """P(out of memory), by candidate."""
        return below(self.overrun)

    @cached_property
    def deviation(self) -> Floats:
        """Deviation of log seconds; trials in flight count as if they ran as is expected."""
        running = np.flatnonzero([shot.is_running for shot in self.shots])
        if not len(running):
            return self.time.deviation
        at = self.tried.features.take(running)
        seen = self._errors.times.join(Seen.here(at, self._time_fits.at(at).mean))
        return calibrate(self.forecast.features, seen, TIME_PRIOR).deviation

    def choose(self, is_open: Flags) -> int:
        """The row to try next.

        Among the open candidates whose risk is allowed, it has the highest expected gain in log
        seconds over the best so far (Jones, Schonlau and Welch, Efficient Global Optimization,
        1998) times P(fits); before anything was measured, the lowest forecast. If all are too
        risky, it is the least risky one.

        Args:
            is_open: By row; at least one is.
        """
        allowed = self._allowed(is_open)
        if not allowed.any():
            left = is_open & ~self.is_dropped
            left = left if left.any() else is_open
            return int(np.argmin(np.where(left, self.overrun, np.inf)))
        score, rows = self._gain(), np.flatnonzero(allowed)
        return int(rows[np.argmax(score[rows])])

    def expected_gain(self, is_open: Flags) -> float:
        """Expected gain of the next trial over the best seconds so far, as a share of them.

        Returns:
            0 where no row is open that may be tried; infinity while nothing was measured.
        """
        allowed = self._allowed(is_open)
        if not allowed.any():
            return 0.0
        return float(np.exp(self._gain()[allowed].max())) if self.n_measured else math.inf

    @property
    def n_measured(self) -> int:
        return sum(shot.seconds is not None for shot in self.shots)

    @property
    def allowed_risk(self) -> float:
        """How risky a candidate may be; it loosens as trials run."""
        return min(LAST_RISK, FIRST_RISK + RISK_PER_RUN * self.n_measured)

    @cached_property
    def is_dropped(self) -> Flags:
        """Rows that need more memory, by estimate, than one that ran out of it."""
        lost = np.flatnonzero([shot.is_out_of_memory for shot in self.shots])
        if not len(lost) or self.forecast.peak_bytes is None or self.tried.peak_bytes is None:
            return np.zeros(len(self.forecast), bool)
        error = self._memory_fits.at(self.tried.peak_features.take(lost)).mean
        least = (np.log(self.tried.peak_bytes[lost]) + error).min()
        return np.asarray(self.log_peak >= least - _ROUNDING)

    def _allowed(self, is_open: Flags) -> Flags:
        """Open rows that fit surely enough to be tried."""
        fits = ~self.is_dropped & (self.risk <= self.allowed_risk)
        return np.asarray(is_open & fits)

    def _gain(self) -> Floats:
        """log(expected gain x P(fits)), by row."""
        measured = [math.log(shot.seconds) for shot in self.shots if shot.seconds is not None]
        fits = np.log(np.maximum(1 - self.risk, 1e-12))
        if not measured:
            return np.asarray(fits - self.log_seconds)
        deviation = np.hypot(self.deviation, self.variation)
        z = (min(measured) - self.log_seconds) / deviation
        return np.asarray(np.log(deviation) + log_expected_gain(z) + fits)


IMPORTS_BYTES = 300 * 2**20
"""Memory of a CPU rank that no other shares, after its imports and before the model is made: 299
MiB with torch 2.13, DeepSpeed 0.19.8 and transformers 5 (psutil's `uss`)."""
MODEL_MARGIN = 1.5
"""Factor by which the model may be wrong before any trial: further than for nearly all published
runs that it had not seen (`benchmarks/accuracy.py`)."""
Forecaster = Callable[[Sequence[Candidate]], Forecast]
"""Predictions of a model for candidates, in their order."""

_Key = tuple[KnobValue | None, ...]
_Kind = tuple[int | None, int]


@dataclass(frozen=True, kw_only=True)
class HostMemory:
    """Memory of the node that runs a trial's ranks."""

    memory_bytes: int
    """All of it but the system's share; swap does not count: a step that swaps says nothing."""
    needed: Callable[[Sequence[Candidate]], Floats]
    """Bytes of it that the processes of candidates are predicted to take together."""

    def overrun(self, needed_bytes: Floats, error: Calibration) -> Floats:
        """By how many deviations it is expected to run out: the model errs as on the device."""
        need = np.log(np.maximum(1.0, needed_bytes)) + error.mean
        found: Floats = (need - math.log(self.memory_bytes)) / error.deviation
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Steering:
    """A lattice with what is said of it before any trial."""

    lattice: Lattice
    objective: Objective
    """Objective, with the memory that there is."""
    forecaster: Forecaster
    recalled: SeenErrors | None = None
    """Errors of the forecast that other studies saw."""
    host: HostMemory | None = None
    """Memory of the node that runs the ranks; None: nobody knows it."""

    @property
    def steers(self) -> bool:
        """Whether a proposal would be worth more than TPE's.

        It is for speed only, and only where candidates differ in what the model tells apart.
        """
        return self.objective.wish.name == "samples_per_s" and bool(self.knobs)

    @cached_property
    def knows_memory(self) -> bool:
        """Whether the model says how much memory a candidate needs."""
        return self.forecast(self.lattice.candidates[:1]).peak_bytes is not None

    @cached_property
    def knobs(self) -> tuple[str, ...]:
        """The knobs that vary over the lattice and that the model tells apart."""
        known = find_engine(self.lattice.context.engine).predicted
        return tuple(name for name in known if name in self.lattice.values)

    def propose(
        self, history: History, closed: Set[str], *, n_budget: int, seed: int
    ) -> Candidate | None:
        """The candidate to try next, as of `Sampler.propose` with a `Request` of these."""
        is_open = self._open_rows(history, closed)
        if not is_open.any():
            return None
        believed, values = self._of_rows(history), dict(self.lattice.constants)
        if self._unknown:
            sampler = tpe_sampler(n_budget, sampler_seed(seed, history))
            axes = make_axes(self._unknown, history)
            values |= ask(sampler, axes, history, self.objective)
        # Those whose reduced trial is why their row is chosen.
        ran = {t.trials[0].spec.identity.reduced_of for t in history.reduced.tried if t.measured}
        while is_open.any():
            row = believed.choose(is_open)
            is_chosen = self._groups.which == row
            for place in np.flatnonzero(is_chosen).tolist() if ran else ():
                candidate = self.lattice.candidates[place]
                if candidate.hash in ran - closed and self.lattice.is_legal(place):
                    return candidate
            known = zip(self.knobs, self._groups.keys[row], strict=True)
            wanted = values | {name: value for name, value in known if value is not None}
            if (found := self.lattice.nearest(wanted, closed, is_chosen)) is not None:
                return found
            # The rules refuse all that was open of the row, which is closed from now on.
            is_open = self._open_rows(history, closed)
            assert not is_open[row], "an open row has an open candidate"
        return None

    def expected_gain(self, history: History, closed: Collection[str]) -> float:
        """Expected gain of another trial over the best step time, as a share of it.

        Returns:
            Infinity while nothing feasible was measured, 0 where nothing is left that may fit.
        """
        return self._of_rows(history).expected_gain(self._open_rows(history, closed))

    def _of_rows(self, history: History) -> Posterior:
        """What is believed of the rows, by all that was tried; one proposal asks several times."""

        def believed() -> Posterior:
            feasible, tried = self.objective.figures(history), history.tried
            return Posterior(
                forecast=self._groups.forecast,
                tried=self._forecast_of(tried),
                shots=[_shot_of(t, is_feasible=t.candidate.hash in feasible) for t in tried],
                known=self._known(history, self.lattice.candidates[0]),
                variation=VARIATION if self._unknown else 0.0,
            )

        return history.once(("rows", self), believed)

    @cached_property
    def _unknown(self) -> dict[str, tuple[KnobValue, ...]]:
        """Values of the knobs that vary over the lattice and that the model does not know."""
        return {k: tuple(v) for k, v in self.lattice.values.items() if k not in self.knobs}

    def predict(self, history: History, candidate: Candidate) -> Predicted:
        """Expected measurement of a candidate's trial, by all that ran so far.

        The candidate may be outside the lattice, and a reduced form.
        """
        believed = self._believed(history, [candidate])
        # The difference between runs adds to the uncertainty of the figure itself.
        run = math.hypot(VARIATION, history.spread.variance**0.5)
        reach, memory_reach = (
            float(np.exp(reach_of(error.deviation, noise, n_measured=believed.n_measured)[0]))
            for error, noise in ((believed.time, run), (believed.memory, MEMORY_VARIATION))
        )
        step_time_s, peak_bytes = math.exp(believed.log_seconds[0]), math.exp(believed.log_peak[0])
        return Predicted(
            step_time_s=step_time_s,
            step_time_low_s=step_time_s / reach,
            step_time_high_s=step_time_s * reach,
            peak_memory_bytes=peak_bytes,
            peak_memory_low_bytes=peak_bytes / memory_reach,
            peak_memory_high_bytes=peak_bytes * memory_reach,
        )

    def risk(self, history: History, candidates: Sequence[Candidate]) -> Floats:
        """P(out of memory) of some candidates on the device or its host, by all that ran so far.

        The candidates are of one kind: as many layers and ranks each. It is `CERTAIN` only where
        the model alone comes near the limit: trials that run out of memory far below it may come
        from a broken machine, here or in another study.
        """
        if not candidates or not self.knows_memory:
            return np.zeros(len(candidates))
        believed = self._believed(history, candidates)
        overrun = believed.overrun
        peak_bytes = believed.forecast.peak_bytes
        assert peak_bytes is not None, "asked for only where memory decides"
        is_near = peak_bytes >= self.objective.allowed_bytes / MODEL_MARGIN
        if self.host is not None:
            needed_bytes = self.host.needed(candidates)
            is_near |= needed_bytes >= self.host.memory_bytes / MODEL_MARGIN
            overrun = np.maximum(overrun, self.host.overrun(needed_bytes, believed.memory))
        found: Floats = below(overrun)
        return np.where(is_near, found, np.minimum(found, np.nextafter(CERTAIN, 0.0)))

    def describe_overrun(self, history: History, candidate: Candidate) -> str:
        """What a candidate is predicted to need, and what there is, in words."""
        believed = self._believed(history, [candidate])
        error = float(believed.memory.mean[0])
        peak_bytes = math.exp(float(believed.log_peak[0]))
        text = (
            f"predicted to need {format_bytes(peak_bytes)} of the "
            f"{format_bytes(self.objective.allowed_bytes)} that are allowed"
        )
        if self.host is None or peak_bytes > self.objective.allowed_bytes:
            return text
        need_bytes = float(self.host.needed([candidate])[0]) * math.exp(error)
        return (
            f"its processes are predicted to need {format_bytes(need_bytes)} of the "
            f"{format_bytes(self.host.memory_bytes)} of the host"
        )

    @cached_property
    def untaught(self) -> "Steering":
        """The same without what other studies saw; what the model says is worked out once."""
        if self.recalled is None:
            return self
        found = replace(self, recalled=None)
        found.__dict__["_lattice_forecast"] = self._lattice_forecast
        return found

    def scaled_to(self, candidate: Candidate, step_time_s: float) -> "Steering":
        """The same, with all its times by one factor: it expects this one of a candidate."""
        factor = step_time_s / self.predict(History(), candidate).step_time_s

        def scaled(candidates: Sequence[Candidate]) -> Forecast:
            found = self.forecast(candidates)
            return replace(found, seconds=found.seconds * factor)

        return replace(self, forecaster=scaled)

    @cached_property
    def above_host(self) -> frozenset[str]:
        """Hashes of the lattice's candidates that the host's memory is certain not to hold.

        By the model alone, so that a resumed search leaves out the same.
        """
        if self.host is None or not self.knows_memory:
            return frozenset()
        candidates = self.lattice.candidates
        believed = self.untaught._believed(History(), candidates)
        overrun = self.host.overrun(self.host.needed(candidates), believed.memory)
        is_above = below(overrun) >= CERTAIN
        return frozenset(candidates[row].hash for row in np.flatnonzero(is_above).tolist())

    def _believed(self, history: History, candidates: Sequence[Candidate]) -> Posterior:
        kind = _kind(candidates[0])
        tried = [t for t in _telling(history) if _kind(t.candidate) == kind]
        return Posterior(
            forecast=self.forecast(candidates),
            tried=self._forecast_of(tried),
            shots=[*map(_shot_of, tried)],
            known=self._known(history, candidates[0]),
        )

    def alike(self, hashes: Collection[str]) -> set[str]:
        """Hashes of the lattice's candidates that the model does not tell from some of these."""
        groups = self._groups
        wanted = np.isin(groups.which, groups.which[[*self.lattice.places(hashes).values()]])
        return {self.lattice.candidates[place].hash for place in np.flatnonzero(wanted).tolist()}

    def _known(self, history: History, of: Candidate) -> SeenErrors | None:
        """Knowledge of the model's errors besides trials of the candidate's kind.

        It comes from other studies, and from trials of this one that ran more or fewer layers or
        accelerators. The model errs differently there, so each kind counts as a study of its own.
        """
        known = self.recalled
        kinds: dict[_Kind, list[CandidateTrials]] = {}
        for tried in _telling(history):
            if _kind(tried.candidate) != _kind(of):
                kinds.setdefault(_kind(tried.candidate), []).append(tried)
        first = 1 if known is None else 1 + max(*known.times.study, *known.peaks.study, 0)
        for number, tries in enumerate(kinds.values(), start=first):
            seen = self._forecast_of(tries).errors(
                [*map(_shot_of, tries)], study=number, kinship=STUDY_KINSHIP
            )
            known = seen if known is None else known.join(seen)
        return known

    def _forecast_of(self, tried: Sequence[CandidateTrials]) -> Forecast:
        return self.forecast([t.candidate for t in tried])

    def forecast(self, candidates: Sequence[Candidate]) -> Forecast:
        """What the model says of candidates, with the memory that there is.

        It is told from what is said of the lattice if they are of it: one by one is slow.
        """
        if candidates is self.lattice.candidates:
            return self._lattice_forecast
        places = self.lattice.places([c.hash for c in candidates], candidates)
        if all(c.hash in places for c in candidates):
            rows = [places[c.hash] for c in candidates]
            return self._lattice_forecast.take(np.array(rows, dtype=np.intp))
        return self._limited(self.forecaster(candidates))

    @cached_property
    def _lattice_forecast(self) -> Forecast:
        """The forecast of the lattice, which may be large: worked out once."""
        return self._limited(self.forecaster(self.lattice.candidates))

    def _limited(self, predicted: Forecast) -> Forecast:
        return replace(predicted, limit_bytes=self.objective.allowed_bytes)

    @cached_property
    def _groups(self) -> "_Groups":
        """The lattice by known choice; worked out once."""
        candidates = self.lattice.candidates
        found = answers_of(candidates, lambda one: tuple(one.get(name) for name in self.knobs))
        predicted = self.forecast(candidates)
        # Groups stand in the order of their first candidates: the first of equals is proposed.
        groups, first = np.unique(found.which, return_index=True)
        at = np.argsort(first)
        place = np.empty(len(found.distinct), np.intp)
        place[groups[at]] = np.arange(len(at))
        which = place[found.which]
        order = np.lexsort((predicted.seconds, which))
        lowest = order[np.searchsorted(which[order], np.arange(len(at)))]
        return _Groups(
            keys=tuple(found.distinct[group] for group in groups[at].tolist()),
            which=which,
            sizes=np.bincount(which),
            forecast=predicted.take(lowest),
        )

    def _open_rows(self, history: History, closed: Collection[str]) -> NDArray[np.bool_]:
        """By known choice, whether a candidate of the lattice that has it may be tried."""
        groups = self._groups
        places = self.lattice.places(closed, [t.candidate for t in history.tried])
        shut = {*places.values(), *self.lattice.refused_places}
        n_shut = np.bincount(groups.which[[*shut]], minlength=len(groups.keys))
        return np.asarray(n_shut < groups.sizes)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Groups:
    keys: tuple[_Key, ...]
    which: NDArray[np.intp]
    """By candidate: the place of its key."""
    sizes: NDArray[np.intp]
    """Candidates of each key."""
    forecast: Forecast
    """For each key, what is predicted of its candidate with the lowest time."""


def _telling(history: History) -> list[CandidateTrials]:
    """Candidates that ran or ran out of memory, reduced or not."""
    tried = (*history.tried, *history.reduced.tried)
    return [t for t in tried if t.measured is not None or t.is_out_of_memory]


def _kind(candidate: Candidate) -> _Kind:
    """Traits that all candidates of one job share, and in which their reduced forms differ."""
    return candidate.layers, candidate.world


def _shot_of(tried: CandidateTrials, *, is_feasible: bool = True) -> Shot:
    """Lessons of a candidate's trials; an infeasible one teaches only the memory it needed."""
    result = tried.measured
    return Shot(
        seconds=result.step_time_s if result is not None and is_feasible else None,
        peak_bytes=None if result is None else result.peak_memory_bytes,
        is_out_of_memory=tried.is_out_of_memory,
        is_running=tried.is_running and result is None,
    )


def steering_of(session: Session, *, lessons: Sequence[Lesson] = (), study: str = "") -> Steering:
    """Steer by what the session's place forecasts, else by the analytic model.

    Args:
        session: What is searched.
        lessons: Of other studies, and perhaps of this one.
        study: The name by which this one's own lessons are left out.

    Raises:
        FleetError: The accelerator is in no table, so nothing can be predicted.
        JobError: The model's sizes cannot be seen.
    """
    job, environment, lattice = session.job, session.environment, session.lattice
    constants, engine = constants_of(environment), session.engine

    def analytic(candidates: Sequence[Candidate]) -> Forecast:
        return forecast(engine.plans(candidates), constants)

    def needed(candidates: Sequence[Candidate]) -> Floats:
        """Bytes of the host; CPU ranks are in its memory whole, with what their imports take."""
        plans = engine.plans(candidates)
        predicted = predict(plans, constants)
        if environment.accelerator != "cpu":
            return predicted.host_memory_bytes
        ranks_bytes = (predicted.peak_memory_bytes + IMPORTS_BYTES) * plans.devices_per_node
        whole_bytes: Floats = ranks_bytes + predicted.host_memory_bytes
        return whole_bytes

    forecaster = session.place.forecaster or analytic
    limits_bytes = filter(None, (session.place.host_memory_bytes, job.host_memory_bytes))
    host_memory_bytes = min(limits_bytes, default=None)
    forecaster(lattice.candidates[:1])  # what cannot be predicted is said before anything runs
    return Steering(
        host=None
        if host_memory_bytes is None
        else HostMemory(memory_bytes=host_memory_bytes, needed=needed),
        lattice=lattice,
        objective=session.objective,
        forecaster=forecaster,
        recalled=recall_lessons(
            lessons, situation=situation_of(job, environment), study=study, constants=constants
        ),
    )


def lessons_of(history: History, session: Session, *, study: str) -> list[Lesson]:
    """Lessons of a search for the next one, under a name in the file of lessons.

    It is what ran or ran out of memory, reduced or not.

    Raises:
        FleetError: As `steering_of`.
        JobError: As `steering_of`.
    """
    tried = _telling(history)
    if not tried:
        return []
    plans = session.engine.plans([t.candidate for t in tried])
    situation = situation_of(session.job, session.environment)
    limit_bytes = session.objective.allowed_bytes
    return [
        Lesson(
            situation=situation,
            study=study,
            plan=columns_of(plans, row),
            seconds=shot.seconds,
            # A meter may read nothing; a peak of 0 bytes teaches nothing.
            peak_bytes=shot.peak_bytes or None,
            is_out_of_memory=shot.is_out_of_memory,
            limit_bytes=limit_bytes,
        )
        for row, shot in enumerate(map(_shot_of, tried))
    ]
