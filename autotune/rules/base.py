"""What a rule is: it judges what would really run, and carries the cases that prove it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from autotune.hardware import Environment
from autotune.model import ModelShape

Consequence = Literal["raised", "ignored", "differs"]
"""What the engine does with a clash: it raises, it runs as if the value were not there, or it runs
something other than was asked."""

Finding = tuple[str, str]
"""(message, fix): which values clash, with the arithmetic; the cheapest legal change."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What would really run: rendered configuration, layout, environment and engine version.

    The same rules serve the lattice, a user's own ds_config and the renderer, so they see this
    and never a candidate. The properties answer for any configuration, well-formed or not: a value
    of the wrong type reads as DeepSpeed's default there (`autotune.rules.schema` names it).
    """

    ds_config: Mapping[str, Any]
    world: int
    tp: int
    pp: int
    global_batch: int | None
    """Samples per optimizer step that the user wants; None where unknown (a bare ds_config)."""
    seq_len: int | None
    """Tokens per sample; None where unknown."""
    recompute: str
    precision: str
    model: ModelShape | None
    """None where unknown."""
    supports_tp: bool
    supports_recompute: bool
    environment: Environment

    def section(self, name: str) -> Mapping[str, Any]:
        """A section of the configuration by its top-level name; empty where there is none."""
        section = self.ds_config.get(name)
        return section if isinstance(section, Mapping) else {}

    @cached_property
    def zero(self) -> Mapping[str, Any]:
        """The `zero_optimization` section; empty where there is none."""
        return self.section("zero_optimization")

    @cached_property
    def stage(self) -> int:
        """ZeRO stage."""
        stage = self.zero.get("stage", 0)
        return int(stage) if stage in (0, 1, 2, 3) else 0

    @cached_property
    def optimizer_offload(self) -> str:
        """Device that optimizer states are offloaded to: `none`, `cpu` or `nvme`."""
        return self._offload("offload_optimizer", "cpu_offload")

    @cached_property
    def param_offload(self) -> str:
        """Device that parameters are offloaded to: `none`, `cpu` or `nvme`."""
        return self._offload("offload_param", "cpu_offload_param")

    @cached_property
    def optimizer(self) -> str:
        """Optimizer type in lower case; empty where the configuration names none."""
        kind = self.section("optimizer").get("type")
        return kind.lower() if isinstance(kind, str) else ""

    @cached_property
    def optimizer_params(self) -> Mapping[str, Any]:
        """`optimizer.params`; empty where there are none."""
        params = self.section("optimizer").get("params")
        return params if isinstance(params, Mapping) else {}

    @cached_property
    def dtype(self) -> str:
        """Precision that the configuration switches on: `fp16`, `bf16` or `fp32`."""
        if self.section("fp16").get("enabled") is True:
            return "fp16"
        return "bf16" if self.bf16.get("enabled") is True else "fp32"

    @cached_property
    def bf16(self) -> Mapping[str, Any]:
        """The `bf16` section, under its old name if that is the only one."""
        return self.section("bf16" if self.ds_config.get("bf16") is not None else "bfloat16")

    @cached_property
    def sp(self) -> int:
        """Sequence parallel degree; DeepSpeed wants both sizes of the mesh for one."""
        sp, dp = (self.ds_config.get(f"{kind}_parallel_size") for kind in ("sequence", "data"))
        return sp if type(sp) is int and type(dp) is int and sp > 0 else 1

    @cached_property
    def dp(self) -> int:
        """Data parallel degree: world / (tp * pp * sp), rounded down."""
        return max(1, self.world // (self.tp * self.pp * self.sp))

    def _offload(self, name: str, deprecated: str) -> str:
        section = self.zero.get(name)
        if isinstance(section, Mapping):
            device = section.get("device")
            return device if device in ("cpu", "nvme") else "none"
        return "cpu" if self.zero.get(deprecated) is True else "none"


@dataclass(frozen=True, kw_only=True)
class Violation:
    """Why a setup is refused."""

    rule: str
    message: str
    """Which values clash, with the arithmetic."""
    fix: str
    """The cheapest change that makes it legal."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A setup, told as its difference from a plain one that is legal and trains.

    The plain one: world 2, a Llama of two layers, micro_batch 1, two accumulation steps, AdamW,
    fp32, ZeRO stage 0, no recomputation.
    """

    ds_config: Mapping[str, Any] = field(default_factory=dict)
    """Laid over the plain configuration, section by section; None takes a key away."""
    world: int = 2
    tp: int = 1
    recompute: str = "none"
    precision: str = "fp32"
    global_batch: int | None = None
    """None: what the configuration amounts to."""
    seq_len: int = 16
    model: Mapping[str, Any] = field(default_factory=dict)
    """Sizes (as in `ModelShape`) and `architecture` that differ."""
    fp16_supported: bool = True
    """Whether the accelerator does fp16 as far as DeepSpeed knows; many CPUs do not."""


@dataclass(frozen=True, kw_only=True)
class Witness:
    """A case that breaks one rule alone, its legal neighbour, and what the engine did with it."""

    broken: Case
    repaired: Case
    """The same, after the rule's fix."""
    consequence: Consequence
    raises: str = ""
    """`raised`: a regular expression that is found in `type: message` of the exception."""
    reads: Mapping[str, Any] = field(default_factory=dict)
    """`differs`: what the live engine reads back, against what was asked."""
    acts_with: Mapping[str, Any] | None = None
    """`ignored`: laid over both cases, it makes them differ: the value does act there."""
    deepspeed: str = ""
    """The release that it is about, where that is not the newest."""
    needs: str = ""
    """Why the installed DeepSpeed on a CPU cannot be asked; empty: it can."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A named legality check."""

    name: str
    """`subject.what`, such as `offload.param_needs_stage_3`."""
    check: Callable[[Setup], Finding | None]
    """Returns (message, fix) for a violation, None for a legal setup."""
    witnesses: tuple[Witness, ...]
    source: str
    """Where the engine says so: a file, an issue, a measurement."""

    def judge(self, setup: Setup) -> Violation | None:
        """Apply the rule."""
        found = self.check(setup)
        return None if found is None else Violation(rule=self.name, message=found[0], fix=found[1])


def raised(
    pattern: str, ds_config: Mapping[str, Any], fix: Mapping[str, Any], **case: Any
) -> Witness:
    """A witness that raises.

    Args:
        pattern: Regular expression over `type: message` of the exception.
        ds_config: What is laid over the plain configuration.
        fix: What is laid over that to make it legal.
        **case: Further fields of both cases.
    """
    return Witness(
        broken=Case(ds_config=ds_config, **case),
        repaired=Case(ds_config=overlay(ds_config, fix), **case),
        consequence="raised",
        raises=pattern,
    )


def ignored(
    ds_config: Mapping[str, Any],
    fix: Mapping[str, Any],
    acts_with: Mapping[str, Any] | None = None,
    **case: Any,
) -> Witness:
    """A witness whose run is the same as that of its legal neighbour; arguments as in `raised`.

    Args:
        ds_config: What is laid over the plain configuration.
        fix: What is laid over that to make it legal.
        acts_with: See `Witness.acts_with`.
        **case: Further fields of both cases.
    """
    return Witness(
        broken=Case(ds_config=ds_config, **case),
        repaired=Case(ds_config=overlay(ds_config, fix), **case),
        consequence="ignored",
        acts_with=acts_with,
    )


def overlay(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one patch over another, section by section; None stands for a key taken away."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(value, Mapping):
            merged[key] = overlay(below if isinstance(below, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged
