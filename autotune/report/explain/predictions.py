"""Predicted beside measured: what the cost model said of each trial before it, and how it did."""

import statistics
from collections.abc import Sequence

from autotune.base.units import format_bytes, format_rate
from autotune.contract import Role, TrialSpec
from autotune.job.fidelity import describe_fidelity
from autotune.record.spread import is_figure
from autotune.record.study import Trial
from autotune.search.history import History, Tried, results

Case = tuple[float, float, float, float]
"""Measured, predicted, and the ends of its 90% interval."""


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


def describe_extrapolated(history: History) -> str:
    """How far the forecasts that reduced trials taught were off the whole candidates.

    Of each candidate that ran reduced first and whole later: the step time that was predicted
    before its first whole trial, against the median of all its whole runs, those of the final
    comparison among them.

    Returns:
        Such as `step time of 2 candidates, after trials of 1 layer: median error 12%, at most 20%;
        ...`; empty where no candidate ran both ways.
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
        return ""
    errors = [said / measured - 1 for measured, said, _, _ in cases]
    sizes = sorted(map(abs, errors))
    one = len(cases) == 1
    far = f"error {sizes[0]:.0%}" if one else f"median error {statistics.median(sizes):.0%}"
    return (
        f"step time of {len(cases)} candidate{'' if one else 's'}, predicted after trials of "
        f"{' and '.join(fidelities)}: {far}{'' if one else f', at most {sizes[-1]:.0%}'}; "
        f"{sum(error > 0 for error in errors)} too long, {_n_inside(cases)} inside the predicted "
        "90% interval"
    )


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


def _describe(name: str, cases: Sequence[Case]) -> str:
    if not cases:
        return ""
    off = statistics.median(abs(said / measured - 1) for measured, said, _, _ in cases)
    return (
        f"{name}: median error {off:.0%}, {_n_inside(cases)} of {len(cases)} trials inside the "
        "predicted 90% interval"
    )


def _n_inside(cases: Sequence[Case]) -> int:
    return sum(low <= measured <= high for measured, _, low, high in cases)
