"""What goes into a trial."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Self

from autotune.contract.files import (
    SCHEMA_VERSION,
    ContractError,
    check_positive,
    checked_fields,
)
from autotune.contract.words import Role, Start

KnobValue = int | float | str | bool


@dataclass(frozen=True, kw_only=True)
class Measure:
    """How long a trial measures."""

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
class Fidelity:
    """What a reduced trial runs less of than the job asks for; one of the two at least."""

    layers: int | None = None
    """Layers of its model; None: all of them."""
    world: int | None = None
    """Its accelerators, which take data parallel replicas away; None: all of them."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What the calibrated cost model said before a trial started.

    Each interval holds the trial's own measurement in 95% of cases, if the model is right about
    itself.
    """

    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    peak_memory_bytes: float
    """Of the fullest device."""
    peak_memory_low_bytes: float
    peak_memory_high_bytes: float


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
    """`none`, `full`, or `every_K`: recompute every K-th layer; with pp > 1 all layers of a stage,
    K of them together."""
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
    repeat_of: int | None = None
    """Number of the trial that was disturbed while it measured and that this one repeats."""
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
    sp: int = 1
    """Ranks that share each sample, a piece of its sequence each; dp = world / (tp * pp * sp)."""
    diagnoses: bool = False
    """Whether a short diagnostic pass follows the measured steps."""
    lengths: dict[str, Any] = field(default_factory=dict)
    """Empty: every sample has `seq_len` tokens. `{"kind": "packed"}`: so has every row, filled
    from several documents. `{"kind": "histogram", "histogram": [[tokens, weight], ...],
    "pad_to_multiple": n}`: see `autotune.trial.lengths`."""
    predicted: Predicted | None = None
    """None: nothing could be predicted."""
    fidelity: Fidelity | None = None
    """Of a reduced trial: `model`, `world`, `dp` and `global_batch` are what it ran, not what the
    job asks for. None: a trial of the job itself."""
    reduced_of: str | None = None
    """Of a reduced trial: hash of the candidate whose forecast it corrects."""
    schema_version: int = SCHEMA_VERSION

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Rebuild a spec from JSON data.

        Raises:
            ContractError: A field is missing, unknown or of another type, or the schema is
                another.
        """
        spec = cls(**checked_fields(cls, data))
        if spec.predicted is not None:
            check_positive("TrialSpec: predicted", dataclasses.astuple(spec.predicted))
        if spec.fidelity is not None:
            check_positive("TrialSpec: fidelity", dataclasses.astuple(spec.fidelity))
            if spec.fidelity == Fidelity():
                raise ContractError("TrialSpec: fidelity: nothing is less")
        return spec
