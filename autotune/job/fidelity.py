"""Reduced trials: a configuration on fewer layers or fewer accelerators than the job's.

They cost less and teach the forecast; no figure of theirs is ever the candidate's own.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, field_validator, model_validator

from autotune.base.errors import JobError
from autotune.base.units import format_count
from autotune.base.yaml_file import number_of, refuse_other_spelling
from autotune.contract import Fidelity
from autotune.job.model_shape import ModelShape

SMALLEST: Literal["smallest"] = "smallest"
"""A world that says: as few accelerators as hold the candidate."""
_SPELLED = "layers=4, world=2, or both: layers=4,world=smallest"


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """What a job's reduced trials may run."""

    layers: int | None = None
    """Layers of the model; None: all of them."""
    worlds: tuple[int | None, ...] = (None,)
    """Accelerators, the fewest first: a trial takes the first that holds its candidate. None: all
    of them."""

    @property
    def fidelities(self) -> tuple[Fidelity, ...]:
        """What a reduced trial may be, the smallest first."""
        return tuple(Fidelity(layers=self.layers, world=world) for world in self.worlds)

    def describe(self) -> str:
        """`4 layers`, `2 accelerators`, or `4 layers on as few accelerators as hold it`."""
        if len(self.worlds) == 1:
            return describe_fidelity(self.fidelities[0])
        layers = describe_fidelity(Fidelity(layers=self.layers))
        few = "as few accelerators as hold it"
        return f"{layers} on {few}" if layers else few


def _world(value: Any) -> int | Literal["smallest"] | None:
    """A number of accelerators, or the word; said as one, where pydantic says it of each type."""
    if value is None:
        return None
    if value == SMALLEST:
        return SMALLEST
    number = number_of(value.strip()) if isinstance(value, str) else value
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ValueError(f"should be a number above 0, or {SMALLEST}")
    return number


class FidelityFile(BaseModel):
    """The job's `fidelity` section."""

    model_config = ConfigDict(extra="forbid")

    layers: int | None = Field(default=None, ge=1)
    world: Annotated[int | Literal["smallest"] | None, PlainValidator(_world)] = None

    _refuse_switches = field_validator("layers", mode="before")(refuse_other_spelling)

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, value: Any) -> Any:
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

    def checked(self, *, shape: ModelShape, world: int) -> Reduction:
        """What reduced trials run, if that is less than what the job asks for.

        Raises:
            JobError: It is not less, or replicas would have different shares of the batch.
        """
        if self.layers is not None and self.layers >= shape.n_layers:
            n, most = shape.n_layers, shape.n_layers - 1
            raise JobError.of("job.layers_not_fewer", layers=self.layers, n=n, most=most)
        smaller = tuple(n for n in range(1, world) if world % n == 0)
        if self.world == SMALLEST:
            if not smaller:
                raise JobError.of("job.no_smaller_world", world=world)
            return Reduction(layers=self.layers, worlds=smaller)
        if self.world is not None and self.world not in smaller:
            instead = f"give it one of {', '.join(map(str, smaller))}, or " if smaller else ""
            part = self.world
            raise JobError.of("job.no_part_of_world", part=part, world=world, instead=instead)
        return Reduction(layers=self.layers, worlds=(self.world,))


def describe_fidelity(fidelity: Fidelity) -> str:
    """`4 layers`, `2 accelerators`, or `4 layers on 2 accelerators`."""
    counted = ((fidelity.layers, "layer"), (fidelity.world, "accelerator"))
    return " on ".join(format_count(n, what) for n, what in counted if n)
