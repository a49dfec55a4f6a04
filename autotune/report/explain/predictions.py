"""Predicted beside measured: what the cost model said of each trial before it, and how it did."""

import statistics
from collections.abc import Sequence
from typing import Any

from autotune.base.units import format_bytes, format_rate
from autotune.contract import Role, TrialSpec
from autotune.job.fidelity import describe_fidelity
from autotune.record.spread import is_figure
from autotune.record.study import Trial
from autotune.search.history import History, Tried, results

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
            "error": statistics.median(abs(said / measured - 1) for measured, said, _, _ in cases),
            "n": len(cases),
            "n_inside": _n_inside(cases),
        }
        for name, cases in by_name.items()
        if cases
    ]


def extrapolation_errors(history: History) -> dict[str, Any] | None:
    """How far the forecasts that reduced trials taught were off the whole candidates.

    Of each candidate that ran reduced first and whole later: the step time that was predicted
    before its first whole trial, against the median of all its whole runs, those of the final
    comparison among them.

    Returns:
        `fidelities` of the reduced trials, `n` candidates, the median `error`, the largest
        (`most`), how many were predicted `too_long` and how many lie inside; None where no
        candidate ran both ways.
    """
    reduced = {
        tried.trials[0].spec.identity.reduced_of: tried
        for tried in history.reduced.tried
        if tried.measured is not None
    }
    cases: list[Case] = []
    fidelities: dict[str, None] = {}
    for tried in history.tried:
        form = reduced.get(tried.candidate.hash)
        case = None if form is None else _extrapolated(form, tried)
        if form is not None and case is not None:
            cases.append(case)
            fidelity = form.trials[0].spec.identity.fidelity
            fidelities[describe_fidelity(fidelity) if fidelity else ""] = None
    if not cases:
        return None
    errors = [said / measured - 1 for measured, said, _, _ in cases]
    sizes = [*map(abs, errors)]
    return {
        "fidelities": list(fidelities),
        "n": len(cases),
        "error": statistics.median(sizes),
        "most": max(sizes),
        "too_long": sum(error > 0 for error in errors),
        "n_inside": _n_inside(cases),
    }


def _extrapolated(form: Tried, whole: Tried) -> Case | None:
    """The first whole trial of a candidate after its reduced one; measured are all its runs."""
    last = max(trial.spec.identity.number for trial in form.trials)
    runs = [r.step_time_s for r in results(whole.trials) if is_figure(r) and r.step_time_s]
    for trial in whole.trials:
        identity = trial.spec.identity
        if identity.number > last and identity.role is not Role.CONFIRM:
            found = step_time(trial)
            return None if found is None else (statistics.median(runs), *found[1:])
    return None


def step_time(trial: Trial) -> Case | None:
    """Seconds of a step; None where it was not predicted or not measured."""
    said, result = trial.spec.provenance.predicted, trial.result
    if said is None or result is None or not is_figure(result) or not result.step_time_s:
        return None
    return result.step_time_s, said.step_time_s, said.step_time_low_s, said.step_time_high_s


def peak_memory(trial: Trial) -> Case | None:
    """Bytes of the fullest device; None where they were not predicted, or the trial did not train.

    One that failed on the way has not reached its peak.
    """
    said, result = trial.spec.provenance.predicted, trial.result
    if said is None or result is None or not is_figure(result) or not result.peak_memory_bytes:
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


def _n_inside(cases: Sequence[Case]) -> int:
    return sum(low <= measured <= high for measured, _, low, high in cases)
