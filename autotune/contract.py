"""What goes into a trial and what comes out of it: TrialSpec, RankReport, TrialResult, Outcome.

This is the only module of ours that the ranks of a trial import, so it uses the standard library
alone. Files are versioned: a reader refuses a version it does not know instead of guessing.
"""

import dataclasses
import json
import os
import tempfile
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any, Self, get_args, get_origin

SCHEMA_VERSION = 1

KnobValue = int | float | str | bool

SPEC_FILE = "spec.json"
RESULT_FILE = "result.json"
RANKS_DIR = "ranks"
STDOUT_FILE = "stdout.log"
STDERR_FILE = "stderr.log"
STACKS_FILE = "{rank:02d}.stacks"
"""In `RANKS_DIR`: where each thread of a rank stood, once the rank is asked for it."""
CONFIG_DIR = "config"
DS_CONFIG_FILE = "config/ds_config.json"

TRIAL_ENV = "AUTOTUNE_TRIAL_DIR"
"""Environment variable of every process of a trial: the sweep for orphans looks for it."""


class ContractError(ValueError):
    """A spec, report or result file is missing, cut short, or of another schema."""


class Outcome(StrEnum):
    """How a trial ended."""

    OK = "ok"
    OOM = "oom"
    TIMEOUT = "timeout"
    NONFINITE = "nonfinite"
    INVALID = "invalid"
    COMM = "comm"
    LAUNCH = "launch"
    CRASH = "crash"
    LOST = "lost"
    CANCELLED = "cancelled"

    @property
    def is_measured(self) -> bool:
        """Whether the trial has a step time that a search may compare."""
        return self is Outcome.OK

    @property
    def is_config_fault(self) -> bool:
        """Whether the configuration caused it: it would happen again, so it teaches the search."""
        return self in (Outcome.OOM, Outcome.TIMEOUT, Outcome.NONFINITE, Outcome.INVALID)

    @property
    def is_platform_fault(self) -> bool:
        """Whether the machine caused it: the same candidate deserves another try."""
        return self in (Outcome.COMM, Outcome.LAUNCH, Outcome.CRASH, Outcome.LOST)


class Role(StrEnum):
    """Why a trial was run."""

    BASELINE = "baseline"
    SEARCH = "search"
    CONFIRM = "confirm"
    SOAK = "soak"
    """Trains for minutes instead of seconds, with a checkpoint on the way; no part of a search."""


class Start(StrEnum):
    """How the ranks of a trial start."""

    COLD = "cold"
    """Under torchrun: the reference."""
    WARM = "warm"
    """Forked from a process that has imported what they need, where the fleet can (CPU ranks)."""


class Phase(StrEnum):
    """The phases of a trial, in order; each rank records how many seconds it spent in each."""

    SPAWN = "spawn"
    IMPORT = "import"
    PROCESS_GROUP = "process_group"
    MODEL = "model"
    ENGINE_INIT = "engine_init"
    WARM_UP = "warm_up"
    MEASURED = "measured"
    TEARDOWN = "teardown"


@dataclass(frozen=True, kw_only=True)
class Measure:
    """How long a trial measures."""

    warmup_steps: int
    """Optimizer steps that are run and thrown away."""
    min_steps: int
    """Optimizer steps that are measured at the least."""
    max_steps: int
    """Optimizer steps that are measured at the most."""
    target_half_width: float
    """Stop once the interval's half width is within this share of the median step time."""
    budget_s: float
    """Stop measuring after this many seconds, once `min_steps` are done."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What a trial does with a checkpoint."""

    folder: str
    """Where the engine writes it or reads it; one folder for all ranks."""
    resumes_at: int | None = None
    """Optimizer steps that were trained before; None: the trial saves one when it has measured."""
    steps_after: int = 0
    """Optimizer steps that are trained after saving, to compare a resumed trial with."""


@dataclass(frozen=True, kw_only=True)
class TrialSpec:
    """Everything that the ranks of one trial need to know; written before they start."""

    study: str
    number: int
    """Position in the study, from 0; also the name of the trial's folder."""
    role: Role
    candidate_hash: str
    knobs: dict[str, KnobValue]
    """The candidate: one value for every active knob."""
    world: int
    tp: int
    pp: int
    dp: int
    micro_batch: int
    grad_accum: int
    global_batch: int
    """Samples per optimizer step: micro_batch * grad_accum * dp."""
    seq_len: int
    """Tokens per sample."""
    precision: str
    accelerator: str
    """`cpu` or `cuda`."""
    model: dict[str, Any]
    """`{"config": {...}, "vocab": n}` (Hugging Face) or
    `{"factory": "package.module:name", "path": [...], "vocab": n}`, `path` being folders to put on
    `sys.path`; `vocab` bounds the random tokens. With `"lora": {"rank": n, "alpha": x,
    "target_modules": ..., "dropout": x}` its weights are frozen and adapters are trained."""
    recompute: str
    """`none`, `full`, or `every_K`: recompute every K-th layer."""
    expected: dict[str, Any]
    """What the live engine must say of itself (read-back); a difference is `invalid`."""
    measure: Measure
    memory_limit_bytes: int | None = None
    """Per device, under the device's meter; None: the device's own capacity."""
    timeout_s: float = 600.0
    seed: int = 0
    overridden: dict[str, list[Any]] = field(default_factory=dict)
    """Keys of the user's own configuration that do not run as written: key -> [theirs, ours]."""
    confirm_round: int | None = None
    """Round of the final comparison, from 0; None for other roles."""
    retry_of: int | None = None
    """Number of the trial that a platform fault ended and that this one repeats."""
    attention: str = "default"
    """Attention implementation of a Hugging Face model; `default`: transformers' own choice."""
    loss_chunk_tokens: int = 0
    """Compute logits and loss over so many tokens at a time; 0: over all at once."""
    compile: str = "none"
    """`none`, `torch` or `deepcompile`: whether `engine.compile()` is called."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables that the candidate sets for its ranks."""
    binds_cores: bool = False
    """Whether each GPU rank is bound to its own share of the cores; a CPU rank always is."""
    start: Start = Start.COLD
    """How the ranks are to start; a fleet that cannot do it warm does it cold."""
    checkpoint: Checkpoint | None = None
    """Of a soak; its ranks also watch their memory all the time."""
    lengths: dict[str, Any] = field(default_factory=dict)
    """Empty: every sample has `seq_len` tokens. `{"kind": "packed"}`: so has every row, filled
    from several documents. `{"kind": "histogram", "histogram": [[tokens, weight], ...],
    "pad_to_multiple": n}`: see `autotune.trial.lengths`."""
    schema_version: int = SCHEMA_VERSION

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Rebuild a spec from JSON data.

        Raises:
            ContractError: A field is missing, unknown or of another type, or the schema is
                another.
        """
        fields = _checked_fields(cls, data)
        try:
            fields["measure"] = Measure(**fields["measure"])
            fields["role"] = Role(fields["role"])
            fields["start"] = Start(fields.get("start", Start.COLD))
            if fields.get("checkpoint") is not None:
                fields["checkpoint"] = Checkpoint(**fields["checkpoint"])
        except (TypeError, ValueError) as error:
            raise ContractError(f"TrialSpec: {error}") from error
        return cls(**fields)


@dataclass(kw_only=True)
class RankReport:
    """What one rank says when it ends, well or badly."""

    rank: int
    pid: int = 0
    phase: Phase = Phase.IMPORT
    """The phase it was in when it wrote this."""
    ended_at_s: float = 0.0
    """Wall-clock time (Unix) of this report: the first failure is the cause of the others."""
    outcome: Outcome | None = None
    """None while the rank is running."""
    evidence: str = ""
    traceback: str = ""
    phases_s: dict[str, float] = field(default_factory=dict)
    warmup_step_times_s: list[float] = field(default_factory=list)
    step_times_s: list[float] = field(default_factory=list)
    """Per applied optimizer step, of the slowest rank."""
    steps_skipped: int = 0
    """Measured optimizer steps that the engine did not apply (fp16 overflow)."""
    tokens: int = 0
    """Tokens of this rank in the measured steps, padding left out; counted where samples differ in
    length."""
    padded_tokens: int = 0
    """The same with padding."""
    losses: list[float] = field(default_factory=list)
    """Mean loss of each optimizer step since the first, warm-up included, on this rank's data."""
    memory_bytes: dict[str, int] = field(default_factory=dict)
    """By meter; the key `peak` is the device's meter that limits are checked against."""
    host_construction_bytes: int | None = None
    """Peak resident host memory that building the model and the engine added on this rank."""
    read_back: dict[str, Any] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    memory_samples: list[dict[str, float]] = field(default_factory=list)
    """Of a soak: bytes by meter as they stood after a step, and `elapsed_s` since training began;
    warm-up steps are left out."""
    checkpoint: dict[str, float] = field(default_factory=dict)
    """Of a soak: `steps` trained when it was saved or loaded, `seconds` that this took."""
    schema_version: int = SCHEMA_VERSION

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Rebuild a report from JSON data.

        Raises:
            ContractError: A field is missing, unknown or of another type, or the schema is
                another.
        """
        fields = _checked_fields(cls, data)
        try:
            fields["phase"] = Phase(fields["phase"])
            if fields.get("outcome") is not None:
                fields["outcome"] = Outcome(fields["outcome"])
        except ValueError as error:
            raise ContractError(f"RankReport: {error}") from error
        return cls(**fields)


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """What one trial measured, or why it did not; written once, atomically, when it has ended."""

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
    """Wall-clock time (Unix) at which the trial was submitted."""
    wall_s: float = 0.0
    """Seconds from submission until the last process had ended."""
    start: Start = Start.COLD
    """How its ranks did start."""
    phases_s: dict[str, float] = field(default_factory=dict)
    """Seconds per phase on rank 0; they add up to `wall_s`."""
    warmup_step_times_s: list[float] = field(default_factory=list)
    step_times_s: list[float] = field(default_factory=list)
    """Per applied optimizer step, of the slowest rank."""
    step_time_s: float | None = None
    """Median of `step_times_s`."""
    step_time_low_s: float | None = None
    """Lower end of the 95% interval of that median."""
    step_time_high_s: float | None = None
    samples_per_s: float | None = None
    """micro_batch * grad_accum * dp / step_time_s."""
    samples_per_s_low: float | None = None
    samples_per_s_high: float | None = None
    tokens_per_step: float | None = None
    """Of all ranks, padding left out; counted where samples differ in length."""
    padded_tokens_per_step: float | None = None
    """The same with padding."""
    steps_skipped: int = 0
    peak_memory_bytes: int | None = None
    """Highest of any rank, by the device's meter (the one that the limit is checked against)."""
    memory_bytes: dict[str, int] = field(default_factory=dict)
    """By meter, each the highest of any rank."""
    host_construction_bytes: int | None = None
    loss_first: float | None = None
    loss_last: float | None = None
    read_back: dict[str, Any] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of the trial that are on the allow-list, and nothing else."""
    devices: list[str] = field(default_factory=list)
    """The slots of the gang, such as `localhost:0`."""
    schema_version: int = SCHEMA_VERSION

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Rebuild a result from JSON data.

        Raises:
            ContractError: A field is missing, unknown or of another type, or the schema is
                another.
        """
        fields = _checked_fields(cls, data)
        try:
            fields["outcome"] = Outcome(fields["outcome"])
            fields["role"] = Role(fields["role"])
            fields["start"] = Start(fields.get("start", Start.COLD))
        except ValueError as error:
            raise ContractError(f"TrialResult: {error}") from error
        return cls(**fields)


def to_dict(value: TrialSpec | RankReport | TrialResult) -> dict[str, Any]:
    """The JSON form of a contract object."""
    return dataclasses.asdict(value)


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write a JSON file so that a reader sees the old one or the new one, never a part.

    Raises:
        OSError: The disk is full or the folder cannot be written; the old file still stands.
    """
    text = json.dumps(data, indent=2, sort_keys=True, allow_nan=True) + "\n"
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, mode_of(path))
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def mode_of(path: Path) -> int:
    """Permissions for what is written aside and then moved to a path; mkstemp makes it private.

    A file that is there keeps its own, a new one is as readable as its neighbours.
    """
    if path.exists():
        return path.stat().st_mode
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ContractError: There is no such file, or it does not hold one JSON object.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ContractError(f"{path}: no such file") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ContractError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(data, dict):
        raise ContractError(f"{path}: holds a {type(data).__name__}, not an object")
    return data


def _checked_fields(cls: type, data: dict[str, Any]) -> dict[str, Any]:
    version = data.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ContractError(f"{cls.__name__}: schema {version!r}, this is {SCHEMA_VERSION}")
    known = {f.name: f for f in dataclasses.fields(cls)}
    unknown = sorted(set(data) - set(known))
    missing = sorted(
        name
        for name, f in known.items()
        if name not in data
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    )
    if unknown or missing:
        raise ContractError(f"{cls.__name__}: unknown fields {unknown}, missing fields {missing}")
    for name, value in data.items():
        if not _fits(value, known[name].type):
            raise ContractError(f"{cls.__name__}: {name}: {str(value)[:60]!r} is of another type")
    return dict(data)


def _fits(value: Any, kind: Any) -> bool:
    """Whether JSON data has the type of a field, all the way down."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin is UnionType:
        return any(_fits(value, argument) for argument in arguments)
    if origin is list:
        return isinstance(value, list) and all(_fits(item, arguments[0]) for item in value)
    if origin is dict:
        items = value.values() if isinstance(value, dict) else ()
        return isinstance(value, dict) and all(_fits(item, arguments[1]) for item in items)
    if dataclasses.is_dataclass(kind):
        types = {f.name: f.type for f in dataclasses.fields(kind)}
        return isinstance(value, dict) and all(
            _fits(item, types.get(name, Any)) for name, item in value.items()
        )
    if isinstance(value, bool):  # Python calls it an int, too
        return kind is bool
    if kind is float:
        return isinstance(value, int | float)
    return isinstance(value, str if issubclass(kind, StrEnum) else kind)
