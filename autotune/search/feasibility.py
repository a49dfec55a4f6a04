"""What to say when nothing ran: what was seen, and the nearest change that could help."""

from collections import Counter

from autotune.base.errors import NothingFeasibleError
from autotune.base.units import format_bytes
from autotune.contract import Outcome
from autotune.search.history import History, results
from autotune.search.objective import Objective
from autotune.search.reduced import too_large

_CHANGES = (
    ("recompute", "none", "recomputation (a space with recompute: [none, full])"),
    ("offload.optimizer", "none", "optimizer offload to the host (--space zero_offload)"),
    ("offload.param", "none", "parameter offload to the host (--space zero_offload)"),
)


def nothing_feasible(history: History, objective: Objective) -> NothingFeasibleError:
    """The error for a search in which no trial ran within the limits."""
    ended = results(history.trials)
    if not ended:
        return NothingFeasibleError(
            "no candidate of the space is legal for this job, and no baseline either",
            "see what the rules say with --dry-run; choose a global batch that the world divides, "
            "or another space",
        )
    lines = [f"none of {len(ended)} trials ran within the limits:"]
    for outcome, count in sorted(Counter(result.outcome for result in ended).items()):
        first = next(result for result in ended if result.outcome is outcome)
        evidence = first.evidence or (
            f"peak memory {format_bytes(first.peak_memory_bytes)} is above the "
            f"{format_bytes(objective.allowed_bytes)} that are allowed"
        )
        lines.append(f"  {outcome} x {count}, such as trial {first.number}: {evidence}")
    if lost := too_large(history):
        lines.append(f"  {len(lost)} more candidates ran out of memory with fewer layers already")
    return NothingFeasibleError("\n".join(lines), _nearest_change(history, objective))


def _nearest_change(history: History, objective: Objective) -> str:
    ended = results(history.trials)
    # An out-of-memory trial's peak is where it stopped, not what it would have needed.
    whole = [r.peak_memory_bytes for r in ended if r.outcome.is_measured and r.peak_memory_bytes]
    short_of_memory = bool(whole) or any(r.outcome is Outcome.OOM for r in ended)
    if not short_of_memory:
        last = ended[-1]
        return f"see stderr.log of trial {last.number}; `autotune doctor` checks the machine"
    allowed = format_bytes(objective.allowed_bytes)
    seen = f"every trial ran out of the {allowed} that are allowed"
    if whole:
        peak = format_bytes(min(whole))
        seen = f"the smallest peak of a trial that ran is {peak}, allowed are {allowed}"
    tried = history.tried
    changes = [f"more memory: {seen}"]
    changes += [
        change
        for knob, neutral, change in _CHANGES
        if all(t.candidate.get(knob, neutral) == neutral for t in tried)
    ]
    smallest = min(t.candidate.micro_batch for t in tried)
    if smallest > 1:
        changes.append(f"a micro_batch below {smallest}")
    return "nearest changes: " + "; ".join(changes)
