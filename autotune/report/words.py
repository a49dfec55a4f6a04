"""Figures in words, the same in the live view, the report and the files."""

from collections import Counter
from collections.abc import Mapping

from autotune.base.units import format_bytes, format_interval, format_rate
from autotune.contract import Outcome, TrialResult
from autotune.job.fidelity import describe_fidelity
from autotune.record.answer import Standing
from autotune.search.history import History


def describe_standing(standing: Standing) -> str:
    """`61.2 samples/s (59.9 to 62.7), peak 812 MiB, trial 5`."""
    memory = (
        f", peak {format_bytes(standing.peak_memory_bytes)}" if standing.peak_memory_bytes else ""
    )
    interval = format_interval(standing.samples_per_s_low, standing.samples_per_s_high)
    return (
        f"{format_rate(standing.samples_per_s)} samples/s ({interval}){memory}, "
        f"trial {standing.trial}"
    )


def describe_counts(counts: Mapping[Outcome, int]) -> str:
    """`ok 6, oom 1`: the outcomes there are, in the order of `Outcome`."""
    seen = [f"{outcome.value} {counts[outcome]}" for outcome in Outcome if counts.get(outcome)]
    return ", ".join(seen) or "none yet"


def describe_ending(result: TrialResult) -> str:
    """`ok, 61.2 samples/s`, or `oom: CUDA out of memory`: what a trial came to, and why."""
    said = result.outcome.value
    if result.samples_per_s is not None:
        said += f", {format_rate(result.samples_per_s)} samples/s"
    return f"{said}: {result.evidence}" if result.evidence else said


def describe_reduced(history: History) -> str:
    """How many reduced trials there were, and what they count for; empty where there were none."""
    counts = Counter(
        describe_fidelity(t.spec.identity.fidelity)
        for t in history.reduced.trials
        if t.spec.identity.fidelity
    )
    if not counts:
        return ""
    said = ", ".join(f"{n} of {what}" for what, n in counts.items())
    n = sum(counts.values())
    return (
        f"{said}: {'this trial is' if n == 1 else 'these trials are'} in no ranking, and taught "
        "the forecast alone"
    )
