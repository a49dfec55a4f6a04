"""What goes into a trial: a value of six parts, each with one purpose."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from autotune import DEFAULT_ENGINE
from autotune.contract.files import ContractError, Stored, from_json
from autotune.contract.words import Role, Start

SPEC_SCHEMA_VERSION = 2
"""Version of `spec.json`."""

KnobValue = int | float | str | bool


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
class Measure:
    """How a trial measures, for how long, and within which limits."""

    warmup_steps: int
    """Optimizer steps that are run and thrown away at the least; those after them are thrown away
    until the series of step times is steady."""
    min_steps: int
    """Optimizer steps that are measured at the least."""
    max_steps: int
    """Optimizer steps that are measured at the most."""
    target_half_width: float
    """Stop once the interval's half width is within this share of the median step time; 0: never,
    and no step after the first `warmup_steps` is taken for warm-up."""
    budget_s: float
    """Stop measuring after this many seconds, once `min_steps` are done."""
    losing_step_time_s: float | None = None
    """Stop early once the whole interval of the median step time is above this; None: never."""
    memory_limit_bytes: int | None = None
    """Memory of a device, under its meter; None: the device's own capacity."""
    timeout_s: float = 600.0
    """Seconds after which the trial has failed."""
    diagnoses: bool = False
    """Whether a short diagnostic pass follows the measured steps."""
    checkpoint: Checkpoint | None = None
    """Checkpoint that a soak saves or resumes; its ranks also watch their memory all the time."""
    start: Start = Start.COLD
    """How the ranks are to start; a fleet that cannot do it warm does it cold."""


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """How a reduced trial is smaller than the job asks for; at least one of the two is set."""

    layers: int | None = None
    """Layers of its model; None: all of them."""
    world: int | None = None
    """Its accelerators, which take data parallel replicas away; None: all of them."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """Prediction of the calibrated cost model before a trial started.

    Each interval holds the trial's own measurement in 90% of cases; benchmarks/accuracy.py
    says how often such intervals held on runs of sources that the model had not seen.
    """

    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    peak_memory_bytes: float
    """Peak of the fullest device."""
    peak_memory_low_bytes: float
    peak_memory_high_bytes: float


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Which trial of which study it is, and which candidate it runs."""

    study: str
    number: int
    """Position in the study, from 0; also the name of the trial's folder."""
    role: Role
    candidate_hash: str
    knobs: dict[str, KnobValue]
    """The candidate: one value for every active knob."""
    confirm_round: int | None = None
    """Round of the final comparison, from 0; None for other roles."""
    fidelity: Fidelity | None = None
    """How a reduced trial is smaller: its layout and its model are what it ran, not what the job
    asks for. None: a trial of the job itself."""
    reduced_of: str | None = None
    """Hash of the candidate whose forecast a reduced trial corrects."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the ranks share the work."""

    accelerator: str
    """`cpu` or `cuda`."""
    world: int
    tp: int
    pp: int
    dp: int
    """world / (tp * pp * sp)."""
    sp: int = 1
    """Ranks that share each sample, a piece of its sequence each."""
    micro_batch: int
    grad_accum: int
    global_batch: int
    """Samples per optimizer step: micro_batch * grad_accum * dp."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What a trial trains; a soak, an export and the record of a study hold the same value."""

    name: str = "builtin"
    """Name of the workload plug-in that trains it."""
    model: dict[str, Any]
    """`{"config": {...}, "vocab": n}` (Hugging Face) or
    `{"factory": "package.module:name", "path": [...], "vocab": n}`, `path` being folders to put on
    `sys.path`; `vocab` bounds the random tokens. With `"lora": {"rank": n, "alpha": x,
    "target_modules": ..., "dropout": x}` its weights are frozen and adapters are trained."""
    seq_len: int
    """Tokens per sample."""
    precision: str
    lengths: dict[str, Any] = field(default_factory=dict)
    """Empty: every sample has `seq_len` tokens. `{"kind": "packed"}`: so has every row, filled
    from several documents. `{"kind": "histogram", "histogram": [[tokens, weight], ...],
    "pad_to_multiple": n}`: shares of the samples, and what their lengths are padded to."""
    seed: int = 0
    settings: dict[str, KnobValue] = field(default_factory=dict)
    """Values of the knobs that the training script applies by itself, not the engine."""
    script: str = ""
    """Path of the training script; empty: the built-in one, which an export carries."""
    arguments: list[str] = field(default_factory=list)
    """Command line arguments of the script."""
    command: list[str] = field(default_factory=list)
    """A user's own command, which starts its ranks by itself; empty: the ranks of the node run the
    script."""
    folder: str = ""
    """Where the script or the command runs; empty: where the trials do."""
    digest: str = ""
    """Hash of the training script's text."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """What the engine is to do with the candidate's files, and what it must say of itself."""

    name: str = DEFAULT_ENGINE
    """Name of the engine plug-in."""
    expected: dict[str, Any]
    """What the live engine must say of itself (read-back); a difference is `invalid`."""
    overridden: dict[str, list[Any]] = field(default_factory=dict)
    """Keys of the user's own configuration that do not run as written: key -> [theirs, ours]."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables that the candidate sets for its ranks."""
    binds_cores: bool = False
    """Whether each GPU rank is bound to its own share of the cores; a CPU rank always is."""
    rendering_digest: str = ""
    """Digest of all that the candidate's files follow from besides itself; empty: nobody says."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Why the trial runs, and what was predicted of it."""

    retry_of: int | None = None
    """Number of the trial that a platform fault ended and that this one repeats."""
    repeat_of: int | None = None
    """Number of the trial that was disturbed while it measured and that this one repeats."""
    predicted: Predicted | None = None
    """None: nothing could be predicted."""


@dataclass(frozen=True, kw_only=True)
class TrialSpec(Stored):
    """Everything that the ranks of one trial need to know; written before they start."""

    VERSION: ClassVar[int] = SPEC_SCHEMA_VERSION

    identity: Identity
    layout: Layout
    workload: Workload
    engine: EngineSettings
    measure: Measure
    provenance: Provenance = Provenance()
    schema_version: int = SPEC_SCHEMA_VERSION

    @property
    def knobs(self) -> dict[str, KnobValue]:
        """The candidate's knobs; of a size that stands for all larger ones, what is written."""
        found, held = dict(self.identity.knobs), self.engine.expected
        for name, value in found.items():
            size = held.get(name.rpartition(".")[2])
            if type(value) is int and isinstance(size, (int, float)):
                found[name] = max(value, int(size))
        return found

    def check(self) -> None:
        for name in ("retry_of", "repeat_of"):
            earlier = getattr(self.provenance, name)
            if earlier is not None and not 0 <= earlier < self.identity.number:
                raise ContractError(
                    f"TrialSpec: {name}: {earlier} is no trial before {self.identity.number}"
                )


def settings_of(workload: Workload, layout: Layout) -> dict[str, Any]:
    """The settings of a training script beside DeepSpeed's configuration, in one mapping.

    An export carries it as `settings.json`; the Hugging Face config stands in a file of its own.
    """
    shared = dataclasses.asdict(layout)
    del shared["micro_batch"], shared["grad_accum"]  # DeepSpeed's configuration says them
    model = {key: value for key, value in workload.model.items() if key != "config"}
    fields = {name: getattr(workload, name) for name in _SAID}
    return {**model, **fields, **workload.settings, **shared}


def parts_of(
    settings: Mapping[str, Any], *, digest: str, more: Iterable[str] = ()
) -> tuple[Workload, Layout]:
    """The arguments of `settings_of`, from its result and what it leaves to other files.

    Args:
        settings: They, with `micro_batch`, `grad_accum` and the model's `config` besides.
        digest: The training script's.
        more: Further settings of that script, by name.

    Raises:
        ContractError: One is of another type.
        KeyError: One is missing.
    """
    model = {name: settings[name] for name in _MODEL if name in settings}
    script_settings = {name: settings[name] for name in _SETTINGS}
    script_settings |= {name: settings[name] for name in more}
    fields = {name: settings[name] for name in _SAID}
    workload = {**fields, "model": model, "settings": script_settings, "digest": digest}
    layout = {f.name: settings[f.name] for f in dataclasses.fields(Layout) if f.name in settings}
    return from_json(Workload, workload), from_json(Layout, layout)


_MODEL = ("config", "factory", "path", "vocab", "lora")
"""Keys of `Workload.model`."""
_SAID = ("seq_len", "precision", "lengths", "seed")
"""Fields of the workload that a training script is told."""
_SETTINGS = ("recompute", "attention", "loss_chunk_tokens", "compile")
"""Settings of the built-in training script."""
