"""The job: what to tune. Pydantic reads it at the border, a frozen value travels inside."""

import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo

from autotune import DEFAULT_ENGINE
from autotune.base.data import shipped_spaces
from autotune.base.errors import JobError
from autotune.base.flags import listed
from autotune.base.names import did_you_mean
from autotune.base.plugins import load_plugin
from autotune.base.text import shortened
from autotune.base.units import parse_bytes, parse_seconds
from autotune.base.yaml_file import (
    only_switch,
    read_yaml,
    refuse_other_spelling,
    refuse_switch,
    whole_number,
)
from autotune.contract import MOST_LOSSES, Start
from autotune.devices.accelerators import Accelerator, accelerators_with
from autotune.devices.topology import Topology, parse_topology
from autotune.job.adapters import FinetuneFile, Lora
from autotune.job.fidelity import FidelityFile, Reduction
from autotune.job.keys import (
    DIAGNOSE,
    EVERY,
    FILE_ONLY,
    PREDICTIONS,
    SEARCH,
    InStudyName,
    JobKey,
    Topic,
)
from autotune.job.lengths import FIXED, SHORTEST, Lengths, check_fits, parse_lengths, resolve
from autotune.job.model import Model, find_model, load_model, presets, with_adapters, with_layers
from autotune.job.observed import Observed

Precision = Literal["bf16", "fp16", "fp32"]
ObjectiveName = Literal["samples_per_s", "peak_memory", "pareto"]
Compared = Literal["all", "best"]

LARGEST = 2**31 - 1
"""Largest of counts and sizes: DeepSpeed, torch and the table's 64 bits hold their products."""

_MOST_COMPLAINTS = 10
"""Most keys that the error of a job names."""

DEFAULT_TRIALS = 20
DEFAULT_SAMPLER = "calibrated"
DEFAULT_WORKLOAD = "builtin"
CHECKOUT_WORKLOAD = "pretrain_gpt"
"""What a trial trains where the job names a checkout of Megatron-LM."""
DEFAULT_SPACE = "zero"
SCRIPT_SPACE = "script"
"""What a search of a user's own command tries where nobody names a space."""
PLAN_SPACE = "plan"
"""What is ranked where nobody names a space: all that the program can predict well."""
GUARD_STEPS = 20
"""Steps that the convergence guard compares where nobody says how many."""
DEFAULT_OPTIMIZER: dict[str, Any] = {"type": "AdamW", "params": {"lr": 1e-4}}


@dataclass(frozen=True, kw_only=True)
class ObjectiveWish:
    """Meaning of `best`."""

    name: ObjectiveName
    floor: float
    """With `peak_memory`: the share of the best samples/s that a candidate must keep (0 to 1)."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """When a search ends; whichever comes first."""

    trials: int
    """Trials of the search proper; the baseline's and the final comparison's come on top."""
    ends_early: bool = False
    """Whether it ends before, once nothing is expected to gain: nobody asked for so many."""
    time_s: float | None
    """Wall-clock seconds for all trials together; None for no limit."""
    patience: int | None
    """Stop after this many trials in a row without a gain; None to go on."""
    gpu_hours: float | None = None
    """Accelerators times hours that the training will take at the baseline's speed: stop when
    another trial is expected to save less of them than it costs. None: do not weigh that."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job to tune, complete: every default is filled in. `JobFile` says what a key means."""

    model: Model
    seq_len: int
    global_batch: int
    world: int
    precision: Precision
    optimizer: dict[str, Any]
    objective: ObjectiveWish
    space: str
    sampler: str
    budget: Budget
    memory_limit_bytes: int | None
    """Per device; None: the device's capacity."""
    host_memory_bytes: int | None
    """Memory of one node's host; None: nobody says."""
    head_room: float
    """Share of the limit that a candidate must leave free to be called feasible (0 to 1)."""
    trial_timeout_s: float
    seed: int
    baseline: Path | None
    """A ds_config.json of the user's that is the baseline; None: one on the engine's ladder."""
    base_config: Path | None
    templates: Path | None
    study: str
    nvme_path: Path | None = None
    accelerators: Path | None = None
    network_topology: Topology | None = None
    finetune: Lora | None = None
    """None: every weight is trained."""
    lengths: Lengths = FIXED
    diagnose: bool = True
    fidelity: Reduction | None = None
    """Reductions of the trials at the beginning of a search; None: there are no such trials."""
    engine: str = DEFAULT_ENGINE
    workload: str = DEFAULT_WORKLOAD
    """Name of what a trial trains, as of `autotune.space.workload.workload_of`."""
    megatron_path: Path | None = None
    megatron_arguments: tuple[str, ...] = ()
    price_per_hour: float | None = None
    script: Observed | None = None
    """A user's own command, and what it trains; None: the workload is another."""
    start: Start = Start.WARM
    guard_steps: int = GUARD_STEPS
    allow_loss_drift: bool = False
    compare: Compared = "all"

    def model_with(self, layers: int | None) -> Model:
        """The model that a candidate of so many layers trains; None: of all.

        Raises:
            JobError: The model is not one to leave layers out of.
        """
        return self.model if layers is None else with_layers(self.model, layers)

    @property
    def tokens_per_batch(self) -> float:
        """Tokens of the samples of one optimizer step, without padding."""
        return self.global_batch * self.lengths.mean_tokens(self.global_batch, self.seq_len)

    def enforced_limit_bytes(self, device_memory_bytes: int) -> int | None:
        """What a trial may take per device: the limit less the head room; None: all there is.

        A trial that ends well within it fits by that alone. An allocator fills what it is given,
        so its peak under a wider limit would not tell whether the candidate needs the room.
        """
        return enforced_limit_bytes(self.memory_limit_bytes, self.head_room, device_memory_bytes)


def enforced_limit_bytes(
    limit_bytes: int | None, head_room: float, device_memory_bytes: int
) -> int | None:
    """See `Job.enforced_limit_bytes`: a limit less the head room."""
    if limit_bytes is None and not head_room:
        return None
    return int((limit_bytes or device_memory_bytes) * (1 - head_room))


def _duration(value: Any, info: ValidationInfo) -> float | None:
    return None if value is None else parse_seconds(value, where=str(info.field_name))


def _size(value: Any, info: ValidationInfo) -> int | None:
    return None if value is None else parse_bytes(value, where=str(info.field_name))


def _topology(value: Any) -> Topology | None:
    return None if value is None else parse_topology(value)


def _words(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(shlex.split(value))
    return tuple(map(str, value)) if isinstance(value, list) else value


def key(
    text: str,
    group: Topic,
    commands: frozenset[str] = SEARCH,
    *,
    default: Any = None,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    pattern: str | None = None,
    **facts: Any,
) -> Any:
    """A field of `JobFile`: the facts of `JobKey`, the default, and bounds."""
    is_finite = None if gt is None else False
    field: FieldInfo = Field(
        default, ge=ge, gt=gt, le=le, lt=lt, pattern=pattern, allow_inf_nan=is_finite
    )
    field.metadata.append(JobKey(help=text, group=group, commands=commands, **facts))
    return field


NEVER, WHERE_SET = InStudyName.NEVER, InStudyName.WHERE_SET


class JobFile(BaseModel):
    """The job as a user writes it, in YAML, as flags or as arguments.

    A key is declared here and nowhere else: the readers, the flags with their help, the arguments
    of the Python API and docs/job.md follow. `python -m tests.record_job_keys` writes the
    files among these.
    """

    model_config = ConfigDict(extra="forbid")

    model: str = key(
        "Preset (`autotune models` lists them), Hugging Face folder or config.json, "
        "repository in Hugging Face's local cache, or package.module:factory.",
        Topic.JOB,
        EVERY,
        default=...,
        takes=str | Path,
        is_of_command=True,
    )
    seq_len: Annotated[int, BeforeValidator(whole_number)] = key(
        "Tokens per sample, such as 8192 or 8k.",
        Topic.JOB,
        EVERY,
        default=...,
        takes=int | str,
        unit="tokens",
        is_of_command=True,
        ge=SHORTEST,
        le=LARGEST,
    )
    global_batch: Annotated[int, BeforeValidator(whole_number)] = key(
        "Samples per optimizer step, over all ranks; 1k is 1024.",
        Topic.JOB,
        EVERY,
        default=...,
        takes=int | str,
        unit="samples",
        is_of_command=True,
        ge=1,
        le=LARGEST,
    )
    world: int = key(
        "Accelerators of the real run; by default all of one machine, or as many as your own "
        "command starts.",
        Topic.JOB,
        EVERY | DIAGNOSE,
        default=...,
        unit="accelerators",
        ge=1,
        le=LARGEST,
    )
    precision: Precision = key(
        "Precision of the training: bf16, fp16 or fp32; fp8 is a knob of Megatron.",
        Topic.JOB,
        EVERY,
        default="bf16",
        is_of_command=True,
    )
    optimizer: dict[str, Any] = key(
        "As in a ds_config: the base configuration's by default, or else AdamW.",
        Topic.JOB,
        FILE_ONLY,
        default=DEFAULT_OPTIMIZER,
        unit="section",
    )
    finetune: FinetuneFile | None = key(
        "Rank of LoRA adapters, such as 16; all other weights are frozen.",
        Topic.JOB,
        EVERY,
        flag="lora_rank",
        takes=int,
        unit="section",
        identity=WHERE_SET,
        is_of_command=True,
    )
    lengths: Annotated[Lengths, BeforeValidator(parse_lengths)] = key(
        "How long the samples are: fixed, packed, or a CSV file of length,count.",
        Topic.JOB,
        EVERY,
        default=FIXED,
        takes=str | Path,
        identity=WHERE_SET,
        is_of_command=True,
    )
    workload: str = key(
        "What a trial trains: an installed workload.",
        Topic.JOB,
        FILE_ONLY,
        default=DEFAULT_WORKLOAD,
        identity=WHERE_SET,
    )
    script: Path | None = key(
        "What the first run of your own command showed, as a file.",
        Topic.JOB,
        FILE_ONLY,
        identity=WHERE_SET,
        deed="runs the command of",
    )
    megatron_path: Path | None = key(
        "With --engine megatron: your checkout of Megatron-LM, whose own pretrain_gpt.py trains.",
        Topic.JOB,
        EVERY,
        identity=WHERE_SET,
        is_of_command=True,
        engine="megatron",
        deed="runs the scripts of",
    )
    megatron_arguments: Annotated[tuple[str, ...], BeforeValidator(_words)] = key(
        "Arguments of your own for that script, kept in every trial, such as '--data-path "
        "/data/corpus --split 99,1,0'.",
        Topic.JOB,
        default=(),
        identity=WHERE_SET,
        is_of_command=True,
        engine="megatron",
    )
    engine: str = key(
        "What trains: deepspeed or megatron; in a search also both, in turn.",
        Topic.CONFIGURATION,
        EVERY,
        default=DEFAULT_ENGINE,
        identity=WHERE_SET,
    )
    space: str = key(
        "Knobs and their values: a shipped space, such as zero_offload or moe, or a YAML file; by "
        "default zero in a search, plan in a forecast, script for your own command.",
        Topic.CONFIGURATION,
        SEARCH | PREDICTIONS | DIAGNOSE,
        default=DEFAULT_SPACE,
        takes=str | Path,
        identity=NEVER,
        engine=DEFAULT_ENGINE,
    )
    objective: ObjectiveName = key(
        "What `best` means: samples_per_s, peak_memory, or pareto (both).",
        Topic.SEARCH,
        default="samples_per_s",
    )
    objective_floor: float = key(
        "With peak_memory: share of the best samples/s to keep.",
        Topic.SEARCH,
        default=0.9,
        gt=0,
        le=1,
    )
    sampler: str = key(
        "What proposes the next trial: calibrated, tpe, random, or grid (every candidate).",
        Topic.SEARCH,
        default=DEFAULT_SAMPLER,
        identity=NEVER,
    )
    fidelity: FidelityFile | None = key(
        "Begin with reduced trials, such as layers=4 or world=smallest, which only correct the "
        "forecasts.",
        Topic.SEARCH,
        unit="section",
        identity=NEVER,
        is_of_command=True,
    )
    baseline: Path | None = key(
        "Your own file, to start from and to compare with: a ds_config, an accelerate YAML, a"
        " file of training arguments, a shell file with a launch line.",
        Topic.CONFIGURATION,
        SEARCH | {"plan"},
        is_of_command=True,
        engine=DEFAULT_ENGINE,
        deed="reads",
    )
    base_config: Path | None = key(
        "Your ds_config.json: every candidate keeps its keys, but for those that knobs set.",
        Topic.CONFIGURATION,
        EVERY,
        is_of_command=True,
        engine=DEFAULT_ENGINE,
        deed="reads",
    )
    templates: Path | None = key(
        "Folder of templates that replace shipped ones.",
        Topic.CONFIGURATION,
        EVERY,
        engine=DEFAULT_ENGINE,
        deed="renders templates of",
    )
    seed: int = key(
        "Seed of the sampler and the trials.",
        Topic.SEARCH,
        default=0,
        identity=NEVER,
        ge=0,
        le=LARGEST,
    )
    trials: int | None = key(
        "Trials of the search; by default all with grid, else up to 20, until none is expected to "
        "gain 0.6%. Baseline and finalists come on top.",
        Topic.PRICE,
        unit="trials",
        identity=NEVER,
        ge=1,
        le=LARGEST,
    )
    budget: Annotated[float | None, BeforeValidator(_duration)] = key(
        "Time in which trials may run, such as 20m.",
        Topic.PRICE,
        unit="duration",
        identity=NEVER,
    )
    patience: int | None = key(
        "Stop after so many trials without a gain.",
        Topic.PRICE,
        unit="trials",
        identity=NEVER,
        ge=1,
        le=LARGEST,
    )
    gpu_hours: float | None = key(
        "Accelerators times hours of the training at the baseline's speed: stop when another "
        "trial is expected to save less than it costs.",
        Topic.PRICE,
        unit="hours",
        identity=NEVER,
        gt=0,
    )
    price: float | None = key(
        "Price of one accelerator for an hour, to say what trials or tokens cost; or by kind: "
        "H100=2.5,A100=1.2.",
        Topic.PRICE,
        SEARCH | {"plan"},
        takes=str | float,
        identity=NEVER,
        gt=0,
    )
    trial_timeout: Annotated[float, BeforeValidator(_duration)] = key(
        "Most time that one trial may take, such as 10m.",
        Topic.PRICE,
        SEARCH | DIAGNOSE,
        default=600.0,
        unit="duration",
        identity=NEVER,
    )
    gpu: str | None = key(
        "Accelerator that the job is for, such as H100, and no other; by default that of this "
        "machine or fleet.",
        Topic.DEVICES,
        EVERY | DIAGNOSE,
        identity=NEVER,
    )
    memory_limit: Annotated[int | None, BeforeValidator(_size)] = key(
        "Most memory that a candidate may take of each device, such as 24GiB.",
        Topic.DEVICES,
        EVERY | DIAGNOSE,
        unit="size",
    )
    host_memory: Annotated[int | None, BeforeValidator(_size)] = key(
        "Memory of one node's host, such as 2TiB: what needs more of it does not fit.",
        Topic.DEVICES,
        EVERY,
        unit="size",
        identity=NEVER,
    )
    head_room: float = key(
        "Share of the memory to leave free, such as 0.1.",
        Topic.DEVICES,
        EVERY,
        default=0.0,
        ge=0,
        lt=1,
    )
    nvme_path: Path | None = key(
        "Folder on a local disk, for offload to nvme.",
        Topic.DEVICES,
        EVERY,
        identity=WHERE_SET,
        is_of_command=True,
        deed="writes below",
    )
    accelerators: Path | None = key(
        "YAML of accelerators, which overrides the shipped ones in predictions, such as the "
        "probe's hardware.yaml.",
        Topic.DEVICES,
        EVERY | DIAGNOSE,
        identity=NEVER,
        deed="reads",
    )
    network_topology: Annotated[Topology | None, BeforeValidator(_topology)] = key(
        "Network between the nodes, for predictions: fat-tree, dragonfly or rail-optimized, "
        "with nodes_per_group, oversubscription, rails, hop.",
        Topic.DEVICES,
        SEARCH | PREDICTIONS,
        identity=NEVER,
    )
    diagnose: bool = key(
        "Watched steps at the end of each trial, which show where time goes.",
        Topic.CHECKS,
        default=True,
        identity=NEVER,
    )
    start: Start = key(
        "How trials start: warm, forked from a process that has imported everything, or cold; the "
        "runs that confirm the result are cold in any case.",
        Topic.CHECKS,
        default=Start.WARM,
        identity=NEVER,
    )
    guard_steps: int = key(
        "First steps whose losses the best has to share with the baseline; 0 for none.",
        Topic.CHECKS,
        default=GUARD_STEPS,
        unit="steps",
        identity=NEVER,
        ge=0,
        le=MOST_LOSSES,
    )
    allow_loss_drift: bool = key(
        "Export the best even if its losses drift.", Topic.CHECKS, default=False, identity=NEVER
    )
    compare: Compared = key(
        "Who runs again beside the baseline in the end: all (who may be the best) or best (it "
        "alone, in at least three rounds).",
        Topic.CHECKS,
        default="all",
        identity=NEVER,
    )
    study: str | None = key(
        "Name of the study; by default it follows from the job or the command.",
        Topic.OUTPUT,
        SEARCH | DIAGNOSE,
        identity=NEVER,
        pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$",
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_switches(cls, value: Any, info: ValidationInfo) -> Any:
        field = cls.model_fields[str(info.field_name)]
        kind = _kind(field)
        if kind is bool:
            return only_switch(value)
        if isinstance(value, str) and value.lower() in get_args(field.annotation):
            return value.lower()  # BF16
        return (refuse_other_spelling if kind in (int, float) else refuse_switch)(value)


def declared_keys() -> dict[str, JobKey]:
    """Every key of the job by its name in a job file."""
    return {name: _completed(name, field) for name, field in JobFile.model_fields.items()}


def keys_of(command: str) -> dict[str, JobKey]:
    """Keys that a command, or the function of its name, takes: by the argument's name."""
    return {key.flag: key for key in declared_keys().values() if command in key.commands}


def _completed(name: str, field: FieldInfo) -> JobKey:
    key = next(one for one in field.metadata if isinstance(one, JobKey))
    words = {"ge": "from", "gt": "above", "le": "to", "lt": "to below"}
    limits = {n: getattr(one, n) for n in words for one in field.metadata if hasattr(one, n)}
    is_open = limits.get("le") == LARGEST  # that is only what a file can hold
    bounds = [f"{words[n]} {limit}" for n, limit in limits.items() if n != "le" or not is_open]
    return replace(
        key,
        name=name,
        flag=key.flag or name,
        takes=key.takes or _kind(field),
        default=... if field.is_required() else field.default,
        bounds=" ".join([*bounds, "up"] if is_open else bounds),
    )


def _kind(field: FieldInfo) -> type:
    """Type of a field's value; text where the field has a reader of its own."""
    kinds = {*(get_args(field.annotation) or (field.annotation,))} - {NoneType}
    has_reader = any(isinstance(one, BeforeValidator) for one in field.metadata)
    found = kinds.pop() if len(kinds) == 1 and not has_reader else str
    return cast(type, found) if found in (bool, int, float, Path) else str


def read_job_file(path: Path) -> dict[str, Any]:
    """Read a job's YAML into a mapping; paths in it are relative to its folder.

    Raises:
        JobError: The file cannot be read or is not a mapping.
    """
    data = resolve_paths(read_yaml(path), path.parent)
    if "lengths" in data:
        data["lengths"] = resolve(data["lengths"], path.parent)
    return data


@dataclass(frozen=True)
class JobText:
    """A job's file as it was read, once: another may stand there a moment later."""

    path: Path
    keys: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> "JobText":
        """Read a job's file; raises as `read_job_file`."""
        return cls(path, read_job_file(path))


def given_keys(job_file: JobText | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a job: those of its file, where no flag comes before them."""
    return {**(job_file.keys if job_file is not None else {}), **flags}


def accelerators_of(keys: Mapping[str, Any]) -> tuple[Accelerator, ...]:
    """The table that a job's devices are described and predicted by, before the job is made.

    Raises:
        JobError: A file cannot be read, or the table is not one.
    """
    named = keys.get("accelerators")
    return accelerators_with(Path(named) if isinstance(named, str | Path) else None)


def resolve_paths(data: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Keys of a job, of any type, with the paths among them made absolute from a folder.

    A model or a space is one where such a file or folder is there and no shipped one has the name.
    """
    resolved = dict(data)
    for name, key in declared_keys().items():
        if key.takes is Path and isinstance(data.get(name), str | Path):
            resolved[name] = os.path.realpath(folder / data[name])
    for name, shipped in (("model", presets), ("space", shipped_spaces)):
        value = data.get(name)
        if not value or not isinstance(value, str) or value in shipped():
            continue
        if os.path.exists(folder / value):  # unlike Path's, it takes any text for a name
            resolved[name] = os.path.realpath(folder / value)
    return resolved


def make_job(data: dict[str, Any], *, where: str, flags: Collection[str] = ()) -> Job:
    """Check a job and fill its defaults.

    Args:
        data: Keys as in `JobFile`.
        where: The file, for the errors; empty: all keys are flags or arguments.
        flags: Keys that were given as flags or arguments, wherever the others come from.

    Raises:
        JobError: A key is unknown, missing, or has a value that is not allowed.
    """
    keys = declared_keys()

    def spelled(name: str) -> str:
        """The key as it was given: by a flag, or in a file."""
        first, dot, rest = name.partition(".")
        if not is_flag(first):
            return f"{where}: {name}" if where else name
        return keys[first].named if keys[first].flag != first else keys[first].named + dot + rest

    def is_flag(name: str) -> bool:
        return name in keys and (not where or name in flags)

    if isinstance(model_name := data.get("model"), str) and data.get("script") is None:
        find_model(model_name)  # a misspelt one is told before what is missing
    try:
        file = JobFile.model_validate(data)
        check_fits(file.lengths, file.seq_len)
        if file.gpu_hours is not None and file.objective != "samples_per_s":
            raise JobError.of("job.hours_not_saved", file=file)  # only speed saves hours
        _check_checkout(file)
        sampler = load_plugin("sampler", file.sampler)
    except ValidationError as error:
        # A key that is not known may be the one that is missing, misspelled.
        every = sorted(
            error.errors(include_url=False), key=lambda item: item["type"] != "extra_forbidden"
        )
        # A file of something else has any number of wrong keys: the first ones tell.
        items: list[Mapping[str, Any]] = [*every[:_MOST_COMPLAINTS]]
        # A key, and what is wrong within it after dots.
        names = [shortened(".".join(map(str, item["loc"])) or "job") for item in items]
        complaints = [f"{spelled(n)}{_complaint(i)}" for n, i in zip(names, items, strict=True)]
        if n_more := len(every) - len(items):
            complaints.append(f"{where}: {n_more:,} more keys or values are wrong")
        fixes = dict.fromkeys(_fix(item, keys, is_flag) for item in items)
        raise JobError("\n".join(complaints), "; ".join(fixes)) from error
    except JobError as error:  # a size, a duration or lengths are wrong
        raise _respelled(error, spelled) from error
    lora = None if file.finetune is None else file.finetune.lora()
    script = None if file.script is None else Observed.read(file.script)
    model = load_model(file.model) if script is None else script.model(cast(Path, file.script))
    if lora is not None:
        model = with_adapters(model, lora.as_source())
    converted: dict[str, Any] = {
        "model": model,
        "objective": ObjectiveWish(name=file.objective, floor=file.objective_floor),
        "budget": Budget(
            trials=file.trials or (LARGEST if sampler.is_exhaustive else DEFAULT_TRIALS),
            ends_early=file.trials is None and not sampler.is_exhaustive,
            time_s=file.budget,
            patience=file.patience,
            gpu_hours=file.gpu_hours,
        ),
        "memory_limit_bytes": file.memory_limit,
        "host_memory_bytes": file.host_memory,
        "trial_timeout_s": file.trial_timeout,
        "study": file.study or default_study_name(file),
        "finetune": lora,
        "fidelity": _fidelity(
            file,
            model,
            goes_by_forecast=sampler.goes_by_forecast,
            spelled=spelled,
        ),
        "price_per_hour": file.price,
        "workload": file.workload if file.megatron_path is None else CHECKOUT_WORKLOAD,
        "script": script,
    }
    as_written = {
        name: getattr(file, name) for name in Job.__dataclass_fields__ if name not in converted
    }
    return Job(**as_written, **converted)


def default_study_name(file: JobFile) -> str:
    """A name that the same job always gets: the same command again resumes."""
    left_out = {
        name
        for name, key in declared_keys().items()
        if key.identity is InStudyName.NEVER
        or (key.identity is InStudyName.WHERE_SET and getattr(file, name) == key.default)
    }
    identity = file.model_dump(mode="json", exclude=left_out)
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:6]
    name = Path(file.model).name.split(":")[-1].removesuffix(".json")
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-") or "model"
    return f"{stem}-s{file.seq_len}-b{file.global_batch}-w{file.world}-{digest}"


def _check_checkout(file: JobFile) -> None:
    """Refuse a checkout with an engine that it is not of, and beside another workload."""
    if file.megatron_path is None and file.megatron_arguments:
        raise JobError.of("job.no_checkout")
    if file.megatron_path is None:
        return
    if file.engine == DEFAULT_ENGINE:
        raise JobError.of("job.checkout_of_engine", file=file)
    if file.workload not in (DEFAULT_WORKLOAD, CHECKOUT_WORKLOAD):
        raise JobError.of("job.checkout_of_workload", file=file)


def _fidelity(
    file: JobFile, model: Model, *, goes_by_forecast: bool, spelled: Callable[[str], str]
) -> Reduction | None:
    """Layers and world of the reduced trials; refused where nothing would learn from them."""
    if file.fidelity is None:
        return None
    for other, teaches, needed in (
        ("sampler", goes_by_forecast, DEFAULT_SAMPLER),
        ("objective", file.objective == "samples_per_s", "samples_per_s"),
    ):
        if teaches:
            continue
        raise JobError.of(
            "job.reduced_unused",
            key=spelled("fidelity"),
            other=other,
            value=getattr(file, other),
            needed=needed,
        )
    try:
        fidelity = file.fidelity.checked(shape=model.shape, world=file.world)
        if fidelity.layers is not None:
            with_layers(model, fidelity.layers)
    except JobError as error:
        raise _respelled(error, spelled) from error
    return fidelity


def _respelled(error: JobError, spelled: Callable[[str], str]) -> JobError:
    """An error that begins with the name of a key, with the key as it was given."""
    name, colon, rest = error.message.partition(":")
    return JobError(f"{spelled(name)}{colon}{rest}", error.hint)


def _complaint(item: Mapping[str, Any]) -> str:
    if item["type"] == "missing":
        return " is missing"
    if item["type"] == "extra_forbidden":
        return ": there is no such key"
    if len(item["loc"]) == 1 and "expected" in item.get("ctx", {}):
        return f": {shortened(repr(item['input']))} is not allowed"  # the fix names what is
    allowed = item["msg"].replace("Input should", "should").removeprefix("Value error, ")
    if item["type"] == "string_pattern_mismatch":
        allowed = "should be a letter or digit, then letters, digits, dots, dashes or underscores"
    if item["type"] in ("dict_type", "model_type"):
        allowed = "should be keys with values of their own"
    return f": {shortened(repr(item['input']))} is not allowed: {allowed}"


def _digits(text: str) -> list[str]:
    """The digits of a word: where they differ, another word is meant."""
    return sorted(filter(str.isdigit, text))


def _fix(
    item: Mapping[str, Any], keys: Mapping[str, JobKey], is_flag: Callable[[str], bool]
) -> str:
    name = str(item["loc"][0]) if item["loc"] else "job"
    if name not in keys:
        hint = did_you_mean(name, keys, most=2, alike=0.6)
        return hint + listed("search")
    key = keys[name]
    word = key.named if is_flag(name) else name
    about = f" ({key.about.replace('(', '[').replace(')', ']')})"
    if "ge" in item.get("ctx", {}) and not key.bounds:
        at = word if is_flag(name) else ".".join(map(str, item["loc"]))
        return f"give {at}{about} a number from {item['ctx']['ge']} up, or leave it out"
    if len(item["loc"]) > 1:
        return f"{_section_fix(item)}mend {word}{about}"
    if item["type"] == "missing":
        return f"give {key.named}{about}, or `{name}:` in the job file"
    if key.bounds:
        return f"give {word}{about} a number {key.bounds}"
    if "expected" in item.get("ctx", {}):
        expected = str(item["ctx"]["expected"])
        known, typed = re.findall(r"'([^']+)'", expected), str(item["input"])
        alike = [one for one in known if _digits(one) == _digits(typed)]
        guess = did_you_mean(typed, alike, most=1)
        are_there = all(one in key.about for one in known)
        return f"{guess}give {word}{about}" + ("" if are_there else f" one of {expected}")
    return f"mend {word}{about}" + ("" if key.default is ... else ", or leave it out")


def _section_fix(item: Mapping[str, Any]) -> str:
    """The keys of a section; before another fix."""
    name, field = str(item["loc"][0]), str(item["loc"][-1])
    kinds = get_args(JobFile.model_fields[name].annotation)
    section: Any = next((kind for kind in kinds if hasattr(kind, "model_fields")), None)
    if section is None or item["type"] not in ("extra_forbidden", "literal_error"):
        return ""
    known = list(section.model_fields)
    guess = did_you_mean(field, known, most=1) if field not in known else ""
    return f"{guess}known keys of {name}: {', '.join(known)}; "
