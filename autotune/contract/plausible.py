"""Whether a result's figures fit together: what a file that was cut or mixed up breaks.

Asked in one place, `autotune.record.study`, for whatever comes into the record or is read from it.
"""

import math
import statistics
from collections.abc import Iterator
from itertools import pairwise

from autotune.contract.files import ContractError
from autotune.contract.result import TrialResult
from autotune.contract.spec import TrialSpec

_ROUNDING = 1e-6
"""Share by which figures that follow from one another may differ: they pass through JSON."""
METER_SLACK = 0.02
"""Share by which a meter may show more than a limit, or than there is. A trial is held to its
limit while it runs; a GPU's context and communicators may still grow a little after the allocator
was capped, and a CPU rank's limit is counted in whole mappings."""
_CLOCK_SHARE, _CLOCK_S = 0.02, 0.5
"""Room between times that different processes took: a share, and seconds besides."""

Complaint = tuple[str, object, str]
"""A figure's name, its value, and what it has to be."""


def check_result(result: TrialResult, spec: TrialSpec) -> None:
    """Check that this trial can have measured these figures.

    Raises:
        ContractError: It cannot: the first figure that cannot be, and what it has to be.
    """
    for name, value, what in _complaints(result, spec):
        raise ContractError(f"TrialResult: {name}: {value} cannot be: {what}")


def _complaints(result: TrialResult, spec: TrialSpec) -> Iterator[Complaint]:
    peak, times_s = result.peak_memory_bytes, [*result.warmup_step_times_s, *result.step_times_s]
    if result.role is not spec.identity.role:
        yield "role", result.role, f"its spec says {spec.identity.role}"
    signed = {"wall_s": result.wall_s, "steps_skipped": result.steps_skipped}
    signed |= {} if peak is None else {"peak_memory_bytes": peak}
    signed |= {f"phases_s: {phase}": seconds for phase, seconds in result.phases_s.items()}
    signed |= {f"step_times_s: {n}": seconds for n, seconds in enumerate(times_s)}
    signed |= {f"memory_bytes: {name}": size for name, size in result.memory_bytes.items()}
    for name, value in signed.items():
        if not 0 <= value < math.inf:
            yield name, value, "from 0 on"
    most_s = result.wall_s * (1 + _CLOCK_SHARE) + _CLOCK_S if result.wall_s else math.inf
    # The ranks meet after each step, so that the slowest one's times follow one another.
    for name, total_s in (
        ("phases_s", sum(result.phases_s.values())),
        ("step_times_s", sum(times_s)),
    ):
        if total_s > most_s:
            yield f"{name}, together", total_s, f"at most the trial's {result.wall_s:g} s"
    if result.memory_bytes.get("peak", peak) != peak:
        yield "memory_bytes: peak", result.memory_bytes["peak"], f"peak_memory_bytes is {peak}"
    if result.outcome.is_measured:
        yield from _of_steps(result, spec)


def _of_steps(result: TrialResult, spec: TrialSpec) -> Iterator[Complaint]:
    n_steps, step_s = len(result.step_times_s), result.step_time_s
    if not 1 <= n_steps <= max(1, spec.measure.max_steps) or step_s is None:
        yield "step_times_s", f"{n_steps} steps", f"1 to {spec.measure.max_steps}, with a median"
        return
    median_s = statistics.median(result.step_times_s)
    if not _same(step_s, median_s):
        yield "step_time_s", step_s, f"the median of its steps is {median_s:g}"
    ends_s = (result.step_time_low_s, step_s, result.step_time_high_s)
    rates = (result.samples_per_s_high, result.samples_per_s, result.samples_per_s_low)
    for rate, of_s in zip(rates, ends_s, strict=True):
        is_sound = rate is None or of_s is None or _same(rate * of_s, spec.layout.global_batch)
        if (rate is None) != (of_s is None) or not is_sound:
            yield "samples_per_s", rate, f"{spec.layout.global_batch} samples a step of {of_s} s"
    known_s = [seconds for seconds in ends_s if seconds is not None]
    if any(low > high * (1 + _ROUNDING) for low, high in pairwise(known_s)):
        yield "step_time_s", step_s, f"within its interval, {ends_s[0]} to {ends_s[2]}"
    tokens, padded = result.tokens_per_step, result.padded_tokens_per_step
    if tokens is not None and padded is not None and not 0 < tokens <= padded * (1 + _ROUNDING):
        yield "tokens_per_step", tokens, f"above 0, and at most the {padded:g} with padding"


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_ROUNDING)
