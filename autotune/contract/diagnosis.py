"""What a trial saw of itself besides its step time: where the time went, and what it took."""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Split:
    """Where the time of an optimizer step went on one rank.

    `forward_s` to `data_s` add up to `step_s`; so do `matmul_s` to `host_s` with
    `communication_s` and `optimizer_s`. All are seconds per optimizer step under the profiler,
    which is a little slower than a measured one: read them as shares.
    """

    step_s: float
    forward_s: float
    """Time in the engine's forward, without communication; the next two likewise."""
    backward_s: float
    optimizer_s: float
    """Time in the engine's step; ZeRO 1 and 2 reduce the gradients before it, in backward."""
    communication_s: float
    """Time in collectives while nothing was computed, waiting for other ranks included."""
    data_s: float
    """Time between the engine's calls: the batch, and whatever else a script does there."""
    overlapped_s: float
    """Time in collectives while something was computed: it adds nothing to the step."""
    matmul_s: float
    """Time in matrix products and attention, the optimizer left out; the next two likewise."""
    memory_s: float
    """Time in all other operations."""
    host_s: float
    """Time in no operation: Python and launches; on a GPU, the device is idle."""


@dataclass(frozen=True, kw_only=True)
class CollectiveCalls:
    """The calls of one collective with one message size, on one rank in one optimizer step."""

    name: str
    message_bytes: int
    """Size of the tensor that a rank hands in, as DeepSpeed counts it."""
    group_size: int
    """Ranks that take part."""
    seconds: list[float]
    """Time of each call in order, until its result was there."""


@dataclass(frozen=True, kw_only=True)
class RankDiagnosis:
    """What one rank saw in the diagnostic pass."""

    steps: int = 0
    """Optimizer steps behind `split`."""
    split: Split | None = None
    calls: list[CollectiveCalls] = field(default_factory=list)
    problem: str = ""
    """Why something is missing; empty where nothing is."""


@dataclass(frozen=True, kw_only=True)
class Collective:
    """The calls of one collective with one message size, per optimizer step."""

    name: str
    message_bytes: int
    group_size: int
    calls: int
    transfer_s: float
    """Together, each from the arrival of the last rank: the shortest time of any rank."""
    waiting_s: float
    """Time that a rank waited besides, for those that came later; the mean over the ranks."""
    algbw_bytes_per_s: float | None
    """Bytes of the result over the time of a call; None where nothing is sent."""
    busbw_bytes_per_s: float | None
    """The same times the share that each link carries (nccl-tests, PERFORMANCE.md)."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What a trial saw in the diagnostic pass, all ranks together."""

    steps: int = 0
    """Optimizer steps behind `split`."""
    rank: int | None = None
    """The rank that `split` is of: it waits least, so the others wait for it."""
    split: Split | None = None
    waiting_s: float = 0.0
    """How much longer the other ranks were in communication than that one, per step; the mean."""
    collectives: list[Collective] = field(default_factory=list)
    """Collectives, those that take longest first; calls past DeepSpeed are not among them."""
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class GpuUse:
    """What the devices of a trial's gang did during the measured steps, by NVML."""

    samples: int
    """Readings of each device within the measured steps."""
    utilization: float | None
    """Share of the time in which a kernel ran, 0 to 1; the mean."""
    power_w: float | None
    """Power of a device; the mean."""
    energy_j: float | None
    """Energy of all devices of the gang together, over the measured steps."""
    clock_hz: float | None
    """Clock of the multiprocessors; the mean."""
    temperature_c: float | None
    """Highest of any device."""
    throttled: float | None
    """Share of the readings in which the driver held the clock down, 0 to 1."""
    throttle_reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Use:
    """What the measured steps of a trial took besides time."""

    cpu_s: float
    """Processor time of all ranks together."""
    cpu_utilization: float
    """Processor time of a rank over the time that its measured steps took; the mean."""
    gpu: GpuUse | None = None
    """None on CPU ranks, and where the driver did not answer."""
