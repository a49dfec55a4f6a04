"""The closed list of knobs: what each chooses, its default in the engine, and when it acts.

A knob that has no effect in some situation is not a knob there (`acts`), and values above the
point where a knob saturates are one value (`saturates_at`): so two candidates never mean the same
run. Adding a knob is one entry here and one line in the engine's template.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from autotune.contract import KnobValue
from autotune.model import ModelShape

Knobs = Mapping[str, KnobValue]


def _always(_: Knobs) -> bool:
    return True


def _stages(*stages: int) -> Callable[[Knobs], bool]:
    return lambda knobs: knobs.get("zero.stage") in stages


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One choice to make."""

    name: str
    kind: Literal["int", "bool", "choice"]
    """`int` knobs are ordered; powers of two are offered to the sampler as their logarithm."""
    default: KnobValue
    """What runs when nobody chooses: the engine's own default, or the neutral value."""
    help: str
    choices: tuple[KnobValue, ...] = ()
    """Legal values of a `choice`; `int` and `bool` knobs leave it empty."""
    minimum: int = 0
    """Smallest legal value of an `int` knob."""
    acts: Callable[[Knobs], bool] = _always
    """Whether the knob has any effect, given the others."""
    saturates_at: Callable[[ModelShape, int], int] | None = None
    """(model, tp) -> the value, in elements, from which on every larger one means the same run."""
    pattern: str = ""
    """A regular expression that values of a `choice` may match besides `choices`."""


def _largest_shard(model: ModelShape, tp: int) -> int:
    return -(-model.n_params // tp)


def _even_shard(model: ModelShape, tp: int) -> int:
    shard = _largest_shard(model, tp)
    return shard + shard % 2


def _largest_parameter(model: ModelShape, tp: int) -> int:
    return model.largest_param


KNOBS: dict[str, Knob] = {
    knob.name: knob
    for knob in (
        Knob(
            name="zero.stage",
            kind="int",
            default=0,
            help="ZeRO stage: what is sharded over the data-parallel ranks (0 nothing, 1 optimizer "
            "states, 2 and gradients, 3 and parameters)",
            choices=(0, 1, 2, 3),
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
            help="samples per rank and forward pass; gradient accumulation follows from the "
            "global batch",
        ),
        Knob(
            name="recompute",
            kind="choice",
            default="none",
            choices=("none", "full"),
            pattern=r"every_[2-9]\d*",
            help="activation recomputation: none, full, or every_K (every K-th layer)",
        ),
        Knob(
            name="offload.optimizer",
            kind="choice",
            default="none",
            choices=("none", "cpu"),
            acts=_stages(1, 2, 3),
            help="where optimizer states live and are updated",
        ),
        Knob(
            name="offload.param",
            kind="choice",
            default="none",
            choices=("none", "cpu"),
            acts=_stages(3),
            help="where sharded parameters live between uses",
        ),
        Knob(
            name="reduce_bucket_size",
            kind="int",
            default=500_000_000,
            minimum=1,
            acts=_stages(1, 2, 3),
            saturates_at=_largest_shard,
            help="gradient elements reduced at once",
        ),
        Knob(
            name="allgather_bucket_size",
            kind="int",
            default=500_000_000,
            minimum=2,
            acts=_stages(1, 2),
            saturates_at=_even_shard,
            help="parameter elements gathered at once after the optimizer step",
        ),
        Knob(
            name="overlap_comm",
            kind="bool",
            default=False,
            acts=_stages(1, 2, 3),
            help="reduce gradients while backward still runs",
        ),
        Knob(
            name="stage3.prefetch_bucket_size",
            kind="int",
            default=50_000_000,
            acts=_stages(3),
            saturates_at=_largest_shard,
            help="parameter elements fetched ahead of use",
        ),
        Knob(
            name="stage3.param_persistence_threshold",
            kind="int",
            default=100_000,
            acts=_stages(3),
            saturates_at=_largest_parameter,
            help="parameters of at most this many elements are never sharded",
        ),
        Knob(
            name="stage3.max_live_parameters",
            kind="int",
            default=1_000_000_000,
            acts=_stages(3),
            saturates_at=_largest_shard,
            help="parameter elements kept gathered at once",
        ),
        Knob(
            name="communication_dtype",
            kind="choice",
            default="model",
            choices=("model", "fp32", "fp16", "bf16"),
            help="data type of gradient reduction; model: the training precision",
        ),
    )
}
