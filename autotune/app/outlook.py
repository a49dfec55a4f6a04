"""A job on a fleet, here or described: what is legal there, whatever the engine; nothing runs."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from autotune.base.errors import JobError
from autotune.base.units import parse_rate
from autotune.contract import KnobValue
from autotune.cost import Plans, Prediction, predict
from autotune.cost.candidates import constants_of
from autotune.cost.device import LinkName, link_columns
from autotune.devices.accelerators import Accelerator, find_accelerator
from autotune.devices.hardware import Environment
from autotune.export.base import Handout
from autotune.job.job import Job
from autotune.report.settings import Choices
from autotune.space.rule import Violation


@dataclass(frozen=True, kw_only=True)
class FleetWishes:
    """A fleet as the command line describes it; None: what this machine or the vendor has."""

    gpu: str | None = None
    """Name of an accelerator of the table."""
    per_node: int | None = None
    network: str | None = None
    """A device's share of its node's network, one way, such as `400Gbps`."""
    nvlink: str | None = None
    """All links of a device together, one way."""
    accelerators: Path | None = None
    """A table of the user's, before the shipped one."""

    def __post_init__(self) -> None:
        if self.per_node is not None and self.per_node < 1:
            raise JobError(
                f"--per-node {self.per_node}: not above zero", "accelerators of one node"
            )

    @property
    def describes_a_fleet(self) -> bool:
        """Whether anything but the table is wished for."""
        return any((self.gpu, self.per_node, self.network, self.nvlink))

    def links(self) -> dict[str, float]:
        """Columns of `Plans` that the described links change.

        Raises:
            JobError: A rate is not one.
        """
        rates: dict[LinkName, str | None] = {"network": self.network, "nvlink": self.nvlink}
        found: dict[str, float] = {}
        for name, text in rates.items():
            if text is not None:
                # What was measured of the link that is there is not of the one that is described.
                found |= link_columns(name, None)
                found[f"{name}_bytes_per_s"] = parse_rate(text, where=f"--{name}")
        return found


C = TypeVar("C", bound=Choices)


@dataclass(frozen=True, kw_only=True)
class Outlook(ABC, Generic[C]):
    """A job on a fleet: what is legal there, and the columns that the fleet's links change."""

    job: Job
    environment: Environment
    wishes: FleetWishes
    table: tuple[Accelerator, ...]

    @property
    def own_table(self) -> Path | None:
        """The user's table of accelerators, if there is one."""
        return self.wishes.accelerators or self.job.accelerators

    @property
    @abstractmethod
    def choices(self) -> C:
        """The lattice: all that is legal."""

    @property
    @abstractmethod
    def home(self) -> str:
        """What holds the lattice, in words: `the space zero`."""

    @abstractmethod
    def read(self, settings: Sequence[str]) -> tuple[C, tuple[str, ...]]:
        """The one choice that `knob=value` settings make, legal or not.

        Returns:
            The choice, and what became of settings that do not reach the run as written.

        Raises:
            JobError: A setting is not one.
        """

    @abstractmethod
    def placed(self, choice: C) -> tuple[C, int, bool]:
        """The lattice with one choice in it, the choice's index, and whether it was there."""

    @abstractmethod
    def violations(self, choices: C, index: int) -> tuple[Violation, ...]:
        """The rules that a choice breaks; none: it is legal."""

    @abstractmethod
    def neighbours(self, choice: C) -> tuple[C, list[tuple[str, KnobValue]]]:
        """Choices that differ from one in one knob, and that knob with its value."""

    @property
    @abstractmethod
    def dialect(self) -> str:
        """Name of the dialect that hands its choices out where nobody names one."""

    @abstractmethod
    def handout(self, index: int) -> Handout:
        """A choice of the lattice to hand out.

        Raises:
            RenderError: It does not render.
        """

    @abstractmethod
    def columns(self, choices: C) -> Plans:
        """Some choices in the model's columns, with the links as the table has them."""

    def predict(self, choices: C) -> Prediction:
        """What the model says of some choices, with the links as they were described."""
        plans = dataclasses.replace(self.columns(choices), **self.wishes.links())
        return predict(plans, constants_of(self.environment))


AnyOutlook = Outlook[Any]


def described(wishes: FleetWishes, here: Environment, table: Sequence[Accelerator]) -> Environment:
    """An environment that nobody has here: the accelerator's figures, this machine's versions."""
    assert wishes.gpu is not None
    found = find_accelerator(wishes.gpu, table=table)
    is_cpu = found.name == "CPU"
    known = tuple(name for name in ("fp32", "bf16", "fp16") if name in found.peak_flops)
    return Environment(
        accelerator="cpu" if is_cpu else "cuda",
        n_devices=found.devices_per_node if wishes.per_node is None else wishes.per_node,
        device_name=found.name,
        device_memory_bytes=int(found.memory_bytes),
        peak_flops=None if is_cpu else found.peak_flops[found.half],
        deepspeed_version=here.deepspeed_version,
        torch_version=here.torch_version,
        precisions=known,
    )
