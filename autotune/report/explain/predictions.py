"""Predicted beside measured: what the cost model said of each trial before it, and how it did."""

import statistics
from collections.abc import Sequence
from typing import Any

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
        name: [case for trial in trials if (case := _case(trial, figure)) is not None]
        for name, figure in (("step time", "step_time_s"), ("memory", "peak_memory_bytes"))
    }
    found = []
    for name, cases in by_name.items():
        errors = [abs(predicted / measured - 1) for measured, predicted, _, _ in cases]
        n_inside = sum(low <= measured <= high for measured, _, low, high in cases)
        if cases:
            error = statistics.median(errors)
            found.append({"name": name, "error": error, "n": len(cases), "n_inside": n_inside})
    return found


def _case(trial: Trial, figure: str) -> Case | None:
    """A figure of a trial; None where it was not predicted, or the trial did not train.

    One that failed on the way has not reached its peak.
    """
    predicted, result = trial.spec.provenance.predicted, trial.result
    if predicted is None or result is None or not is_figure(result):
        return None
    name, _, unit = figure.rpartition("_")
    measured = getattr(result, figure)
    ends = (getattr(predicted, f"{name}{end}_{unit}") for end in ("", "_low", "_high"))
    return (float(measured), *ends) if measured else None
