"""Facts of a search that several views tell, for their templates."""

from collections import Counter
from collections.abc import Mapping, Sequence

from autotune.base.units import format_rate
from autotune.contract import Outcome
from autotune.job.fidelity import describe_fidelity
from autotune.record.answer import Standing
from autotune.record.study import Trial
from autotune.search.history import History


def chosen_word(objective: str) -> str:
    """What an objective, by its name, makes of the chosen one: of a front it is the knee."""
    return "knee" if objective == "pareto" else "best"


def outcome_counts(counts: Mapping[Outcome, int]) -> dict[str, int]:
    """The outcomes there are, in the order of `Outcome`."""
    return {outcome.value: counts[outcome] for outcome in Outcome if counts.get(outcome)}


def why_lower(before: Standing, trials: Sequence[Trial]) -> str:
    """Why the best so far is slower than one before it; empty: its objective is not speed.

    Args:
        before: The best before.
        trials: Those of the record.
    """
    key, was = before.candidate.hash, f"trial {before.trial}, {format_rate(before.samples_per_s)}"
    for trial in trials:
        result = trial.result
        if result is None or trial.candidate_hash != key:
            continue
        if trial.spec.provenance.repeat_of == before.trial and result.outcome.is_measured:
            rate = format_rate(result.samples_per_s)
            return f"{was}, was disturbed: its repeat, trial {result.number}, counts ({rate})"
        if result.outcome.is_config_fault:
            return f"{was}, does not count any more: trial {result.number} of it ended with " + (
                result.outcome.value
            )
    return ""


def reduced_counts(history: History) -> dict[str, int]:
    """How many reduced trials there were, by their fidelity in words."""
    fidelities = (trial.spec.identity.fidelity for trial in history.reduced.trials)
    return dict(Counter(describe_fidelity(one) for one in fidelities if one))
