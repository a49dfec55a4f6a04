"""An Optuna sampler that ranks a known list of candidates by a forecast, calibrated as it goes.

Anybody's study can use it: it needs the candidates in columns and what some model says of each.

    sampler = CalibratedSampler(
        {"tp": [1, 2, 4], "micro_batch": [1, 1, 2]},
        forecast=Forecast(seconds=..., features=..., peak_bytes=..., limit_bytes=80e9),
    )
    study = optuna.create_study(direction="minimize", sampler=sampler)

The objective asks for the knobs of the columns as it likes (`trial.suggest_int("tp", 1, 8)`); what
else it asks for is left to another sampler. It says what a trial needed with
`trial.set_user_attr(PEAK_ATTRIBUTE, bytes)`, and that it ran out of memory with
`trial.set_constraint(MEMORY_CONSTRAINT, 1.0)` (0.0 on the others).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from autotune.contract import KnobValue
from autotune.cost.forecast import Forecast
from autotune.cost.knowledge import Recalled
from autotune.cost.residual import VARIATION
from autotune.search.acquisition import Chooser, Shot

PEAK_ATTRIBUTE = "peak_memory_bytes"
"""User attribute of a trial: what it needed per device."""
MEMORY_CONSTRAINT = "memory"
"""Constraint of a trial; above 0 where it has no peak: it ran out of memory."""

_Key = tuple[KnobValue | None, ...]


class CalibratedSampler(BaseSampler):
    """Proposes rows of a table of candidates, none twice, and leaves other knobs to another."""

    def __init__(
        self,
        columns: Mapping[str, Sequence[KnobValue | None]],
        *,
        forecast: Forecast,
        known: Recalled | None = None,
        closed: Collection[int] = (),
        others: BaseSampler | None = None,
        seed: int | None = None,
    ) -> None:
        """Take the candidates.

        Args:
            columns: Knob -> its value in every candidate, as the study names and stores it; None
                where it does not act.
            forecast: What the model says of every candidate. For a study that maximises a rate its
                `seconds` are the inverse of what the objective returns.
            known: Errors of the forecast that others saw.
            closed: Rows that are not wanted.
            others: Samples what is in no column; None: Optuna's TPE.
            seed: Seed of `others`, where it is left out.

        Raises:
            ValueError: The columns and the forecast are not equally long, or there are no rows.
        """
        lengths = {name: len(column) for name, column in columns.items()}
        if not columns or not len(forecast) or set(lengths.values()) != {len(forecast)}:
            raise ValueError(f"columns of {lengths} rows, and a forecast of {len(forecast)}")
        self._columns = {name: list(column) for name, column in columns.items()}
        self._chooser = Chooser(forecast=forecast, shots=(), known=known)
        self._closed = list(closed)
        self._others = others or TPESampler(seed=seed, multivariate=True, constant_liar=True)
        self._row_of_key: dict[_Key, int] = {}
        for row, key in enumerate(zip(*self._columns.values(), strict=True)):
            self._row_of_key.setdefault(key, row)
        self._chosen: dict[int, int] = {}

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Knobs that the other sampler samples together: none of the columns."""
        space = self._others.infer_relative_search_space(study, trial)
        return {name: its for name, its in space.items() if name not in self._columns}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The other sampler's."""
        return self._others.sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """The chosen row's value, or what the other sampler says of a knob in no column.

        Raises:
            ValueError: The study does not allow the row's value.
        """
        if param_name in self._columns:
            value = self._columns[param_name][self._row_for(study, trial)]
            if value is not None:
                _check_allowed(param_name, value, param_distribution)
                return value
        return self._others.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Passed on."""
        self._others.before_trial(study, trial)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Passed on."""
        self._chosen.pop(trial.number, None)
        self._others.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        """Passed on; the choice of a row is not random."""
        self._others.reseed_rng()

    def _row_for(self, study: Study, trial: FrozenTrial) -> int:
        """The row of this trial, chosen when its first knob is asked for."""
        if trial.number not in self._chosen:
            self._chosen[trial.number] = self._choose(study, trial)
        return self._chosen[trial.number]

    def _choose(self, study: Study, trial: FrozenTrial) -> int:
        past = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        maximizes = study.direction is StudyDirection.MAXIMIZE
        shots = [
            _shot(t, row, maximizes=maximizes)
            for t in past
            if (row := self._row_of(t)) is not None
        ]
        has_others = any(set(t.params) - set(self._columns) for t in past)
        is_open = np.ones(len(self._chooser.forecast), bool)
        is_open[self._closed] = False
        if not has_others:  # else the same row is another candidate each time
            is_open[[shot.row for shot in shots]] = False
        if not is_open.any():
            is_open[:] = True  # a study that goes on after the last candidate may repeat
        variation = VARIATION if has_others else 0.0
        return replace(self._chooser, shots=shots, variation=variation).choose(is_open)

    def _row_of(self, trial: FrozenTrial) -> int | None:
        """The row that a trial ran; None where it is none of them."""
        if trial.number in self._chosen:
            return self._chosen[trial.number]
        return self._row_of_key.get(tuple(trial.params.get(name) for name in self._columns))


def _shot(trial: FrozenTrial, row: int, *, maximizes: bool) -> Shot:
    if trial.state in (TrialState.RUNNING, TrialState.WAITING):
        return Shot(row=row, is_running=True)
    if trial.state is not TrialState.COMPLETE:
        return Shot(row=row)
    peak_bytes = trial.user_attrs.get(PEAK_ATTRIBUTE)
    over, value = trial.constraints or {}, trial.value
    is_out_of_memory = over.get(MEMORY_CONSTRAINT, 0.0) > 0 and peak_bytes is None
    is_feasible = all(by <= 0 for by in over.values())
    seconds = None
    if is_feasible and value is not None and math.isfinite(value) and value > 0:
        seconds = 1 / value if maximizes else value
    return Shot(row=row, seconds=seconds, peak_bytes=peak_bytes, is_out_of_memory=is_out_of_memory)


def _check_allowed(name: str, value: KnobValue, distribution: BaseDistribution) -> None:
    try:
        is_allowed = distribution._contains(distribution.to_internal_repr(value))
    except (ValueError, TypeError):
        is_allowed = False
    if not is_allowed:
        raise ValueError(
            f"{name}={value!r} of the candidates is not in the study's {distribution}: give the "
            "candidates' values, or other candidates"
        )
