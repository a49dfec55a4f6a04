"""The closed list of knobs: what each chooses, its default in the engine, and where it acts.

A knob that changes nothing in some situation is not a knob there (`acts`), and values that mean
the same run fold into one (`fold`), so that two candidates never mean the same run. Adding a knob
is one entry here and one line in the engine's template. The evidence beside the entries is
DeepSpeed 0.19.8, as `file: function`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal, Self

from autotune.contract import KnobValue
from autotune.errors import JobError
from autotune.hardware import Environment
from autotune.job import Job
from autotune.model import ModelShape

Knobs = Mapping[str, KnobValue]

MAX_VALUE = 10**12
"""Largest value of an `int` knob: more elements than any device holds."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What decides, besides the other knobs, whether a knob acts and where it saturates."""

    model: ModelShape
    world: int
    global_batch: int
    """Samples per optimizer step, over all ranks."""
    precision: str
    """`bf16`, `fp16` or `fp32`."""
    accelerator: str
    """`cpu` or `cuda`."""
    base: Knobs = field(default_factory=dict)
    """Knobs that the user's base configuration sets: they come before the engine's defaults."""

    @classmethod
    def of(cls, job: Job, environment: Environment, base: Knobs | None = None) -> Self:
        """The context of a job on the devices of an environment."""
        return cls(
            model=job.model.shape,
            world=job.world,
            global_batch=job.global_batch,
            precision=job.precision,
            accelerator=environment.accelerator,
            base=base or {},
        )


def _always(_: Knobs, __: Context) -> bool:
    return True


def _unchanged(value: KnobValue, _: Knobs, __: Context) -> KnobValue:
    return value


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One choice to make."""

    name: str
    kind: Literal["int", "bool", "choice"]
    """`int` knobs are ordered; powers of two are offered to the sampler as their logarithm."""
    default: KnobValue
    """What runs when nobody chooses: the engine's own default, or the neutral value."""
    help: str
    scope: str = "always"
    """Where it acts, for people."""
    default_at_stage: Mapping[int, KnobValue] = field(default_factory=dict)
    """ZeRO stages whose default is another one."""
    choices: tuple[KnobValue, ...] = ()
    """The only legal values; empty where any value of the kind is legal."""
    minimum: int = 0
    """Smallest legal value of an `int` knob."""
    pattern: str = ""
    """A regular expression that values of a `choice` may match besides `choices`."""
    stages: tuple[int, ...] = (0, 1, 2, 3)
    """ZeRO stages at which it can act at all."""
    acts: Callable[[Knobs, Context], bool] = _always
    """Whether it changes the run, given the other knobs, at one of `stages`."""
    fold: Callable[[KnobValue, Knobs, Context], KnobValue] = _unchanged
    """The one value that stands for all that mean the same run as the value given."""

    def is_active(self, values: Knobs, context: Context) -> bool:
        """Whether the knob changes the run, given the other knobs."""
        return values.get("zero.stage", 0) in self.stages and self.acts(values, context)

    def default_for(self, values: Knobs) -> KnobValue:
        """What runs when nobody chooses, given the stage."""
        return self.default_at_stage.get(int(values.get("zero.stage", 0)), self.default)

    def check(self, value: object, *, where: str) -> KnobValue:
        """A value as written by a user, in the knob's type.

        Args:
            value: From YAML, or text from the command line; `5e8` is a whole number.
            where: The file and key, or the flag, for the error.

        Raises:
            JobError: The value is not one of this knob's; the hint names the nearest that is.
        """
        typed = _read(value, self.kind)
        if typed is None:
            raise JobError(f"{where}: {self.name}: {value!r} is not {_KINDS[self.kind]}", self.menu)
        if self.pattern and re.fullmatch(self.pattern, str(typed)):
            return typed
        if self.choices and typed not in self.choices:
            nearest = _nearest(typed, self.choices)
            hint = f"did you mean {nearest}? {self.menu}" if nearest is not None else self.menu
            raise JobError(f"{where}: {self.name}: {value!r} is not a legal value", hint)
        if self.kind == "int" and not self.choices:
            nearest_int = min(max(int(typed), self.minimum), MAX_VALUE)
            if nearest_int != typed:
                raise JobError(
                    f"{where}: {self.name}: {value!r} is out of range",
                    f"the nearest legal value is {nearest_int}",
                )
        return typed

    @property
    def menu(self) -> str:
        """What is legal, in one line."""
        if self.kind == "bool":
            return "legal values: true, false"
        if self.choices:
            extra = f", or {self.pattern} (a regular expression)" if self.pattern else ""
            return f"legal values: {', '.join(map(str, self.choices))}{extra}"
        return f"legal values: whole numbers from {self.minimum} to {MAX_VALUE}"


def knob_named(name: str, *, where: str) -> Knob:
    """Find a knob.

    Raises:
        JobError: There is none of that name; the hint names the nearest.
    """
    knob = KNOBS.get(name)
    if knob is None:
        near = get_close_matches(name, KNOBS, n=3, cutoff=0.4)
        near += [known for known in KNOBS if known.endswith(f".{name}") and known not in near]
        guess = f"did you mean {' or '.join(near)}? " if near else ""
        raise JobError(
            f"{where}: {name!r} is not a knob", f"{guess}known knobs: {', '.join(KNOBS)}"
        )
    return knob


def parse_settings(settings: Iterable[str]) -> dict[str, KnobValue]:
    """Read `--set name=value` flags.

    Raises:
        JobError: One is not `name=value`, names no knob or no legal value, or is there twice.
    """
    values: dict[str, KnobValue] = {}
    for setting in settings:
        where = f"--set {setting}"
        name, equals, text = (part.strip() for part in setting.partition("="))
        if not (name and equals and text):
            raise JobError(f"{where}: not name=value", "write it as --set zero.stage=2")
        value = knob_named(name, where=where).check(text, where=where)
        if name in values:
            raise JobError(f"{where}: {name} was already set to {values[name]}", "set it once")
        values[name] = value
    return values


def canonical(values: Knobs, context: Context) -> dict[str, KnobValue]:
    """One value for every knob that acts; equal for any two mappings that mean the same run.

    Knobs that are not named get the base configuration's value or the engine's default, those
    that change nothing here are left out, and values that mean the same run become one.

    Args:
        values: Legal values by knob name (see `Knob.check`).
        context: The job's shapes.

    Raises:
        JobError: A name is not a knob.
    """
    for name in values.keys() - KNOBS.keys():
        knob_named(name, where="candidate")
    settled: dict[str, KnobValue] = {}
    for name, knob in KNOBS.items():
        if name in values:
            settled[name] = values[name]
        elif name in context.base:
            settled[name] = context.base[name]
        else:
            settled[name] = knob.default_for(settled)
    for name, knob in KNOBS.items():
        if knob.is_active(settled, context):
            settled[name] = knob.fold(settled[name], settled, context)
        else:
            del settled[name]
    return settled


def explain(values: Knobs, context: Context) -> dict[str, str]:
    """Why a user's setting does not reach the run as it was written; empty where all do.

    Returns:
        Knob name -> one sentence.
    """
    settled = canonical(values, context)
    reasons = {}
    for name, value in values.items():
        if name not in settled:
            reasons[name] = f"{name}={value} changes nothing here: it acts {KNOBS[name].scope}"
        elif settled[name] != value:
            reasons[name] = f"{name}={value} means the same run as {settled[name]}, which is used"
    return reasons


def _degree(values: Knobs, name: str) -> int:
    return int(values.get(name, 1))


def _data_parallel(values: Knobs, context: Context) -> int:
    return max(1, context.world // (_degree(values, "tp") * _degree(values, "pp")))


def _elements_per_rank(values: Knobs, context: Context) -> int:
    """Parameter elements that one tensor-parallel rank trains; exact for tp=1, else not below it.

    AutoTP splits the linear layers inside the blocks (auto_tp.py: _replace). Embeddings, the
    head, norms and biases may stay whole, as do uneven heads and fused experts: counted whole.
    """
    model, tp = context.model, _degree(values, "tp")
    uneven = model.n_heads % tp or model.n_kv_heads % tp or model.ffn_hidden % tp
    if tp == 1 or uneven or model.n_experts:
        return model.n_params
    tables = (1 if model.tied_embeddings else 2) * model.vocab + (model.max_seq_len or 0)
    vectors = model.n_layers * (16 * model.hidden + 4 * model.ffn_hidden)
    whole = min(model.n_params, tables * model.hidden + vectors)
    return whole + -(-(model.n_params - whole) // tp)


def _fold_elements(value: KnobValue, values: Knobs, context: Context) -> KnobValue:
    return min(int(value), _elements_per_rank(values, context))


def _fold_prefetch(value: KnobValue, values: Knobs, context: Context) -> KnobValue:
    # The amount is min(max_live - live, prefetch), so more than max_live is max_live.
    # partitioned_param_coordinator.py: fetch_sub_module
    live = values.get("stage3.max_live_parameters", value)
    return min(int(value), int(live), _elements_per_rank(values, context))


def _fold_persistence(value: KnobValue, _: Knobs, context: Context) -> KnobValue:
    return min(int(value), context.model.largest_param)


def _fold_recompute(value: KnobValue, _: Knobs, context: Context) -> KnobValue:
    # Layers 0, K, 2K, ...: from K = n_layers on it is the first layer alone.
    if not str(value).startswith("every_"):
        return value
    every = min(int(str(value).removeprefix("every_")), context.model.n_layers)
    return "full" if every == 1 else f"every_{every}"


def _fold_communication(value: KnobValue, _: Knobs, context: Context) -> KnobValue:
    # engine.py: communication_data_type answers the training precision where none is set.
    return "model" if value == context.precision else value


def _fetches_parameters(values: Knobs, context: Context) -> bool:
    # A group of one rank gathers nothing (partition_parameters.py: _no_gather_coalesced); what is
    # left is the copy from the host, which is none where the device is the host.
    copies = values.get("offload.param", "none") != "none" and context.accelerator != "cpu"
    return _data_parallel(values, context) > 1 or copies


def _releases_parameters(values: Knobs, context: Context) -> bool:
    # Persistent parameters are never released (partitioned_param_coordinator.py:
    # __params_to_release): with all of them persistent there is nothing to fetch ahead.
    if not _fetches_parameters(values, context):
        return False
    return int(values["stage3.param_persistence_threshold"]) < context.model.largest_param


def _caps_prefetch(values: Knobs, context: Context) -> bool:
    # Its only reader is the prefetcher (fetch_sub_module); releasing goes by reuse distance.
    return (
        _releases_parameters(values, context) and int(values["stage3.prefetch_bucket_size"]) > 0
    )


def _overlaps(values: Knobs, context: Context) -> bool:
    # Stage 3 only picks a stream with it (stage3.py: __init__), and a CPU has no streams
    # (cpu_accelerator.py: Stream). Stages 1 and 2 also double the bucket and, at stage 1, reduce
    # inside backward (stage_1_and_2.py: setup_buckets, process_gradients).
    return values["zero.stage"] != 3 or context.accelerator != "cpu"


def _communicates(values: Knobs, context: Context) -> bool:
    # With one rank the reduction is a copy; another data type would only add two casts.
    return _data_parallel(values, context) > 1


def _never(_: Knobs, __: Context) -> bool:
    return False


_ENTRIES = (
    Knob(
        name="zero.stage",
        kind="int",
        default=0,
        choices=(0, 1, 2, 3),
        help="ZeRO stage: what is sharded over the data-parallel ranks (0 nothing, 1 optimizer "
        "states, 2 and gradients, 3 and parameters)",
    ),
    Knob(
        name="tp",
        kind="int",
        default=1,
        minimum=1,
        help="tensor parallel degree (DeepSpeed AutoTP)",
    ),
    Knob(
        name="micro_batch",
        kind="int",
        default=1,
        minimum=1,
        help="samples per rank and forward pass; gradient accumulation follows from the global "
        "batch",
    ),
    Knob(
        name="recompute",
        kind="choice",
        default="none",
        choices=("none", "full"),
        pattern=r"every_([2-9]|[1-9]\d{1,3})",
        fold=_fold_recompute,
        help="activation recomputation: none, full, or every_K (layers 0, K, 2K, ...)",
    ),
    Knob(
        # At stage 0 it would swap the optimizer's kernel and offload nothing
        # (engine.py: _configure_basic_optimizer).
        name="offload.optimizer",
        kind="choice",
        default="none",
        choices=("none", "cpu"),
        scope="at stages 1 to 3",
        stages=(1, 2, 3),
        help="where optimizer states live and are updated",
    ),
    Knob(
        # Nothing but the stage 3 branch hands it on (engine.py: _configure_zero_optimizer).
        name="offload.param",
        kind="choice",
        default="none",
        choices=("none", "cpu"),
        scope="at stage 3",
        stages=(3,),
        help="where sharded parameters live between uses",
    ),
    Knob(
        # Stage 0 reduces by a constant of its own (engine.py: MEMORY_OPT_ALLREDUCE_SIZE). Above
        # all gradients of a rank nothing changes but an allocation that is never filled
        # (stage_1_and_2.py: setup_buckets; stage3.py: _setup_for_real_optimizer).
        name="reduce_bucket_size",
        kind="int",
        default=500_000_000,
        minimum=1,
        scope="at stages 1 to 3",
        stages=(1, 2, 3),
        fold=_fold_elements,
        help="gradient elements reduced at once",
    ),
    Knob(
        # Read only where torch lacks all_gather_into_tensor (utils.py: all_gather_dp_groups);
        # every torch that this package supports has it. Stage 3 is not even given it.
        name="allgather_bucket_size",
        kind="int",
        default=500_000_000,
        minimum=2,
        scope="nowhere with torch 1.13 or newer",
        stages=(1, 2),
        acts=_never,
        fold=_fold_elements,
        help="parameter elements gathered at once after the optimizer step",
    ),
    Knob(
        # config.py: overlap_comm_valid
        name="overlap_comm",
        kind="bool",
        default=False,
        default_at_stage={3: True},
        scope="at stages 1 and 2, and on a GPU at stage 3",
        stages=(1, 2, 3),
        acts=_overlaps,
        help="reduce gradients while backward still runs; doubles the bucket at stages 1 and 2",
    ),
    Knob(
        # parameter_offload.py: mark_persistent_parameters
        name="stage3.param_persistence_threshold",
        kind="int",
        default=100_000,
        scope="at stage 3 where parameters are fetched (dp above 1, or offloaded to the host)",
        stages=(3,),
        acts=_fetches_parameters,
        fold=_fold_persistence,
        help="parameters of at most this many elements stay gathered",
    ),
    Knob(
        name="stage3.max_live_parameters",
        kind="int",
        default=1_000_000_000,
        minimum=1,
        scope="at stage 3 where parameters are fetched ahead",
        stages=(3,),
        acts=_caps_prefetch,
        fold=_fold_elements,
        help="fetch ahead only while fewer parameter elements than this are gathered",
    ),
    Knob(
        name="stage3.prefetch_bucket_size",
        kind="int",
        default=50_000_000,
        scope="at stage 3 where parameters are fetched and some are not persistent",
        stages=(3,),
        acts=_releases_parameters,
        fold=_fold_prefetch,
        help="parameter elements fetched ahead of use; 0 fetches none ahead",
    ),
    Knob(
        # Stage 0: engine.py: allreduce_bucket; 1 and 2: stage_1_and_2.py: allreduce_bucket;
        # 3: stage3.py: __avg_scatter_grads.
        name="communication_dtype",
        kind="choice",
        default="model",
        choices=("model", "fp32", "fp16", "bf16"),
        scope="where gradients are reduced over more than one rank",
        acts=_communicates,
        fold=_fold_communication,
        help="data type of gradient reduction; model: the training precision",
    ),
)

KNOBS: Mapping[str, Knob] = {knob.name: knob for knob in _ENTRIES}
"""By name, in an order in which a knob comes after those that its fold looks at."""

_KINDS = {"int": "a whole number", "bool": "true or false", "choice": "text"}


def _read(value: object, kind: str) -> KnobValue | None:
    """The value in the knob's type; None where it is of another."""
    if kind == "choice":
        return value if isinstance(value, str) else None
    if kind == "bool":
        if isinstance(value, str):
            return {"true": True, "false": False}.get(value.lower())
        return value if isinstance(value, bool) else None
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    try:
        # YAML and the shell hand over 5e8 as text, and 5.0e8 as a float.
        number = float(value) if isinstance(value, str | float) else None
    except ValueError:
        return None
    if number is None or not number.is_integer():
        return None
    return int(number)


def _nearest(value: KnobValue, choices: tuple[KnobValue, ...]) -> KnobValue | None:
    if isinstance(value, str):
        by_text = {str(choice): choice for choice in choices}
        near = get_close_matches(value, by_text, n=1, cutoff=0.4)
        return by_text[near[0]] if near else None
    return min(choices, key=lambda choice: abs(int(choice) - int(value)))
