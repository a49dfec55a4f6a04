"""Reduced trials: a configuration on fewer layers or fewer accelerators than the job's.

They cost less and teach the forecast; no figure of theirs is ever the candidate's own.
"""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from autotune.base.errors import JobError
from autotune.base.yaml_file import refuse_other_spelling
from autotune.contract import Fidelity
from autotune.job.model_shape import ModelShape

_SPELLED = "layers=4, world=2, or both: layers=4,world=2"


class FidelityFile(BaseModel):
    """The job's `fidelity` section."""

    model_config = ConfigDict(extra="forbid")

    layers: int | None = Field(default=None, ge=1)
    world: int | None = Field(default=None, ge=1)

    _refuse_switches = field_validator("*", mode="before")(refuse_other_spelling)

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, value: Any) -> Any:
        """Read the text of the flag."""
        if not isinstance(value, str):
            return value
        pairs = [part.partition("=") for part in value.split(",")]
        names = [name.strip() for name, _, _ in pairs]
        if not all(equals for _, equals, _ in pairs) or len(set(names)) < len(names):
            raise ValueError(f"should be {_SPELLED}")
        return {name: number.strip() for name, (_, _, number) in zip(names, pairs, strict=True)}

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.layers is None and self.world is None:
            raise ValueError(f"should be {_SPELLED}")
        return self

    def checked(self, *, shape: ModelShape, world: int) -> Fidelity:
        """What reduced trials run, if that is less than what the job asks for.

        Raises:
            JobError: It is not less, or replicas would have different shares of the batch.
        """
        if self.layers is not None and self.layers >= shape.n_layers:
            raise JobError(
                f"fidelity.layers: {self.layers} is not fewer than the model's {shape.n_layers}",
                f"give it a number from 1 to {shape.n_layers - 1}, or leave it out",
            )
        if self.world is not None and (self.world >= world or world % self.world):
            smaller = [str(n) for n in range(1, world) if world % n == 0]
            raise JobError(
                f"fidelity.world: {self.world} is no part of the job's world of {world}: {world} "
                f"/ {self.world} has to be a whole number above 1",
                f"give it one of {', '.join(smaller)}, or leave it out"
                if smaller
                else "leave it out",
            )
        return Fidelity(layers=self.layers, world=self.world)


def describe_fidelity(fidelity: Fidelity) -> str:
    """`4 layers`, `2 accelerators`, or `4 layers on 2 accelerators`."""
    counted = ((fidelity.layers, "layer"), (fidelity.world, "accelerator"))
    return " on ".join(f"{n} {what}{'' if n == 1 else 's'}" for n, what in counted if n)
