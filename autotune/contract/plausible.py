"""Whether a result's figures can be: none that contradict each other, or the trial's own spec.

Asked in one place, `autotune.record.study`, for whatever comes into the record or is read from it.
"""

import math
import statistics
from collections.abc import Iterator, Mapping

from autotune.contract.files import ContractError
from autotune.contract.result import (
    Collective,
    Diagnosis,
    GpuUse,
    Split,
    TrialResult,
    Use,
)
from autotune.contract.spec import TrialSpec
from autotune.contract.words import Origin, Phase, Role

ROUNDING = 1e-6
"""Share by which figures that follow from one another may differ: they pass through JSON."""
_CLOCK_SHARE, _CLOCK_S = 0.02, 0.5
"""Room between times that different processes took: a share, and seconds besides."""
METER_SLACK = 0.02
"""Share by which a meter may show more than a limit, or than there is. A trial is held to its
limit while it runs; a GPU's context and communicators may still grow a little after the allocator
was capped, and a CPU rank's limit is counted in whole mappings."""
_MOST_S = 1e9
"""Longest trial: thirty years."""
_LEAST_STEP_S = 1e-6
"""A kernel alone takes that."""
_LEAST_PEAK_BYTES = 4096
"""Whoever trained touched a page."""
_MOST_BYTES = 2**50
"""Largest memory or message: no device and no host has it."""
_MOST_COUNT = 10**9
"""Largest number of steps, calls, readings or cores."""
_MOST_RATE = 1e18
"""Fastest clock or link, in Hz or bytes/s."""
_MOST_CORES = 1e5
"""Cores that a rank may compute on."""
_MOST_W = 1e5
"""Power of a device."""
_MOST_SKIPPED = 100
"""Steps that a loss scale may skip besides as many as were applied: training fails at half."""
_STEPPED_SHARE, _STEPPED_S = 0.25, 0.5
"""Share of the measured phase that its steps are at least, less these seconds: they follow one
another."""

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
    world = spec.layout.world
    if result.devices and len(set(result.devices)) != world:
        yield "devices", len(set(result.devices)), f"the trial has {world} ranks"
    if result.origin is Origin.MEASURED:
        yield from _of_time(result)
    else:
        yield from _of_an_answer(result)
    yield from _of_phases(result)
    yield from _of_memory(result, device_memory_bytes)
    if result.outcome.is_measured:
        yield from _of_steps(result, spec)
        yield from _of_tokens(result, spec)
    # Nothing within a trial took longer than all of it.
    most_s = _with_room(result.wall_s) if result.wall_s else _MOST_S
    if result.use is not None:
        yield from _of_use(result.use, world, most_s)
    if result.diagnosis is not None:
        yield from _of_diagnosis(result.diagnosis, world, most_s)


def _with_room(seconds: float) -> float:
    """The most that another process may have counted in the same time."""
    return seconds * (1 + _CLOCK_SHARE) + _CLOCK_S


def _of_an_answer(result: TrialResult) -> Iterator[Complaint]:
    """Whoever answers instead of running has no phases and no devices; a time may be told, too."""
    ran = {"phases_s": result.phases_s, "devices": result.devices}
    for name, value in {**ran, "use": result.use, "diagnosis": result.diagnosis}.items():
        if value:
            yield name, value, f"nothing ran: its figures are {result.origin}"


def _of_time(result: TrialResult) -> Iterator[Complaint]:
    if result.outcome.is_measured and result.phases_s and not result.wall_s:
        yield "wall_s", result.wall_s, "the time that its phases took"


def _of_phases(result: TrialResult) -> Iterator[Complaint]:
    wall_s = result.wall_s
    if not 0 <= wall_s <= _MOST_S:
        yield "wall_s", wall_s, f"0 to {_MOST_S:.0e}"
    if not math.isfinite(result.started_at_s):
        yield "started_at_s", result.started_at_s, "a date"
    for phase, seconds in result.phases_s.items():
        if not 0 <= seconds <= _MOST_S:
            yield f"phases_s: {phase}", seconds, "from 0 on"
    if not wall_s:
        return
    total_s = math.fsum(result.phases_s.values())
    if not total_s <= _with_room(wall_s):
        yield "phases_s, together", total_s, f"at most the trial's {wall_s:g} s"
    # The ranks meet after each step, so that the slowest one's times follow one another.
    stepped_s = math.fsum((*result.warmup_step_times_s, *result.step_times_s))
    if not stepped_s <= _with_room(wall_s):
        yield "step_times_s, together", stepped_s, f"at most the trial's {wall_s:g} s"
    measured_s = result.phases_s.get(Phase.MEASURED)
    if measured_s is None or not result.outcome.is_measured:
        return
    counted_s = math.fsum(result.step_times_s)
    if not counted_s <= _with_room(measured_s):
        said = f"at most the {measured_s:g} s that it measured"
        yield "step_times_s, together", counted_s, said
    # A soak saves a checkpoint in this phase; skipped steps have no time.
    is_all = result.role is not Role.SOAK and not result.steps_skipped
    least_s = measured_s * _STEPPED_SHARE - _STEPPED_S
    if is_all and not stepped_s >= least_s:
        said = f"at least {least_s:g} s of the {measured_s:g} s that it measured"
        yield "step_times_s, together", stepped_s, said


def _of_memory(result: TrialResult, device_memory_bytes: float | None) -> Iterator[Complaint]:
    peak = result.peak_memory_bytes
    # What died at once has taken nothing yet.
    least = _LEAST_PEAK_BYTES if result.outcome.is_measured else 0
    if peak is not None and not least <= peak <= _MOST_BYTES:
        yield "peak_memory_bytes", peak, f"{least} to 2**50"
    if (by_meter := result.memory_bytes.get("peak", peak)) != peak:
        yield "memory_bytes: peak", by_meter, f"peak_memory_bytes is {peak}"
    sizes = {f"memory_bytes: {meter}": size for meter, size in result.memory_bytes.items()}
    construction = result.host_construction_bytes
    for name, size in {**sizes, "host_construction_bytes": construction}.items():
        if size is not None and not 0 <= size <= _MOST_BYTES:
            yield name, size, "0 to 2**50"
    if peak is None or device_memory_bytes is None:
        return
    if not peak <= device_memory_bytes * (1 + METER_SLACK):
        yield "peak_memory_bytes", peak, f"at most the {device_memory_bytes:.0f} that there are"


def _of_steps(result: TrialResult, spec: TrialSpec) -> Iterator[Complaint]:
    times_s, layout, measure = result.step_times_s, spec.layout, spec.measure
    for name, each_s in (
        ("warmup_step_times_s", result.warmup_step_times_s),
        ("step_times_s", times_s),
    ):
        if any(not _LEAST_STEP_S <= each <= _MOST_S for each in each_s):
            yield name, min(each_s), f"{_LEAST_STEP_S:g} to {_MOST_S:.0e} s each"
            return
    most = _MOST_SKIPPED + len(times_s) + len(result.warmup_step_times_s)
    if not 0 <= result.steps_skipped <= most:
        yield "steps_skipped", result.steps_skipped, f"0 to {most}: more end a trial"
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


def _of_tokens(result: TrialResult, spec: TrialSpec) -> Iterator[Complaint]:
    tokens, padded = result.tokens_per_step, result.padded_tokens_per_step
    # Rows are padded to a multiple, which may be more than the longest sample has.
    multiple = spec.workload.lengths.get("pad_to_multiple")
    longest = spec.workload.seq_len + (multiple if isinstance(multiple, int) else 0)
    most = longest * spec.layout.global_batch * (1 + ROUNDING)
    for name, count in (("tokens_per_step", tokens), ("padded_tokens_per_step", padded)):
        if count is not None and not 0 < count <= most:
            yield name, count, f"above 0, and at most the {most:g} of a batch"
    if tokens is not None and padded is not None and not tokens <= padded * (1 + ROUNDING):
        yield "tokens_per_step", tokens, f"at most the {padded:g} with padding"


def _of_use(use: Use, world: int, most_s: float) -> Iterator[Complaint]:
    most_of = {"cpu_s": most_s * _MOST_CORES * world, "cpu_utilization": _MOST_CORES}
    for name, most in most_of.items():
        if not 0 <= getattr(use, name) <= most:
            yield f"use: {name}", getattr(use, name), f"0 to {most:g}"
    if use.gpu is not None:
        yield from _of_gpu(use.gpu, most_j=_MOST_W * world * most_s)


def _of_gpu(gpu: GpuUse, *, most_j: float) -> Iterator[Complaint]:
    most_of = {
        "samples": _MOST_COUNT,
        "power_w": _MOST_W,
        "energy_j": most_j,
        "clock_hz": _MOST_RATE,
        "utilization": 1 + ROUNDING,
        "throttled": 1 + ROUNDING,
    }
    for name, most in most_of.items():
        value = getattr(gpu, name)
        if value is not None and not 0 <= value <= most:
            yield f"use: gpu: {name}", value, f"0 to {most:g}"
    if gpu.temperature_c is not None and not -273.15 < gpu.temperature_c < 1000:
        yield "use: gpu: temperature_c", gpu.temperature_c, "a temperature"


def _of_diagnosis(diagnosis: Diagnosis, world: int, most_s: float) -> Iterator[Complaint]:
    if not 0 <= diagnosis.steps <= _MOST_COUNT:
        yield "diagnosis: steps", diagnosis.steps, f"0 to {_MOST_COUNT:g}"
    if diagnosis.rank is not None and not 0 <= diagnosis.rank < world:
        yield "diagnosis: rank", diagnosis.rank, f"the trial has {world} ranks"
    if not 0 <= diagnosis.waiting_s <= most_s:
        yield "diagnosis: waiting_s", diagnosis.waiting_s, f"0 to {most_s:g}"
    if diagnosis.split is not None:
        yield from _of_split(diagnosis.split, most_s)
    for call in diagnosis.collectives:
        yield from _of_collective(call, world, most_s)


def _of_collective(call: Collective, world: int, most_s: float) -> Iterator[Complaint]:
    bounds: Mapping[str, tuple[float, float]] = {
        "message_bytes": (0, _MOST_BYTES),
        "transfer_s": (0, most_s),
        "waiting_s": (0, most_s),
        "calls": (1, _MOST_COUNT),
        # A call between two ranks is told as one of two, whatever the gang.
        "group_size": (1, max(2, world)),
        "algbw_bytes_per_s": (0, _MOST_RATE),
        "busbw_bytes_per_s": (0, _MOST_RATE),
    }
    for name, (least, most) in bounds.items():
        value = getattr(call, name)
        if value is not None and not least <= value <= most:
            yield f"diagnosis: {call.name}: {name}", value, f"{least:g} to {most:g}"


_PARTS = (
    ("forward_s", "backward_s", "optimizer_s", "communication_s", "data_s"),
    ("matmul_s", "memory_s", "host_s", "communication_s", "optimizer_s"),
    ("overlapped_s",),
)
"""Parts of a step, for each way of taking it apart."""


def _of_split(split: Split, most_s: float) -> Iterator[Complaint]:
    for name, seconds in vars(split).items():
        if not 0 <= seconds <= most_s:
            yield f"diagnosis: split: {name}", seconds, f"0 to {most_s:g}"
    for parts in _PARTS:
        total_s = math.fsum(getattr(split, name) for name in parts)
        if not total_s <= split.step_s * (1 + _CLOCK_SHARE):
            said = f"at most the step's {split.step_s:g} s"
            yield f"diagnosis: split, together from {parts[0]}", total_s, said


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=ROUNDING)
