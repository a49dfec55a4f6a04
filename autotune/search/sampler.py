"""The next proposal, by Optuna, from a study that is rebuilt from the record each time.

There is no database: nothing to corrupt, nothing to keep in step with the trial folders, and a
changed space is just other distributions. 500 trials cost about 0.1 s. The sampler `grid` asks
nobody: it walks the lattice itself (`autotune.search.grid`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.base.errors import JobError
from autotune.contract import KnobValue
from autotune.job.job import SamplerName
from autotune.search.calibrated import PEAK_ATTRIBUTE
from autotune.search.history import History, Tried
from autotune.search.objective import Objective

_MAX_STARTUP_TRIALS = 10
"""Random proposals before a sampler has enough to model (Optuna's default, which the constraint
handling was measured with)."""

_GP_PACKAGES = ("scipy", "torch")
"""What Optuna's Gaussian process sampler imports when it is asked."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A knob as Optuna sees it."""

    name: str
    values: tuple[KnobValue, ...]
    is_log2: bool
    """Powers of two are whole logarithms, so that the sampler knows that 4 lies between 2 and 8;
    an integer range may also grow with the record, which categories may not within one study."""

    @property
    def distribution(self) -> BaseDistribution:
        """Where proposals come from."""
        if self.is_log2:
            exponents = [self.encode(value) for value in self.values]
            return IntDistribution(int(min(exponents)), int(max(exponents)))
        return CategoricalDistribution(self.values)

    def encode(self, value: KnobValue) -> KnobValue:
        """The value as Optuna stores it."""
        return int(math.log2(float(value))) if self.is_log2 else value

    def decode(self, stored: KnobValue) -> KnobValue:
        """The knob's value of what Optuna proposes."""
        return 2 ** int(stored) if self.is_log2 else stored


def make_axes(space: Mapping[str, Sequence[KnobValue]], history: History) -> dict[str, Axis]:
    """One axis per knob of the space, wide enough for what the record holds as well."""
    axes = {}
    for name, listed in space.items():
        recorded = [t.candidate[name] for t in history.tried if name in t.candidate.values]
        values = tuple(dict.fromkeys([*listed, *recorded]))
        axes[name] = Axis(name=name, values=values, is_log2=all(map(_is_power_of_two, values)))
    return axes


def propose(
    space: Mapping[str, Sequence[KnobValue]],
    history: History,
    objective: Objective,
    *,
    sampler: SamplerName,
    n_budget: int,
    seed: int,
) -> dict[str, KnobValue]:
    """Ask Optuna for a value of every knob; the lattice then finds the nearest legal candidate.

    Args:
        space: Values per knob.
        history: What was tried; the same history and seed give the same proposal.
        objective: What is better and what is feasible.
        sampler: `tpe`, `gp` or `random`; `calibrated` without a forecast is `tpe`.
        n_budget: Trials of the whole search; at most half of them are random.
        seed: The job's seed.

    Raises:
        JobError: A package that the sampler needs is not installed.
    """
    # It would warn of every knob that acts only at some stages and so is sampled on its own.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    axes = make_axes(space, history)
    draw = sampler_seed(seed, history)
    study = optuna.create_study(
        directions=objective.directions, sampler=make_sampler(sampler, n_budget, draw)
    )
    study.add_trials(told_trials(axes, history, objective, is_whole=sampler == "gp"))
    trial = study.ask({name: axis.distribution for name, axis in axes.items()})
    return {name: axis.decode(trial.params[name]) for name, axis in axes.items()}


def sampler_seed(seed: int, history: History) -> int:
    """The seed of one proposal.

    A study that is rebuilt for every proposal would draw the same numbers every time.
    """
    numbers = numpy.random.SeedSequence([seed, len(history.recorded)])
    return int(numbers.generate_state(1)[0])


def check_installed(sampler: SamplerName) -> None:
    """See that a sampler has what it imports, before anything runs.

    Raises:
        JobError: A package is missing.
    """
    missing = [name for name in _GP_PACKAGES if sampler == "gp" and find_spec(name) is None]
    if missing:
        raise JobError(
            f"sampler: gp needs {' and '.join(missing)}, which is not installed",
            "pip install 'autotune[gp]', or choose --sampler tpe",
        )


def told_trials(
    axes: Mapping[str, Axis], history: History, objective: Objective, *, is_whole: bool = False
) -> list[FrozenTrial]:
    """The record in Optuna's terms, one trial per candidate.

    Args:
        axes: The knobs.
        history: What was tried.
        objective: What is better and what is feasible.
        is_whole: Whether every trial names every knob. A knob that does not act is left out for
            TPE, which models it where it acts; a Gaussian process sees only the knobs that all
            trials have and draws the others blindly, so there it stands at its first value.
    """
    tried = history.tried
    figures = [figure for t in tried if (figure := objective.figure(t)) is not None]
    best = max((figure.samples_per_s for figure in figures), default=0.0)
    peaks = [t.measured.peak_memory_bytes or 0 for t in tried if t.measured is not None]
    worst_peak_bytes = max([objective.allowed_bytes, *peaks])
    idle = {name: axis.values[0] for name, axis in axes.items()} if is_whole else {}
    return [_told(t, axes, objective, best, worst_peak_bytes, idle) for t in tried]


def _told(
    tried: Tried,
    axes: Mapping[str, Axis],
    objective: Objective,
    best_samples_per_s: float,
    worst_peak_bytes: float,
    idle: Mapping[str, KnobValue],
) -> FrozenTrial:
    """A candidate as Optuna is told of it.

    A configuration's fault is a complete trial with its constraints: told as failed, it would be
    proposed again half of the time. What the platform spoilt teaches nothing and is failed. Knobs
    that do not act are at their idle value, or left out where they have none.
    """
    values = {**idle, **tried.candidate.values}
    active = {name: axis for name, axis in axes.items() if name in values}
    params = {name: axis.encode(values[name]) for name, axis in active.items()}
    distributions = {name: axis.distribution for name, axis in active.items()}
    if tried.measured is None and tried.fault is None:
        state = TrialState.RUNNING if tried.is_running else TrialState.FAIL
        return create_trial(state=state, params=params, distributions=distributions)
    return create_trial(
        state=TrialState.COMPLETE,
        values=objective.values(tried, worst_peak_bytes),
        params=params,
        distributions=distributions,
        constraints=objective.constraints(tried, best_samples_per_s),
        user_attrs=_peak_attribute(tried),
    )


def _peak_attribute(tried: Tried) -> dict[str, int]:
    """What the calibrated sampler reads."""
    peak_bytes = None if tried.measured is None else tried.measured.peak_memory_bytes
    return {} if peak_bytes is None else {PEAK_ATTRIBUTE: peak_bytes}


def make_sampler(name: SamplerName, n_budget: int, seed: int) -> optuna.samplers.BaseSampler:
    """Optuna's sampler of a name; `grid` has none, and `calibrated` is `tpe` without a forecast.

    Args:
        name: Of the sampler.
        n_budget: Trials of the whole search; at most half of them are random.
        seed: Of its draws.

    Raises:
        JobError: A package that it needs is not installed.
    """
    n_startup = min(_MAX_STARTUP_TRIALS, n_budget // 2)
    if name == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    if name == "gp":
        check_installed(name)
        return optuna.samplers.GPSampler(seed=seed, n_startup_trials=n_startup)
    return optuna.samplers.TPESampler(
        seed=seed, n_startup_trials=n_startup, multivariate=True, constant_liar=True
    )


def _is_power_of_two(value: KnobValue) -> bool:
    return type(value) is int and value > 0 and value & (value - 1) == 0
