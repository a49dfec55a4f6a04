"""What comes out of a trial: a rank's report, a node's report, and the result of them all.

Besides step times they say where the time went (`Split`, `Diagnosis`), and what it took (`Use`).
"""

import signal
from dataclasses import asdict, dataclass, field
from typing import Any

from autotune.contract.files import SCHEMA_VERSION, ContractError, Stored, check_figures, is_count
from autotune.contract.spec import Identity, TrialSpec
from autotune.contract.words import Origin, Outcome, Phase, Role, Start

OWN_LOG_TIME_SHARE = 0.05
"""Share of a step's time by which an engine's own log may differ: it takes its time elsewhere."""
OWN_LOG_LOSS_SHARE = 1e-4
"""Share of a loss by which it may differ: it is printed with seven digits."""
MOST_LOSSES = 200
"""Steps whose losses a result keeps, from the first on."""


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
    """Measurements of one rank in the diagnostic pass."""

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
    """Measurements of a trial's diagnostic pass, all ranks together."""

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
    """Load of the devices of a trial's gang during the measured steps, by NVML."""

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
    """Resources that the measured steps of a trial took besides time."""

    cpu_s: float
    """Processor time of all ranks together."""
    cpu_utilization: float
    """Processor time of a rank over the time that its measured steps took; the mean."""
    gpu: GpuUse | None = None
    """None on CPU ranks, and where the driver did not answer."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Other load on the cores of a CPU rank while it measured."""

    cores: list[int]
    elapsed_s: float
    busy_s: float
    """Processor time of all processes on these cores, the rank's own (`RankReport.cpu_s`)
    included."""
    stolen_s: float
    """Time that the cores' virtual machine wanted to run and did not get a processor."""
    throttled_s: float
    """Time for which a CPU quota kept the rank's cgroup from running."""
    children_s: float = 0.0
    """Processor time of the rank's child processes, such as those that load data."""


@dataclass(kw_only=True)
class OwnLog:
    """What the engine's own log says of measured steps, beside what was measured of the same."""

    n_steps: int
    step_time_s: float
    """Median, by the log."""
    measured_step_time_s: float
    loss: float | None = None
    """Loss of the last of these steps, by the log; None: it does not say."""
    measured_loss: float | None = None

    @property
    def disagreement(self) -> str:
        """What both say where it is not the same; empty: they agree."""
        differences = []
        measured_s, logged_s = self.measured_step_time_s, self.step_time_s
        if abs(logged_s - measured_s) > OWN_LOG_TIME_SHARE * measured_s:
            differences.append(f"{logged_s:.4g} s a step, measured {measured_s:.4g} s")
        measured, logged = self.measured_loss, self.loss
        if measured is None or logged is None:
            return "; ".join(differences)
        if abs(logged - measured) > OWN_LOG_LOSS_SHARE * abs(measured):
            differences.append(f"loss {logged:.6g}, seen {measured:.6g}")
        return "; ".join(differences)


@dataclass(kw_only=True)
class RankReport(Stored):
    """Report of one rank when it ends, well or badly."""

    rank: int
    pid: int = 0
    phase: Phase = Phase.IMPORT
    """The phase it was in when it wrote this."""
    ended_at_s: float = 0.0
    """Seconds from the trial's submission to this report: the first failure is the cause of the
    others."""
    outcome: Outcome | None = None
    """None while the rank is running."""
    evidence: str = ""
    traceback: str = ""
    phases_s: dict[str, float] = field(default_factory=dict)
    warmup_step_times_s: list[float] = field(default_factory=list)
    step_times_s: list[float] = field(default_factory=list)
    """Per applied optimizer step, of the slowest rank."""
    is_steady: bool = True
    """Whether warm-up was over before half of the steps after the floor were."""
    stopped_early: bool = False
    """Whether measuring ended because the steps are clearly too slow (`losing_step_time_s`)."""
    surroundings: Surroundings | None = None
    """What went on beside this rank while it measured; None: it did not get that far, or cannot
    tell (GPU ranks)."""
    steps_skipped: int = 0
    """Measured optimizer steps that the engine did not apply (fp16 overflow)."""
    tokens: int = 0
    """Tokens of this rank in the measured steps, padding left out; counted where samples differ in
    length."""
    padded_tokens: int = 0
    """The same with padding."""
    losses: list[float] = field(default_factory=list)
    """Loss of each optimizer step since the first, warm-up included, on this rank's data."""
    skipped: list[int] = field(default_factory=list)
    """Those of these steps that the engine did not apply (fp16 overflow), counted from 0."""
    memory_bytes: dict[str, int] = field(default_factory=dict)
    """Peak bytes by meter; the key `peak` is the meter that limits are checked against."""
    host_construction_bytes: int | None = None
    """Peak resident host memory that building the model and the engine added on this rank."""
    read_back: dict[str, Any] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    memory_samples: list[dict[str, float]] = field(default_factory=list)
    """Set for a soak: bytes by meter as they stood after a step, and `elapsed_s` since training
    began; warm-up steps are left out."""
    checkpoint: dict[str, float] = field(default_factory=dict)
    """Set for a soak: `steps` trained when it was saved or loaded, `seconds` that this took."""
    cpu_s: float | None = None
    """Processor time of this rank, all threads, over its measured steps; None: not read."""
    measured_s: float | None = None
    """Time of those steps and of the gaps between them; a soak's phase goes on after."""
    diagnosis: RankDiagnosis | None = None
    """None: there was no diagnostic pass."""
    own_log: OwnLog | None = None
    """None: the engine keeps none, or on another rank."""
    schema_version: int = SCHEMA_VERSION

    def check(self) -> None:
        check_figures("RankReport: step_times_s", self.step_times_s)
        check_figures("RankReport: cpu_s, measured_s", (self.cpu_s, self.measured_s), zero=True)
        check_figures("RankReport: phases_s", self.phases_s.values(), zero=True)


def signal_of(exit_code: int) -> int:
    """Number of the signal that ended a process: -n, or 128 + n by way of a shell; 0: none."""
    number = -exit_code if exit_code < 0 else exit_code - 128
    return number if number in set(signal.Signals) else 0


@dataclass(frozen=True, kw_only=True)
class NodeReport(Stored):
    """Report of a node on the ranks that a trial had there, written once they have ended."""

    start: Start = Start.COLD
    """How its ranks did start."""
    was_ended: bool = False
    """Whether its ranks still ran when the coordinator asked for their end."""
    exit_codes: dict[str, int] = field(default_factory=dict)
    """Exit codes of failed ranks by rank, where their launcher knew; negative: killed by that
    signal."""
    launcher_code: int | None = None
    """The launcher's exit code; None: nobody knows it."""
    stopped_ranks: list[int] = field(default_factory=list)
    """Ranks that a signal or a debugger had stopped when the time was up: they did not hang."""
    oom_killed: bool = False
    """Whether the kernel killed a process of this node's group for memory meanwhile."""
    undrained_bytes: int = 0
    """Device memory that was in use after the trial and not before it."""
    log_bytes_left_out: int = 0
    """Bytes that its logs had in the middle and lost at the end of the trial: see
    `autotune.fleet.node.ranks.shorten_log`."""
    driver_error: str = ""
    """What the driver said when it was asked for that; empty: it answered."""
    gpu: GpuUse | None = None
    """None on CPU ranks, and where nothing was measured or read."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of its ranks that are on the allow-list, and nothing else."""
    schema_version: int = SCHEMA_VERSION

    def check(self) -> None:
        if not all(map(is_count, self.exit_codes)):
            raise ContractError(f"NodeReport: exit_codes: no ranks: {sorted(self.exit_codes)}")


COORDINATOR_ENDED = "the coordinator ended before the trial did"
"""Evidence of a trial that nobody saw the end of; whoever resumes the study writes it."""


@dataclass(frozen=True, kw_only=True)
class TrialResult(Stored):
    """Result of one trial, measured or failed; written once, atomically, when it has ended."""

    number: int
    role: Role
    candidate_hash: str
    outcome: Outcome
    evidence: str = ""
    """The line that the outcome was read from; empty for `ok`, but for a driver that stopped
    answering after the trial."""
    evidence_source: str = ""
    """Where that line stands: `rank 1 in engine_init`, `exit code`, `stderr.log:41`."""
    started_at_s: float = 0.0
    """Date (Unix time) at which the trial was submitted, for people; nothing is counted by it but
    the order of trials. 0: nobody knows."""
    wall_s: float = 0.0
    """Seconds from submission until the last process had ended."""
    start: Start = Start.COLD
    """How its ranks did start."""
    phases_s: dict[str, float] = field(default_factory=dict)
    """Seconds per phase on rank 0; they add up to `wall_s`."""
    warmup_step_times_s: list[float] = field(default_factory=list)
    """Times of the steps that were thrown away: those of the floor (`Measure.warmup_steps`), then
    those that the series showed to be warm-up still."""
    step_times_s: list[float] = field(default_factory=list)
    """Per applied optimizer step, of the slowest rank."""
    is_steady: bool = True
    """Whether warm-up was over before half of the steps after the floor were."""
    disturbed: str = ""
    """Causes that disturbed it while it measured, in words; empty: nothing that was noticed."""
    step_time_s: float | None = None
    """Median of `step_times_s`."""
    step_time_low_s: float | None = None
    """Lower end of the 95% interval of that median: of these steps, not of another run."""
    step_time_high_s: float | None = None
    samples_per_s: float | None = None
    """micro_batch * grad_accum * dp / step_time_s."""
    samples_per_s_low: float | None = None
    samples_per_s_high: float | None = None
    tokens_per_step: float | None = None
    """Tokens of all ranks, padding left out; counted where samples differ in length."""
    padded_tokens_per_step: float | None = None
    """The same with padding."""
    steps_skipped: int = 0
    peak_memory_bytes: int | None = None
    """Highest of any rank, by the device's meter (the one that the limit is checked against)."""
    memory_bytes: dict[str, int] = field(default_factory=dict)
    """Peak bytes by meter, each the highest of any rank."""
    host_construction_bytes: int | None = None
    loss_first: float | None = None
    loss_last: float | None = None
    losses: list[float] = field(default_factory=list)
    """Loss of the whole global batch in each of the first optimizer steps that were applied,
    warm-up included: the mean over the ranks, of `MOST_LOSSES` steps at the most."""
    losses_skipped: int = 0
    """Steps before the last of these that the engine did not apply (fp16 overflow)."""
    read_back: dict[str, Any] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of the trial that are on the allow-list, and nothing else."""
    devices: list[str] = field(default_factory=list)
    """The slots of the gang, such as `localhost:0`."""
    use: Use | None = None
    """None where nothing was measured."""
    diagnosis: Diagnosis | None = None
    """None: there was no diagnostic pass."""
    own_log: OwnLog | None = None
    """None: the engine keeps none."""
    log_bytes_left_out: int = 0
    """Bytes that were cut out of the middle of its logs, where its ranks printed too much."""
    origin: Origin = Origin.MEASURED
    """Where these figures come from."""
    schema_version: int = SCHEMA_VERSION

    @classmethod
    def of(cls, identity: Identity, outcome: Outcome, **fields: Any) -> "TrialResult":
        return cls(
            number=identity.number,
            role=identity.role,
            candidate_hash=identity.candidate_hash,
            outcome=outcome,
            **fields,
        )

    @property
    def is_orphaned(self) -> bool:
        """Whether its coordinator ended before it did: that says nothing of its candidate."""
        return self.outcome is Outcome.LOST and self.evidence == COORDINATOR_ENDED

    def check(self) -> None:
        figures = (self.step_time_s, self.step_time_low_s, self.step_time_high_s)
        rates = (self.samples_per_s, self.samples_per_s_low, self.samples_per_s_high)
        check_figures("TrialResult: figures", (*self.step_times_s, *figures, *rates))


def to_dict(value: TrialSpec | RankReport | NodeReport | TrialResult) -> dict[str, Any]:
    """The JSON form of a contract object."""
    return asdict(value)
