"""Figures in words, the same in the live view, the report and the files."""

from collections import Counter
from collections.abc import Mapping, Sequence

from autotune.base.units import (
    format_bytes,
    format_count,
    format_gain_interval,
    format_interval,
    format_rate,
)
from autotune.contract import Outcome, TrialResult
from autotune.job.fidelity import describe_fidelity
from autotune.record.answer import Standing
from autotune.record.study import Trial
from autotune.search.confirm import Comparison
from autotune.search.history import History


def chosen_word(objective: str) -> str:
    """What an objective, by its name, makes of the chosen one: of a front it is the knee."""
    return "knee" if objective == "pareto" else "best"


def describe_standing(standing: Standing) -> str:
    """`61.2 samples/s (59.9 to 62.7), peak 812 MiB, trial 5`."""
    memory = (
        f", peak {format_bytes(standing.peak_memory_bytes)}" if standing.peak_memory_bytes else ""
    )
    interval = format_interval(standing.samples_per_s_low, standing.samples_per_s_high)
    if standing.n_runs > 1:
        interval += f", {standing.n_runs} runs"
    return (
        f"{format_rate(standing.samples_per_s)} samples/s ({interval}){memory}, "
        f"trial {standing.trial}"
    )


def describe_race(comparison: Comparison) -> str:
    """`2 rounds, trial 5 leads: 1.20x the baseline (1.05 to 1.36)`."""
    if comparison.leader is None:
        return "no round is over"
    rounds = format_count(comparison.race.n_rounds, "round")
    text = f"{rounds}, trial {comparison.leader.trial} leads"
    if comparison.leader == comparison.start:
        text += ", the baseline"
    elif comparison.gain is not None:
        interval = format_gain_interval(comparison.gain.low, comparison.gain.high)
        text += f": {comparison.gain.ratio:.2f}x the baseline ({interval})"
    return text


def describe_others(comparison: Comparison) -> str:
    """`trial 7: 58.1 samples/s (2 runs)`: who is compared besides; empty: nobody has run."""
    return "; ".join(
        f"trial {one.trial}: {format_rate(one.samples_per_s)} samples/s "
        f"({format_count(one.n_runs, 'run')})"
        for one in comparison.others
    )


def why_lower(before: Standing, trials: Sequence[Trial]) -> str:
    """Why the best so far is slower than one before it; empty: its objective is not speed.

    Args:
        before: The best before.
        trials: Those of the record.
    """
    key, was = before.candidate.hash, f"trial {before.trial}, {format_rate(before.samples_per_s)}"
    for trial in trials:
        result = trial.result
        if result is None or trial.spec.identity.candidate_hash != key:
            continue
        if trial.spec.provenance.repeat_of == before.trial and result.outcome.is_measured:
            rate = format_rate(result.samples_per_s)
            return f"{was}, was disturbed: its repeat, trial {result.number}, counts ({rate})"
        if result.outcome.is_config_fault:
            return f"{was}, does not count any more: trial {result.number} of it ended with " + (
                result.outcome.value
            )
    return ""


def describe_counts(counts: Mapping[Outcome, int]) -> str:
    """`ok 6, oom 1`: the outcomes there are, in the order of `Outcome`."""
    seen = [f"{outcome.value} {counts[outcome]}" for outcome in Outcome if counts.get(outcome)]
    return ", ".join(seen) or "none yet"


def describe_ending(result: TrialResult) -> str:
    """`ok, 61.2 samples/s`, or `oom: CUDA out of memory`: what a trial came to, and why."""
    text = result.outcome.value
    if result.samples_per_s is not None:
        text += f", {format_rate(result.samples_per_s)} samples/s"
    return f"{text}: {result.evidence}" if result.evidence else text


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
