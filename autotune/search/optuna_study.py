"""The record as a study of Optuna's, which is rebuilt for every proposal.

There is no database: nothing to corrupt, nothing to keep in step with the trial folders, and a
changed space is just other distributions. 500 trials cost about 0.1 s.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.contract import KnobValue
from autotune.search.history import History
from autotune.search.objective import Objective

_MAX_STARTUP_TRIALS = 10
"""Random proposals before a sampler has enough to model (Optuna's default, which the constraint
handling was measured with)."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A knob as Optuna sees it."""

    values: tuple[KnobValue, ...]
    is_log2: bool
    """Powers of two are whole logarithms, so that the sampler knows that 4 lies between 2 and 8;
    an integer range may also grow with the record, which categories may not within one study."""

    @property
    def distribution(self) -> BaseDistribution:
        if self.is_log2:
            exponents = [self.encode(value) for value in self.values]
            return IntDistribution(int(min(exponents)), int(max(exponents)))
        return CategoricalDistribution(self.values)

    def encode(self, value: KnobValue) -> KnobValue:
        return int(math.log2(float(value))) if self.is_log2 else value

    def decode(self, stored: KnobValue) -> KnobValue:
        return 2 ** int(stored) if self.is_log2 else stored


def make_axes(space: Mapping[str, Sequence[KnobValue]], history: History) -> dict[str, Axis]:
    """One axis per knob of the space, wide enough for what the record holds as well."""
    axes = {}
    for name, listed in space.items():
        values = tuple(dict.fromkeys([*listed, *history.values.get(name, ())]))
        is_log2 = all(type(v) is int and v > 0 and v.bit_count() == 1 for v in values)
        axes[name] = Axis(values=values, is_log2=is_log2)
    return axes


def sampler_seed(seed: int, history: History) -> int:
    """The seed of one proposal.

    A study that is rebuilt for every proposal would draw the same numbers every time.
    """
    numbers = numpy.random.SeedSequence([seed, len(history.recorded)])
    return int(numbers.generate_state(1)[0])


def ask(
    sampler: BaseSampler,
    axes: Mapping[str, Axis],
    history: History,
    objective: Objective,
) -> dict[str, KnobValue]:
    """A value of every knob, as a sampler of Optuna's proposes; see `frozen_trials`."""
    # It would warn of every knob that acts only at some stages and so is sampled on its own.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(directions=objective.directions, sampler=sampler)
    study.add_trials(frozen_trials(axes, history, objective))
    trial = study.ask({name: axis.distribution for name, axis in axes.items()})
    return {name: axis.decode(trial.params[name]) for name, axis in axes.items()}


def frozen_trials(
    axes: Mapping[str, Axis], history: History, objective: Objective
) -> list[FrozenTrial]:
    """The record in Optuna's terms, one trial per candidate.

    A fault of the configuration becomes a complete trial with its constraints: Optuna would
    propose a failed one again half of the time. A trial that the platform ended says nothing of
    the candidate and becomes a failed one. A knob that does not act is left out: TPE models it
    where it acts.
    """
    rates = [figure.samples_per_s for figure in objective.figures(history).values()]
    peaks = [t.measured.peak_memory_bytes or 0 for t in history.tried if t.measured is not None]
    worst_peak_bytes = max([objective.allowed_bytes, *peaks])
    trials = []
    for tried in history.tried:
        values = tried.candidate.values
        active = {name: axis for name, axis in axes.items() if name in values}
        facts: dict[str, Any] = {
            "params": {name: axis.encode(values[name]) for name, axis in active.items()},
            "distributions": {name: axis.distribution for name, axis in active.items()},
        }
        measured = tried.measured
        if measured is None and tried.fault is None:
            facts["state"] = TrialState.RUNNING if tried.is_running else TrialState.FAIL
        else:
            facts["values"] = objective.values(tried, worst_peak_bytes)
            facts["constraints"] = objective.constraints(tried, max(rates, default=0.0))
        trials.append(create_trial(**facts))
    return trials


def tpe_sampler(n_budget: int, seed: int) -> TPESampler:
    """Optuna's TPE with the settings of a search; at most half of its trials are random."""
    return TPESampler(
        seed=seed,
        n_startup_trials=min(_MAX_STARTUP_TRIALS, n_budget // 2),
        multivariate=True,
        constant_liar=True,
    )
