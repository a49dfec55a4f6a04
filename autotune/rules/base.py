"""What a rule is: it judges what would really run, and carries the case that proves it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from autotune.hardware import Environment
from autotune.model import ModelShape

Consequence = Literal["raised", "ignored", "hung", "differs", "worse"]
"""What the engine does with a clash: raises, silently ignores a key, hangs, runs something other
than was asked, or runs it but at a needless cost (only for values that fold)."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What would really run: rendered configuration, layout, environment and engine version.

    The same rules serve the lattice, a user's own ds_config and the renderer, so they see this
    and never a candidate.
    """

    ds_config: Mapping[str, Any]
    world: int
    tp: int
    pp: int
    global_batch: int | None
    """Samples per optimizer step that the user wants; None where unknown (a bare ds_config)."""
    seq_len: int | None
    recompute: str
    precision: str
    model: ModelShape | None
    supports_tp: bool
    supports_recompute: bool
    environment: Environment

    @property
    def zero(self) -> Mapping[str, Any]:
        """The `zero_optimization` section; empty where there is none."""
        section = self.ds_config.get("zero_optimization", {})
        return section if isinstance(section, Mapping) else {}

    @property
    def stage(self) -> int:
        """ZeRO stage."""
        return int(self.zero.get("stage", 0))


@dataclass(frozen=True, kw_only=True)
class Violation:
    """Why a setup is refused."""

    rule: str
    message: str
    """Which values clash, with the arithmetic."""
    fix: str
    """The cheapest change that makes it legal."""


@dataclass(frozen=True, kw_only=True)
class Witness:
    """A case that breaks one rule alone, and what the engine did with it when it was run."""

    world: int = 2
    tp: int = 1
    recompute: str = "none"
    precision: str = "fp32"
    global_batch: int = 4
    ds_config: Mapping[str, Any] = field(default_factory=dict)
    """Merged into a plain configuration that is legal and trains."""
    consequence: Consequence = "raised"
    raises: str = ""
    """Regular expression that the engine's exception matches, for `raised`."""
    deepspeed: str = ""
    """Version specifier of the DeepSpeed releases that behave so, such as `>=0.19.8`; empty: all."""
    needs_cuda: bool = False


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A named legality check."""

    name: str
    """`subject.what`, such as `zero.param_offload_needs_stage_3`."""
    check: Callable[[Setup], tuple[str, str] | None]
    """Returns (message, fix) for a violation, None for a legal setup."""
    witness: Witness
    source: str
    """Where the engine says so: a file, an issue, a measurement."""

    def judge(self, setup: Setup) -> Violation | None:
        """Apply the rule."""
        found = self.check(setup)
        return None if found is None else Violation(rule=self.name, message=found[0], fix=found[1])
