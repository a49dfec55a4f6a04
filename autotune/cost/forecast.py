"""Predictions of the analytic model for every candidate, in a form that can be calibrated."""

import dataclasses
from dataclasses import dataclass

import numpy as np

from autotune.cost.constants import Constants
from autotune.cost.normal import Floats
from autotune.cost.plans import Column, PlanColumns, Plans, Recompute, Tier
from autotune.cost.predict import Prediction, predict
from autotune.cost.residual import Features

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
