"""Whether a result's figures can be: none that contradict each other, or the trial's own spec.

Asked in one place, `autotune.record.study`, for whatever comes into the record or is read from it.
"""

import math
import statistics
from collections.abc import Iterator, Mapping

from autotune.contract.files import ContractError
from autotune.contract.result import Diagnosis, GpuUse, Split, TrialResult, Use
from autotune.contract.spec import TrialSpec
from autotune.contract.words import Origin

ROUNDING = 1e-6
"""Share by which figures that follow from one another may differ: they pass through JSON."""
_CLOCK_SHARE, _CLOCK_S = 0.02, 0.5
"""Room between times that different processes took: a share, and seconds besides."""
_METER_SHARE = 0.02
"""Room above a device's memory, as `autotune.search.objective.METER_SLACK` leaves it."""
_MOST_S = 1e9
"""Longest trial: thirty years."""

Complaint = tuple[str, object, str]
"""A figure's name, its value, and what it has to be."""


def check_result(
    result: TrialResult, spec: TrialSpec, *, device_memory_bytes: float | None = None
) -> None:
    """Check that this trial can have measured these figures.

    Args:
        result: What is said to have come of it.
        spec: What it was to do.
        device_memory_bytes: The most that a rank may have of a device; None: unknown.

    Raises:
        ContractError: It cannot: the first figure that cannot be, and what it has to be.
    """
    for name, value, what in _complaints(result, spec, device_memory_bytes):
        raise ContractError(f"TrialResult: {name}: {value} cannot be: {what}")


def _complaints(
    result: TrialResult, spec: TrialSpec, device_memory_bytes: float | None
) -> Iterator[Complaint]:
    if result.role is not spec.identity.role:
        yield "role", result.role, f"its spec says {spec.identity.role}"
    if result.devices and len(result.devices) != spec.layout.world:
        yield "devices", len(result.devices), f"the trial has {spec.layout.world} ranks"
    yield from _of_time(result)
    yield from _of_memory(result, device_memory_bytes)
    if result.outcome.is_measured:
        yield from _of_steps(result, spec)
    if result.use is not None:
        yield from _of_use(result.use)
    if result.diagnosis is not None:
        yield from _of_diagnosis(result.diagnosis, spec.layout.world)


def _of_time(result: TrialResult) -> Iterator[Complaint]:
    wall_s = result.wall_s
    if not 0 <= wall_s <= _MOST_S:
        yield "wall_s", wall_s, f"0 to {_MOST_S:.0e}"
    if not math.isfinite(result.started_at_s):
        yield "started_at_s", result.started_at_s, "a date"
    for phase, seconds in result.phases_s.items():
        if not 0 <= seconds <= _MOST_S:
            yield f"phases_s: {phase}", seconds, "from 0 on"
    # Whoever answers instead of running took no time for it.
    if result.origin is not Origin.MEASURED or not wall_s:
        return
    most_s = wall_s * (1 + _CLOCK_SHARE) + _CLOCK_S
    total_s = math.fsum(result.phases_s.values())
    if not total_s <= most_s:
        yield "phases_s, together", total_s, f"at most the trial's {wall_s:g} s"
    # The ranks meet after each step, so that the slowest one's times follow one another.
    stepped_s = math.fsum((*result.warmup_step_times_s, *result.step_times_s))
    if not stepped_s <= most_s:
        yield "step_times_s, together", stepped_s, f"at most the trial's {wall_s:g} s"


def _of_memory(result: TrialResult, device_memory_bytes: float | None) -> Iterator[Complaint]:
    peak = result.peak_memory_bytes
    least = 1 if result.outcome.is_measured else 0  # what died at once has taken nothing yet
    if peak is not None and peak < least:
        yield "peak_memory_bytes", peak, f"from {least} on"
    sizes = {f"memory_bytes: {meter}": size for meter, size in result.memory_bytes.items()}
    for name, size in {
        **sizes,
        "host_construction_bytes": result.host_construction_bytes,
        "steps_skipped": result.steps_skipped,
    }.items():
        if size is not None and size < 0:
            yield name, size, "from 0 on"
    # A table of others' runs has its own devices; a simulated one ends trials by its own limit.
    if peak is None or device_memory_bytes is None or result.origin is not Origin.MEASURED:
        return
    if not peak <= device_memory_bytes * (1 + _METER_SHARE):
        yield "peak_memory_bytes", peak, f"at most the {device_memory_bytes:.0f} that there are"


def _of_steps(result: TrialResult, spec: TrialSpec) -> Iterator[Complaint]:
    times_s, layout, measure = result.step_times_s, spec.layout, spec.measure
    if any(not 0 < each < math.inf for each in result.warmup_step_times_s):
        yield "warmup_step_times_s", min(result.warmup_step_times_s), "above 0"
    if not 1 <= len(times_s) <= max(1, measure.max_steps):
        yield "step_times_s", f"{len(times_s)} steps", f"1 to {measure.max_steps} of them"
        return
    step_s = result.step_time_s
    if step_s is None:
        yield "step_time_s", step_s, "measured"
        return
    median_s = statistics.median(times_s)
    if not _same(step_s, median_s):
        yield "step_time_s", step_s, f"the median of its steps is {median_s:g}"
    samples = layout.global_batch
    follow: Mapping[str, tuple[float | None, float | None]] = {
        "samples_per_s": (result.samples_per_s, step_s),
        "samples_per_s_low": (result.samples_per_s_low, result.step_time_high_s),
        "samples_per_s_high": (result.samples_per_s_high, result.step_time_low_s),
    }
    for name, (rate, of_s) in follow.items():
        if (rate is None) != (of_s is None):
            yield name, rate, f"its step time is {of_s}"
        elif rate is not None and of_s is not None and not _same(rate * of_s, samples):
            said = f"a step of {of_s:g} s and {samples} samples makes {samples / of_s:g}"
            yield name, rate, said
    low_s, high_s = result.step_time_low_s, result.step_time_high_s
    if low_s is not None and not low_s <= step_s * (1 + ROUNDING):
        yield "step_time_low_s", low_s, f"at most the median of {step_s:g}"
    if high_s is not None and not high_s >= step_s * (1 - ROUNDING):
        yield "step_time_high_s", high_s, f"at least the median of {step_s:g}"
    tokens, padded = result.tokens_per_step, result.padded_tokens_per_step
    for name, count in (("tokens_per_step", tokens), ("padded_tokens_per_step", padded)):
        if count is not None and not 0 < count < math.inf:
            yield name, count, "above 0"
    if tokens is not None and padded is not None and not tokens <= padded * (1 + ROUNDING):
        yield "tokens_per_step", tokens, f"at most the {padded:g} with padding"


def _of_use(use: Use) -> Iterator[Complaint]:
    for name in ("cpu_s", "cpu_utilization"):
        if not 0 <= getattr(use, name) <= _MOST_S:
            yield f"use: {name}", getattr(use, name), "from 0 on"
    if use.gpu is not None:
        yield from _of_gpu(use.gpu)


def _of_gpu(gpu: GpuUse) -> Iterator[Complaint]:
    for name in ("samples", "power_w", "energy_j", "clock_hz"):
        value = getattr(gpu, name)
        if value is not None and not 0 <= value < math.inf:
            yield f"use: gpu: {name}", value, "from 0 on"
    for name in ("utilization", "throttled"):
        value = getattr(gpu, name)
        if value is not None and not 0 <= value <= 1 + ROUNDING:
            yield f"use: gpu: {name}", value, "a share of 0 to 1"
    if gpu.temperature_c is not None and not -273.15 < gpu.temperature_c < 1000:
        yield "use: gpu: temperature_c", gpu.temperature_c, "a temperature"


def _of_diagnosis(diagnosis: Diagnosis, world: int) -> Iterator[Complaint]:
    if diagnosis.rank is not None and not 0 <= diagnosis.rank < world:
        yield "diagnosis: rank", diagnosis.rank, f"the trial has {world} ranks"
    if not 0 <= diagnosis.waiting_s <= _MOST_S:
        yield "diagnosis: waiting_s", diagnosis.waiting_s, "from 0 on"
    if diagnosis.split is not None:
        yield from _of_split(diagnosis.split)
    for call in diagnosis.collectives:
        for name in ("message_bytes", "transfer_s", "waiting_s"):
            if not 0 <= getattr(call, name) < math.inf:
                yield f"diagnosis: {call.name}: {name}", getattr(call, name), "from 0 on"
        for name in ("calls", "group_size"):
            if getattr(call, name) < 1:
                yield f"diagnosis: {call.name}: {name}", getattr(call, name), "from 1 on"
        for name in ("algbw_bytes_per_s", "busbw_bytes_per_s"):
            rate = getattr(call, name)
            if rate is not None and not 0 <= rate < math.inf:
                yield f"diagnosis: {call.name}: {name}", rate, "from 0 on"


def _of_split(split: Split) -> Iterator[Complaint]:
    for name, seconds in vars(split).items():
        if not 0 <= seconds <= _MOST_S:
            yield f"diagnosis: split: {name}", seconds, "from 0 on"
    parts = ("forward_s", "backward_s", "optimizer_s", "communication_s", "data_s")
    total_s = math.fsum(getattr(split, name) for name in parts)
    if not total_s <= split.step_s * (1 + _CLOCK_SHARE) + _CLOCK_S:
        yield "diagnosis: split, together", total_s, f"at most the step's {split.step_s:g} s"


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=ROUNDING)
