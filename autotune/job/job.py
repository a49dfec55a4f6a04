"""The job: what to tune. Pydantic reads it at the border, a frozen value travels inside."""

import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from autotune import DEFAULT_ENGINE
from autotune.base.data import shipped_spaces
from autotune.base.errors import JobError
from autotune.base.names import did_you_mean
from autotune.base.plugins import load_plugin
from autotune.base.text import shortened
from autotune.base.units import parse_bytes, parse_seconds
from autotune.base.yaml_file import (
    only_switch,
    read_yaml,
    refuse_other_spelling,
    refuse_switch,
)
from autotune.contract import MOST_LOSSES, Start
from autotune.devices.accelerators import Accelerator, accelerators_with
from autotune.devices.topology import Topology, parse_topology
from autotune.job.adapters import FinetuneFile, Lora
from autotune.job.fidelity import FidelityFile, Reduction
from autotune.job.lengths import FIXED, SHORTEST, Lengths, check_fits, parse_lengths, resolve
from autotune.job.model import Model, load_model, presets, with_adapters, with_layers
from autotune.job.observed import Observed

Precision = Literal["bf16", "fp16", "fp32"]
ObjectiveName = Literal["samples_per_s", "peak_memory", "pareto"]
Compared = Literal["all", "best"]

_LARGEST = 2**31 - 1
"""Largest of counts and sizes: DeepSpeed, torch and the table's 64 bits hold their products."""

_MOST_COMPLAINTS = 10
"""Most keys that the error of a job names."""

DEFAULT_TRIALS = 20
DEFAULT_SAMPLER = "calibrated"
DEFAULT_WORKLOAD = "builtin"
CHECKOUT_WORKLOAD = "pretrain_gpt"
"""What a trial trains where the job names a checkout of Megatron-LM."""
DEFAULT_SPACE = "zero"
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
    time_s: float | None
    """Wall-clock seconds for all trials together; None for no limit."""
    patience: int | None
    """Stop after this many trials in a row without a gain; None to go on."""
    gpu_hours: float | None = None
    """Accelerators times hours that the training will take at the baseline's speed: stop when
    another trial is expected to save less of them than it costs. None: do not weigh that."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job to tune, complete: every default is filled in."""

    model: Model
    seq_len: int
    global_batch: int
    world: int
    precision: Precision
    optimizer: dict[str, Any]
    """DeepSpeed's `optimizer` section."""
    objective: ObjectiveWish
    space: str
    """Name of a shipped space, or the path of a YAML file."""
    sampler: str
    """Name of an installed sampler."""
    budget: Budget
    memory_limit_bytes: int | None
    """Per device; None: the device's capacity."""
    head_room: float
    """Share of the limit that a candidate must leave free to be called feasible (0 to 1)."""
    trial_timeout_s: float
    seed: int
    baseline: Path | None
    """A ds_config.json of the user's that is the baseline; None: one on the engine's ladder."""
    base_config: Path | None
    """A ds_config.json that is merged under the tuned knobs."""
    templates: Path | None
    """A folder whose templates come before the shipped ones."""
    study: str
    """Name of the study's folder."""
    nvme_path: Path | None = None
    """A folder on a local disk that states and parameters may be swapped to; None: there is none,
    and nothing is offloaded to nvme."""
    accelerators: Path | None = None
    """A table of accelerators whose entries come before the shipped ones in predictions."""
    network_topology: Topology | None = None
    """The network between the nodes, for predictions; None: as the table of accelerators has it.
    """
    finetune: Lora | None = None
    """None: every weight is trained."""
    lengths: Lengths = FIXED
    diagnose: bool = True
    """Whether a short diagnostic pass follows the measured steps of a search's trials."""
    fidelity: Reduction | None = None
    """Reductions of the trials at the beginning of a search; None: there are no such trials."""
    engine: str = DEFAULT_ENGINE
    """Name of the engine that trains, as of `autotune.engines.base.find_engine`."""
    workload: str = DEFAULT_WORKLOAD
    """Name of what a trial trains, as of `autotune.space.workload.workload_of`."""
    megatron_path: Path | None = None
    """A checkout of Megatron-LM whose own script trials run; None: the workload is another."""
    megatron_arguments: tuple[str, ...] = ()
    """Words of the user's own on its command line, after those of a candidate."""
    price_per_hour: float | None = None
    """Price of one accelerator, in whatever currency; None: nobody said."""
    script: Observed | None = None
    """A user's own command, and what it trains; None: the workload is another."""
    start: Start = Start.WARM
    """How trials start where they may choose; cold: each in Pythons of its own."""
    guard_steps: int = GUARD_STEPS
    """First steps whose losses the convergence guard compares with the baseline's; 0: none."""
    allow_loss_drift: bool = False
    """Whether a candidate may be the best that the guard fails."""
    compare: Compared = "all"
    """Who runs in the final comparison beside the baseline: all finalists, or the best alone."""

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


def _parsed(parse: Callable[..., float], key: str) -> BeforeValidator:
    return BeforeValidator(lambda value: None if value is None else parse(value, where=key))


def _topology(value: Any) -> Topology | None:
    return None if value is None else parse_topology(value)


def _words(value: Any) -> Any:
    """Words of a command line, from a text or a list."""
    if isinstance(value, str):
        return tuple(shlex.split(value))
    return tuple(map(str, value)) if isinstance(value, list) else value


class JobFile(BaseModel):
    """The job as a user writes it, in YAML or as flags."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(
        description="preset, Hugging Face folder or config.json, or package.module:factory"
    )
    seq_len: int = Field(ge=SHORTEST, le=_LARGEST, description="tokens per sample, at least 2")
    global_batch: int = Field(
        ge=1, le=_LARGEST, description="samples per optimizer step, over all ranks"
    )
    world: int = Field(ge=1, le=_LARGEST, description="accelerators that the real run will have")
    precision: Precision = "bf16"
    optimizer: dict[str, Any] = Field(default_factory=lambda: dict(DEFAULT_OPTIMIZER))
    objective: ObjectiveName = "samples_per_s"
    objective_floor: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="with peak_memory: share of the best samples/s to keep",
    )
    space: str = DEFAULT_SPACE
    sampler: str = DEFAULT_SAMPLER
    trials: int | None = Field(
        default=None,
        ge=1,
        le=_LARGEST,
        description="of the search proper; left out: 20, with the sampler grid every candidate",
    )
    budget: Annotated[float | None, _parsed(parse_seconds, "budget")] = None
    patience: int | None = Field(default=None, ge=1, le=_LARGEST)
    gpu_hours: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="accelerators times hours of the training: stop when trials cost more than "
        "they are expected to save",
    )
    price: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="of one accelerator for an hour",
    )
    memory_limit: Annotated[int | None, _parsed(parse_bytes, "memory_limit")] = None
    head_room: float = Field(default=0.0, ge=0, lt=1)
    trial_timeout: Annotated[
        float, BeforeValidator(lambda v: parse_seconds(v, where="trial_timeout"))
    ] = 600.0
    seed: int = Field(default=0, ge=0, le=_LARGEST)
    baseline: Path | None = None
    base_config: Path | None = None
    templates: Path | None = None
    nvme_path: Path | None = Field(
        default=None, description="folder on a local disk, for offload to nvme"
    )
    accelerators: Path | None = Field(
        default=None, description="YAML that predictions go by, such as the probe's hardware.yaml"
    )
    network_topology: Annotated[Topology | None, BeforeValidator(_topology)] = Field(
        default=None,
        description="the network between nodes, such as "
        "fat-tree,nodes_per_group=16,oversubscription=4",
    )
    finetune: FinetuneFile | None = Field(
        default=None, description="method: lora, with rank, alpha, target_modules, dropout"
    )
    lengths: Annotated[Lengths, BeforeValidator(parse_lengths)] = FIXED
    diagnose: bool = Field(
        default=True, description="whether trials end with a short diagnostic pass"
    )
    fidelity: FidelityFile | None = Field(
        default=None, description="layers and world of the trials that come first"
    )
    engine: str = Field(default=DEFAULT_ENGINE, description="what trains: an installed engine")
    workload: str = Field(
        default=DEFAULT_WORKLOAD, description="what a trial trains: an installed workload"
    )
    megatron_path: Path | None = Field(
        default=None,
        description="a checkout of Megatron-LM, whose pretrain_gpt.py the trials run",
    )
    megatron_arguments: Annotated[tuple[str, ...], BeforeValidator(_words)] = Field(
        default=(),
        description="arguments of your own for that script, such as --data-path /data/corpus",
    )
    script: Path | None = Field(
        default=None, description="what the first run of your own command showed, as a file"
    )
    start: Start = Field(
        default=Start.WARM,
        description="how trials start: warm (forked from a process that has imported everything, "
        "where that works) or cold",
    )
    guard_steps: int = Field(
        default=GUARD_STEPS,
        ge=0,
        le=MOST_LOSSES,
        description="first steps whose losses are compared with the baseline's; 0: none",
    )
    allow_loss_drift: bool = Field(
        default=False, description="whether the best may lose the baseline's course"
    )
    compare: Compared = Field(
        default="all",
        description="who runs again beside the baseline in the end: all finalists, or the best",
    )
    study: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_switches(cls, value: Any, info: ValidationInfo) -> Any:
        if info.field_name in ("diagnose", "allow_loss_drift"):
            return only_switch(value)
        return (refuse_other_spelling if info.field_name in _NUMBERS else refuse_switch)(value)


_NUMBERS = {
    *("seq_len", "global_batch", "world", "objective_floor", "trials", "patience", "gpu_hours"),
    *("price", "head_room", "seed", "guard_steps"),
}
"""Keys that hold a plain number; budgets, times and sizes have units, and readers of their own."""


_PATHS = (
    *("baseline", "base_config", "templates", "nvme_path", "accelerators", "megatron_path"),
    "script",
)
"""Keys that hold a path, whatever stands there."""


def read_job_file(path: Path) -> dict[str, Any]:
    """Read a job's YAML into a mapping; paths in it are relative to its folder.

    Raises:
        JobError: The file cannot be read or is not a mapping.
    """
    data = resolve_paths(read_yaml(path), path.parent)
    if "lengths" in data:
        data["lengths"] = resolve(data["lengths"], path.parent)
    return data


def read_accelerators_of(
    job_file: Path | None, own: Path | None, *, agreed: Mapping[str, Any] | None = None
) -> tuple[Accelerator, ...]:
    """The table that a job's devices are described and predicted by, before the job is made.

    `own` is the table that the user named beside the job; it comes before the job's. `agreed` is
    what the job's file said when the user was asked about it.

    Raises:
        JobError: A file cannot be read, or the table is not one.
    """
    if own is None and job_file is not None:
        named = (read_job_file(job_file) if agreed is None else agreed).get("accelerators")
        own = Path(named) if isinstance(named, str) else None
    return accelerators_with(own)


def resolve_paths(data: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Keys of a job, of any type, with the paths among them made absolute from a folder.

    A model or a space is one where such a file or folder is there and no shipped one has the name.
    """
    resolved = dict(data)
    for key in _PATHS:
        if isinstance(data.get(key), str | Path):
            resolved[key] = os.path.realpath(folder / data[key])
    for key, shipped in (("model", presets), ("space", shipped_spaces)):
        name = data.get(key)
        if not name or not isinstance(name, str) or name in shipped():
            continue
        if os.path.exists(folder / name):  # unlike Path's, it takes any text for a name
            resolved[key] = os.path.realpath(folder / name)
    return resolved


def make_job(data: dict[str, Any], *, where: str, flags: Collection[str] = ()) -> Job:
    """Check a job and fill its defaults.

    Args:
        data: Keys as in `JobFile`.
        where: The file or `command line`, for the errors.
        flags: Keys that were given on the command line, wherever the others come from.

    Raises:
        JobError: A key is unknown, missing, or has a value that is not allowed.
    """

    def source(key: str) -> str:
        return "command line" if key in flags else where

    try:
        file = JobFile.model_validate(data)
        check_fits(file.lengths, file.seq_len)
        _check_weighable(file)
        _check_checkout(file)
        sampler = load_plugin("sampler", file.sampler)
    except ValidationError as error:
        # A file of something else has any number of wrong keys: the first ones tell.
        count = error.error_count()
        # A key that is not known may be the one that is missing, misspelled.
        every = sorted(
            error.errors(include_url=False), key=lambda item: item["type"] != "extra_forbidden"
        )
        items: list[Mapping[str, Any]] = [*every[:_MOST_COMPLAINTS]]
        complaints = [_complaint(item, source(_key(item))) for item in items]
        if count > len(items):
            complaints.append(f"{where}: {count - len(items):,} more keys or values are wrong")
        fixes = dict.fromkeys(_fix(item) for item in items)
        raise JobError("\n".join(complaints), "; ".join(fixes)) from error
    except JobError as error:
        # A size, a duration or lengths are wrong; it names the key.
        key = error.message.partition(":")[0].partition(".")[0]
        raise JobError(f"{source(key)}: {error.message}", error.hint) from error
    lora = None if file.finetune is None else file.finetune.lora()
    script = None if file.script is None else Observed.read(file.script)
    model = load_model(file.model) if script is None else script.model(cast(Path, file.script))
    if lora is not None:
        model = with_adapters(model, lora)
    converted: dict[str, Any] = {
        "model": model,
        "objective": ObjectiveWish(name=file.objective, floor=file.objective_floor),
        "budget": Budget(
            trials=file.trials or (_LARGEST if sampler.is_exhaustive else DEFAULT_TRIALS),
            time_s=file.budget,
            patience=file.patience,
            gpu_hours=file.gpu_hours,
        ),
        "memory_limit_bytes": file.memory_limit,
        "trial_timeout_s": file.trial_timeout,
        "study": file.study or default_study_name(file),
        "finetune": lora,
        "fidelity": _fidelity(
            file,
            model,
            goes_by_forecast=sampler.goes_by_forecast,
            where=source("fidelity"),
        ),
        "price_per_hour": file.price,
        "workload": _workload(file),
        "script": script,
    }
    as_written = {
        name: getattr(file, name) for name in Job.__dataclass_fields__ if name not in converted
    }
    return Job(**as_written, **converted)


def _workload(file: JobFile) -> str:
    """What a trial trains: a checkout where one is named."""
    return CHECKOUT_WORKLOAD if file.megatron_path is not None else file.workload


_CONTINUED = {
    *("trials", "budget", "patience", "gpu_hours", "price", "trial_timeout", "diagnose"),
    *("sampler", "space", "seed", "study", "accelerators", "fidelity"),
    "network_topology",
    *("start", "guard_steps", "allow_loss_drift", "compare"),
}
"""Keys that may change from one run of a study to the next: changing them continues it."""
_YOUNGER = (
    *("nvme_path", "finetune", "engine", "workload", "lengths", "script"),
    *("megatron_path", "megatron_arguments"),
)
"""Keys that count where they are used: the studies of jobs without them keep their names."""


def default_study_name(file: JobFile) -> str:
    """A name that the same job always gets: the same command again resumes."""
    unused = {key for key in _YOUNGER if getattr(file, key) == JobFile.model_fields[key].default}
    identity = file.model_dump(mode="json", exclude=_CONTINUED | unused)
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:6]
    name = Path(file.model).name.split(":")[-1].removesuffix(".json")
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-") or "model"
    return f"{stem}-s{file.seq_len}-b{file.global_batch}-w{file.world}-{digest}"


def _check_weighable(file: JobFile) -> None:
    """Refuse a price of hours with an objective that saves none: only speed saves hours."""
    if file.gpu_hours is not None and file.objective != "samples_per_s":
        raise JobError(
            f"gpu_hours: {file.gpu_hours:g}: with the objective {file.objective} trials save no "
            "hours",
            "leave it out, or choose the objective samples_per_s",
        )


def _check_checkout(file: JobFile) -> None:
    """Refuse a checkout with an engine that it is not of, and beside another workload."""
    if file.megatron_path is None and file.megatron_arguments:
        raise JobError(
            "megatron_arguments: there is no script that takes them",
            "name your checkout: --megatron-path FOLDER, or `megatron_path:` in the job file",
        )
    if file.megatron_path is None:
        return
    if file.engine == DEFAULT_ENGINE:
        raise JobError(
            f"megatron_path: {file.megatron_path}: the engine {file.engine} cannot run a checkout",
            "add --engine megatron",
        )
    if file.workload not in (DEFAULT_WORKLOAD, CHECKOUT_WORKLOAD):
        raise JobError(
            f"megatron_path: {file.megatron_path}: the workload {file.workload} cannot run a "
            "checkout",
            "leave one of the two out",
        )


def _fidelity(
    file: JobFile, model: Model, *, goes_by_forecast: bool, where: str
) -> Reduction | None:
    """Layers and world of the reduced trials; refused where nothing would learn from them."""
    if file.fidelity is None:
        return None
    for key, teaches, needed in (
        ("sampler", goes_by_forecast, DEFAULT_SAMPLER),
        ("objective", file.objective == "samples_per_s", "samples_per_s"),
    ):
        if teaches:
            continue
        raise JobError(
            f"{where}: fidelity: reduced trials only correct predictions, and with {key} "
            f"{getattr(file, key)} nothing uses them",
            f"leave fidelity out, or choose {key} {needed}",
        )
    try:
        fidelity = file.fidelity.checked(shape=model.shape, world=file.world)
        if fidelity.layers is not None:
            with_layers(model, fidelity.layers)
    except JobError as error:
        raise JobError(f"{where}: {error.message}", error.hint) from error
    return fidelity


def _key(item: Mapping[str, Any]) -> str:
    return str(item["loc"][0]) if item["loc"] else "job"


def _complaint(item: Mapping[str, Any], where: str) -> str:
    """Where, which key, which value, and what is allowed there."""
    key = shortened(".".join(str(part) for part in item["loc"]) or "job")
    if item["type"] == "missing":
        return f"{where}: {key}: is missing"
    if item["type"] == "extra_forbidden":
        return f"{where}: {key}: there is no such key"
    allowed = item["msg"].replace("Input should", "should").removeprefix("Value error, ")
    if item["type"] == "string_pattern_mismatch":
        allowed = "should be a letter or digit, then letters, digits, dots, dashes or underscores"
    if item["type"] in ("dict_type", "model_type"):
        allowed = "should be keys with values of their own"
    return f"{where}: {key}: {shortened(repr(item['input']))} is not allowed: {allowed}"


def _fix(item: Mapping[str, Any]) -> str:
    """The shortest way to mend it."""
    key = _key(item)
    field = JobFile.model_fields.get(key)
    if field is None:
        hint = did_you_mean(key, JobFile.model_fields, most=2, alike=0.6)
        return f"{hint}`autotune search --help` lists them"
    about = f" ({field.description})" if field.description else ""
    if len(item["loc"]) > 1:
        return f"mend {key}{about}"
    if item["type"] == "missing":
        return f"give --{key.replace('_', '-')}{about}, or `{key}:` in the job file"
    words = {"ge": "from", "gt": "above", "le": "to", "lt": "to below"}
    bounds = [
        f"{word} {getattr(bound, name)}"
        for name, word in words.items()
        for bound in field.metadata
        if hasattr(bound, name)
    ]
    if bounds:
        return f"give {key}{about} a number {' '.join(bounds)}"
    if "expected" in item.get("ctx", {}):
        expected = str(item["ctx"]["expected"])
        guess = did_you_mean(str(item["input"]), re.findall(r"'([^']+)'", expected), most=1)
        return f"{guess}give {key}{about} one of {expected}"
    return f"mend {key}{about}" + ("" if field.is_required() else ", or leave it out")
