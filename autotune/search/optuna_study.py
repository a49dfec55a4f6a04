"""The record as a study of Optuna's, which is rebuilt for every proposal.

There is no database: nothing to corrupt, nothing to keep in step with the trial folders, and a
changed space is just other distributions. 500 trials cost about 0.1 s.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    IntDistribution,
)
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.contract import KnobValue
from autotune.search.calibrated import PEAK_ATTRIBUTE
from autotune.search.history import History, Tried
from autotune.search.objective import Objective

_MAX_STARTUP_TRIALS = 10
"""Random proposals before a sampler has enough to model (Optuna's default, which the constraint
handling was measured with)."""


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


def sampler_seed(seed: int, history: History) -> int:
    """The seed of one proposal.

    A study that is rebuilt for every proposal would draw the same numbers every time.
    """
    numbers = numpy.random.SeedSequence([seed, len(history.recorded)])
    return int(numbers.generate_state(1)[0])


def told_trials(
    axes: Mapping[str, Axis], history: History, objective: Objective, *, is_whole: bool = False
) -> list[FrozenTrial]:
    """The record in Optuna's terms, one trial per candidate.

    Args:
        axes: The knobs.
        history: What was tried.
        objective: What is better and what is feasible.
        is_whole: Whether every trial names every knob. For TPE a knob that does not act is left
            out, since TPE models it where it acts. A Gaussian process sees only the knobs that all
            trials have and draws the others blindly, so there the knob stands at its first value.
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

    A fault of the configuration becomes a complete trial with its constraints: Optuna would
    propose a failed one again half of the time. A trial that the platform ended says nothing of
    the candidate and becomes a failed one. Knobs that do not act stand at their idle value, or are
    left out where they have none.
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


def tpe_sampler(n_budget: int, seed: int) -> TPESampler:
    """Optuna's TPE with the settings of a search.

    Args:
        n_budget: Trials of the whole search.
        seed: Seed of its draws.
    """
    return TPESampler(
        seed=seed,
        n_startup_trials=n_random_trials(n_budget),
        multivariate=True,
        constant_liar=True,
    )


def n_random_trials(n_budget: int) -> int:
    """Random proposals before a sampler models; at most half of the search's trials."""
    return min(_MAX_STARTUP_TRIALS, n_budget // 2)


def _is_power_of_two(value: KnobValue) -> bool:
    return type(value) is int and value > 0 and value & (value - 1) == 0
