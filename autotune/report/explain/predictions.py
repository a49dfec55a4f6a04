"""Predicted beside measured: what the cost model said of each trial before it, and how it did."""

import statistics
from collections.abc import Sequence

from autotune.base.units import format_bytes
from autotune.contract import TrialSpec
from autotune.record.spread import is_figure
from autotune.record.study import Trial
from autotune.report.words import format_rate

Case = tuple[float, float, float, float]
"""Measured, predicted, and the ends of its 95% interval."""


def describe_foretold(trials: Sequence[Trial]) -> str | None:
    """How predictions did: `step time: median error 12%, 7 of 9 trials inside the ...; ...`.

    Returns:
        None where no trial that measured was predicted.
    """
    parts = [
        _describe(name, [case for trial in trials if (case := found(trial)) is not None])
        for name, found in (("step time", step_time), ("memory", peak_memory))
    ]
    return "; ".join(filter(None, parts)) or None


def step_time(trial: Trial) -> Case | None:
    """Seconds of a step; None where it was not predicted or not measured."""
    said, result = trial.spec.provenance.predicted, trial.result
    if said is None or result is None or not is_figure(result) or not result.step_time_s:
        return None
    return result.step_time_s, said.step_time_s, said.step_time_low_s, said.step_time_high_s


def peak_memory(trial: Trial) -> Case | None:
    """Bytes of the fullest device; None where they were not predicted or not measured."""
    said, result = trial.spec.provenance.predicted, trial.result
    if said is None or result is None or not result.peak_memory_bytes:
        return None
    ends = said.peak_memory_low_bytes, said.peak_memory_high_bytes
    return float(result.peak_memory_bytes), said.peak_memory_bytes, *ends


def predicted_rate(spec: TrialSpec) -> str:
    """`61.2 (52.4 to 71.5)` samples/s; empty where nothing was predicted."""
    if (said := spec.provenance.predicted) is None:
        return ""
    seconds = (said.step_time_s, said.step_time_high_s, said.step_time_low_s)
    rate, low, high = (format_rate(spec.layout.global_batch / each_s) for each_s in seconds)
    return f"{rate} ({low} to {high})"


def predicted_memory(spec: TrialSpec) -> str:
    """`812 MiB (700 MiB to 942 MiB)`; empty where nothing was predicted."""
    if (said := spec.provenance.predicted) is None:
        return ""
    low, high = format_bytes(said.peak_memory_low_bytes), format_bytes(said.peak_memory_high_bytes)
    return f"{format_bytes(said.peak_memory_bytes)} ({low} to {high})"


def _describe(name: str, cases: Sequence[Case]) -> str:
    if not cases:
        return ""
    n_inside = sum(low <= measured <= high for measured, _, low, high in cases)
    off = statistics.median(abs(said / measured - 1) for measured, said, _, _ in cases)
    return (
        f"{name}: median error {off:.0%}, {n_inside} of {len(cases)} trials inside the predicted "
        "95% interval"
    )
