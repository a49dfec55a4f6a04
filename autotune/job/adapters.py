"""Parameter-efficient fine-tuning: which weights are frozen, and what is trained instead."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from autotune.base.yaml_file import refuse_other_spelling

ALL_LINEAR = "all-linear"
"""peft's word for every linear layer but the output head."""
MAX_RANK = 65_536


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adapters beside frozen weights: W x becomes W x + (alpha / rank) B A x.

    Source: Hu et al., LoRA (arXiv:2106.09685), section 4.1.
    """

    rank: int
    """Rows of A and columns of B."""
    alpha: float
    """Numerator of the scale of the adapters' part."""
    target_modules: str | tuple[str, ...]
    """`all-linear`, or ends of the names of the modules that get adapters."""
    dropout: float
    """Share of the adapters' inputs that is dropped (0 to below 1); 0 for none."""
    is_packed: bool = False
    """Whether the frozen weights of the layers lie in 4 bits (QLoRA): that is forecast alone."""

    def as_source(self) -> dict[str, Any]:
        """`TrialSpec.model["lora"]`."""
        targets = self.target_modules
        spelled = targets if isinstance(targets, str) else list(targets)
        adapters = {"rank": self.rank, "alpha": self.alpha, "dropout": self.dropout}
        return {**adapters, "target_modules": spelled}


def _targets(value: Any) -> str | tuple[str, ...]:
    if value == ALL_LINEAR:
        return ALL_LINEAR
    is_list = isinstance(value, list | tuple) and value
    if is_list and all(isinstance(name, str) and name for name in value):
        return tuple(sorted(set(value)))
    raise ValueError(f"should be {ALL_LINEAR} or a list of module names, such as [q_proj, v_proj]")


class FinetuneFile(BaseModel):
    """The job's `finetune` section."""

    model_config = ConfigDict(extra="forbid")

    method: Literal["lora", "qlora"]
    rank: int = Field(default=16, ge=1, le=MAX_RANK)
    alpha: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    target_modules: Annotated[str | tuple[str, ...], BeforeValidator(_targets)] = ALL_LINEAR
    dropout: float = Field(default=0.0, ge=0, lt=1)

    _refuse_switches = field_validator("rank", "alpha", "dropout", mode="before")(
        refuse_other_spelling
    )

    def lora(self) -> Lora:
        """With its defaults filled in: alpha is twice the rank, so that the scale is 2."""
        alpha = 2.0 * self.rank if self.alpha is None else self.alpha
        known = self.model_dump(exclude={"method"})
        return Lora(**{**known, "alpha": alpha}, is_packed=self.method == "qlora")


def with_rank(finetune: Any, rank: int) -> Any:
    """The job's `finetune` section with a rank from the command line laid over it."""
    if finetune is None:
        return {"method": "lora", "rank": rank}
    return {**finetune, "rank": rank} if isinstance(finetune, Mapping) else finetune
