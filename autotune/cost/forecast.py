"""Predictions of the analytic model for every candidate, in a form that can be calibrated."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from autotune.cost.constants import Constants
from autotune.cost.normal import Floats
from autotune.cost.plans import Column, PlanColumns, Plans, Recompute, Tier
from autotune.cost.predict import Prediction, predict
from autotune.cost.residual import Features, Seen

_DOUBLED = ("tp", "pp", "vp", "cp", "ulysses", "ep", "micro_batch", "recompute_every")
"""Columns of `Plans` whose values are doubled from one candidate to the next."""
_KINDS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("zero_stage", (1, 2, 3)),
    ("recompute", (Recompute.SELECTIVE, Recompute.FULL, Recompute.OPERATORS)),
    ("optimizer_tier", (Tier.CPU, Tier.NVME)),
    ("param_tier", (Tier.CPU, Tier.NVME)),
    ("sequence_parallel", (1,)),
    ("clears_pages", (1,)),
)
"""Columns whose values have no order, with those that differ from the first."""
_MEMORY_PARTS = (
    *("params_bytes", "grads_bytes", "optimizer_bytes", "activations_bytes", "logits_bytes"),
    *("buckets_bytes", "gathered_bytes", "workspace_bytes", "fragmentation_bytes"),
    "context_bytes",
)
"""Parts of the peak; the other fields of `Memory` are sums, or are not on the device."""


@dataclass(frozen=True, kw_only=True)
class Shot:
    """A trial of one candidate, as far as its forecast can learn from it."""

    seconds: float | None = None
    """Measured, in the forecast's unit; None: nothing was."""
    peak_bytes: float | None = None
    is_out_of_memory: bool = False
    is_running: bool = False
    limit_bytes: float | None = None
    """Memory that it had; None: that of the forecast."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SeenErrors:
    """Errors of a forecast that trials saw."""

    times: Seen
    peaks: Seen
    n_trials: int
    """Trials that they come from: one may have taught times, peaks or both."""

    def join(self, other: Self) -> "SeenErrors":
        return SeenErrors(
            times=self.times.join(other.times),
            peaks=self.peaks.join(other.peaks),
            n_trials=self.n_trials + other.n_trials,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Forecast(PlanColumns):
    """Predictions of a model for every candidate, before calibration."""

    seconds: Floats
    """Per step, or anything in proportion: all of it may be wrong by one factor."""
    features: Features
    """Parts of these seconds, and where the candidate stands."""
    peak_bytes: Floats | None = None
    """None: memory decides nothing."""
    memory_features: Features | None = None
    """Parts of these bytes; None: those of the seconds serve."""
    limit_bytes: float | None = None
    """Memory of a device; None: memory decides nothing."""

    @property
    def peak_features(self) -> Features:
        return self.features if self.memory_features is None else self.memory_features

    def errors(
        self, shots: Sequence[Shot], *, study: ArrayLike = 0, kinship: ArrayLike = 1.0
    ) -> SeenErrors:
        """Errors of the forecast that trials saw, a trial for each row.

        `study` and `kinship` are as in `Seen`. An unknown peak is above the limit where the trial
        ran out of memory, below it where it ran, and teaches nothing where there is no limit.
        """
        n = len(shots)

        def seen(features: Features, reached: Floats, predicted: Floats, side: Floats) -> Seen:
            ratio = np.log(reached) - np.log(predicted)
            found = Seen(
                features=features,
                log_ratio=ratio,
                side=side,
                study=np.broadcast_to(np.asarray(study, np.intp), n),
                kinship=np.broadcast_to(np.asarray(kinship, np.float64), n),
            )
            return found.take(np.isfinite(ratio))

        seconds, peaks, limits = (
            np.array([getattr(shot, name) or np.nan for shot in shots], np.float64)
            for name in ("seconds", "peak_bytes", "limit_bytes")
        )
        is_lost = np.array([shot.is_out_of_memory for shot in shots], bool)
        limits[np.isnan(limits)] = self.limit_bytes or np.nan
        is_known = ~np.isnan(peaks)
        is_telling = is_known | is_lost | ~np.isnan(seconds)
        bounds = np.where(is_telling, limits, np.nan)
        return SeenErrors(
            times=seen(self.features, seconds, self.seconds, np.zeros(n)),
            peaks=seen(
                self.peak_features,
                np.where(is_known, peaks, bounds),
                np.full(n, np.nan) if self.peak_bytes is None else self.peak_bytes,
                np.where(is_known, 0.0, np.where(is_lost, 1.0, -1.0)),
            ),
            n_trials=n,
        )


def forecast(plans: Plans, constants: Constants | None = None) -> Forecast:
    """Predict every candidate, with the parts of what is predicted."""
    return forecast_of(predict(plans, constants))


def forecast_of(predicted: Prediction) -> Forecast:
    """What was predicted of candidates, with its parts."""
    plans = predicted.plans
    position = _position(plans, len(plans))
    times = {
        field.name: getattr(predicted.times, field.name)
        for field in dataclasses.fields(predicted.times)
        if field.name != "step_s"
    }
    memory = {name: getattr(predicted.memory, name) for name in _MEMORY_PARTS}
    return Forecast(
        seconds=predicted.step_time_s,
        features=Features(
            shares=_shares(list(times.values()), predicted.step_time_s), position=position
        ),
        peak_bytes=predicted.peak_memory_bytes,
        memory_features=Features(
            shares=_shares(list(memory.values()), predicted.peak_memory_bytes), position=position
        ),
        limit_bytes=float(np.min(plans.memory_bytes)),
    )


def _shares(parts: list[Column], total: Floats) -> Floats:
    found: Floats = np.stack([np.broadcast_to(part, total.shape) / total for part in parts], 1)
    return found


def _position(plans: Plans, n: int) -> Floats:
    columns = [np.log2(np.maximum(1.0, getattr(plans, name))) for name in _DOUBLED]
    columns += [
        np.equal(getattr(plans, name), value).astype(np.float64)
        for name, values in _KINDS
        for value in values
    ]
    found: Floats = np.stack([np.broadcast_to(column, (n,)) for column in columns], 1)
    return found
