"""Memory and step time of all candidates of `Plans`."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autotune.cost.activations import activations_of
from autotune.cost.constants import Constants, load_constants
from autotune.cost.memory import Memory, memory_of
from autotune.cost.plans import Column, PlanColumns, Plans
from autotune.cost.sizes import sizes_of
from autotune.cost.step import StepTimes, step_times

_ROWS_PER_CHUNK = 4096
"""Rows at a time: few enough that the columns in use stay in a core's cache."""

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Prediction(PlanColumns):
    """One element per candidate in every array; `take` works out the parts of those alone."""

    step_time_s: Values
    peak_memory_bytes: Values
    """Peak of the fullest device, everything counted: what nvidia-smi would show."""
    fit_probability: Values
    """Probability that the peak stays within the device's memory: 0 or 1 by the peak alone, until
    `Margin.judge` says how far it may be off."""
    host_memory_bytes: Values
    """Memory of offloaded states and activations, on one node."""
    plans: Plans
    constants: Constants

    @cached_property
    def times(self) -> StepTimes:
        """The step by part; arrays. Worked out when it is first asked for."""
        return StepTimes(**_by_chunk(self.plans, lambda p: vars(_times(p, self.constants))))

    @cached_property
    def memory(self) -> Memory:
        """The peak by part, of the stage that a published figure is of; arrays.

        Worked out when it is first asked for.
        """

        def work(p: Plans) -> dict[str, Column]:
            s = sizes_of(p)
            return vars(memory_of(p, s, activations_of(p, s), self.constants, watched=True))

        return Memory(**_by_chunk(self.plans, work))


def predict(plans: Plans, constants: Constants | None = None) -> Prediction:
    """Predict every candidate; none is run. The constants are the shipped ones by default."""
    c = load_constants() if constants is None else constants

    def totals(p: Plans) -> dict[str, Column]:
        s = sizes_of(p)
        memory, times = memory_of(p, s, activations_of(p, s), c), _times(p, c)
        return {
            **vars(times),
            "step_time_s": times.step_s,
            "peak_memory_bytes": memory.peak_bytes,
            "fit_probability": np.less_equal(memory.peak_bytes, p.memory_bytes) * 1.0,
            "host_memory_bytes": memory.host_bytes * p.devices_per_node,
        }

    found = _by_chunk(plans, totals)
    times = StepTimes(**{field.name: found.pop(field.name) for field in fields(StepTimes)})
    prediction = Prediction(**found, plans=plans, constants=c)
    vars(prediction)["times"] = times  # known already: margins ask for them
    return prediction


def _times(p: Plans, c: Constants) -> StepTimes:
    """The step by part."""
    p = _padded(p)
    return step_times(p, sizes_of(p), c)


def _padded(p: Plans) -> Plans:
    """The plans as time goes by them: samples of several lengths have the mean padded one."""
    if not np.any(p.padded_seq_len):
        return p
    return replace(p, seq_len=np.where(p.padded_seq_len, p.padded_seq_len, p.seq_len))


def _by_chunk(plans: Plans, work: Callable[[Plans], dict[str, Column]]) -> dict[str, Values]:
    """Results of `work`, a chunk of rows at a time, as whole columns."""
    n = len(plans)
    out: dict[str, Values] = {}
    for start in range(0, n, _ROWS_PER_CHUNK):
        part = slice(start, min(start + _ROWS_PER_CHUNK, n))
        for name, values in work(plans.take(part) if n > _ROWS_PER_CHUNK else plans).items():
            if name not in out:
                out[name] = np.empty(n)
            out[name][part] = values
    return out
