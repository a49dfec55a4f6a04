"""Memory and step time of all candidates of `Plans`."""

import dataclasses
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from autotune.cost.activations import activations_of
from autotune.cost.constants import Constants, load_constants
from autotune.cost.memory import Memory, fit_probability, memory_of
from autotune.cost.plans import Plans
from autotune.cost.sizes import sizes_of
from autotune.cost.step import StepTimes, step_times

_ROWS_PER_CHUNK = 4096
"""So that the columns in use stay in a core's cache."""

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One element per candidate in every array."""

    step_time_s: Values
    peak_memory_bytes: Values
    """On the fullest device, everything counted: what nvidia-smi would show."""
    fit_probability: Values
    """That the peak stays within the device's memory."""
    host_memory_bytes: Values
    """Of offloaded states, on one node."""
    times: StepTimes
    """The step by part; arrays."""
    memory: Memory
    """The peak by part; arrays."""


def predict(plans: Plans, constants: Constants | None = None) -> Prediction:
    """Predict every candidate; none is run.

    Args:
        plans: The candidates.
        constants: The shipped ones by default.
    """
    c = load_constants() if constants is None else constants
    n = len(plans)
    out: dict[str, Values] = {}
    for start in range(0, n, _ROWS_PER_CHUNK):
        part = slice(start, min(start + _ROWS_PER_CHUNK, n))
        for name, values in _columns(plans.rows(part) if n > _ROWS_PER_CHUNK else plans, c):
            if name not in out:
                out[name] = np.empty(n)
            out[name][part] = values
    return Prediction(
        step_time_s=out["times.step_s"],
        peak_memory_bytes=out["memory.peak_bytes"],
        fit_probability=out["fit_probability"],
        host_memory_bytes=out["host_memory_bytes"],
        times=StepTimes(**_under("times.", out)),
        memory=Memory(**_under("memory.", out)),
    )


def _columns(p: Plans, c: Constants) -> list[tuple[str, Values]]:
    s = sizes_of(p)
    times = step_times(p, s, c)
    memory = memory_of(p, s, activations_of(p, s), c)
    found = {
        "fit_probability": fit_probability(p, c, memory.peak_bytes),
        "host_memory_bytes": memory.host_bytes * p.devices_per_node,
    }
    for prefix, parts in (("times.", times), ("memory.", memory)):
        for field in dataclasses.fields(parts):
            found[prefix + field.name] = getattr(parts, field.name)
    return [(name, cast(Values, value)) for name, value in found.items()]


def _under(prefix: str, out: dict[str, Values]) -> dict[str, Values]:
    return {name.removeprefix(prefix): v for name, v in out.items() if name.startswith(prefix)}
