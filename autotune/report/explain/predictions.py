"""Predicted beside measured: what the cost model said of each trial before it, and how it did."""

import statistics
from collections.abc import Sequence
from typing import Any

from autotune.base.units import format_bytes, format_rate
from autotune.contract import TrialSpec
from autotune.record.spread import is_figure
from autotune.record.study import Trial

Case = tuple[float, float, float, float]
"""Measured, predicted, and the ends of its 90% interval."""


def forecast_errors(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """How far forecasts were off, for step time and memory.

    Returns:
        `name`, the median `error`, `n` trials, and `n_inside` their predicted interval; empty
        where no trial that measured was predicted.
    """
    by_name = {
        name: [case for trial in trials if (case := found(trial)) is not None]
        for name, found in (("step time", step_time), ("memory", peak_memory))
    }
    return [
        {
            "name": name,
            "error": statistics.median(
                abs(predicted / measured - 1) for measured, predicted, _, _ in cases
            ),
            "n": len(cases),
            "n_inside": _n_inside(cases),
        }
        for name, cases in by_name.items()
        if cases
    ]


def step_time(trial: Trial) -> Case | None:
    """Seconds of a step; None where it was not predicted or not measured."""
    predicted, result = trial.spec.provenance.predicted, trial.result
    if predicted is None or result is None or not is_figure(result) or not result.step_time_s:
        return None
    return (
        result.step_time_s,
        predicted.step_time_s,
        predicted.step_time_low_s,
        predicted.step_time_high_s,
    )


def peak_memory(trial: Trial) -> Case | None:
    """Bytes of the fullest device; None where they were not predicted, or the trial did not train.

    One that failed on the way has not reached its peak.
    """
    predicted, result = trial.spec.provenance.predicted, trial.result
    if (
        predicted is None
        or result is None
        or not is_figure(result)
        or not result.peak_memory_bytes
    ):
        return None
    ends = predicted.peak_memory_low_bytes, predicted.peak_memory_high_bytes
    return float(result.peak_memory_bytes), predicted.peak_memory_bytes, *ends


def predicted_rate(spec: TrialSpec) -> str:
    """`61.2 (52.4 to 71.5)` samples/s; empty where nothing was predicted."""
    if (predicted := spec.provenance.predicted) is None:
        return ""
    seconds = (predicted.step_time_s, predicted.step_time_high_s, predicted.step_time_low_s)
    rate, low, high = (format_rate(spec.layout.global_batch / each_s) for each_s in seconds)
    return f"{rate} ({low} to {high})"


def predicted_memory(spec: TrialSpec) -> str:
    """`812 MiB (700 MiB to 942 MiB)`; empty where nothing was predicted."""
    if (predicted := spec.provenance.predicted) is None:
        return ""
    low, high = (
        format_bytes(predicted.peak_memory_low_bytes),
        format_bytes(predicted.peak_memory_high_bytes),
    )
    return f"{format_bytes(predicted.peak_memory_bytes)} ({low} to {high})"


def _n_inside(cases: Sequence[Case]) -> int:
    return sum(low <= measured <= high for measured, _, low, high in cases)
