"""Memory of a traced step: bytes by kind, at the fullest moment of each part of the step.

A part is the layers' forward pass, the output head's, the backward pass of one layer, ... Which
of them is the fullest follows from how an engine shards parameters, gradients and optimizer
states.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self


class Kind(StrEnum):
    """Purpose of a tensor."""

    PARAMETERS = "parameters"
    """And buffers."""
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer states"
    ACTIVATIONS = "activations"
    """Tensors that the forward pass of all but the output head keeps or passes on."""
    LOGITS = "logits"
    """Tensors of the output head and the loss, forward and backward."""
    TEMPORARIES = "temporaries"
    """Tensors of the backward pass and the optimizer: recomputed layers, moving gradients."""


class StepPhase(StrEnum):
    """The three of an optimizer step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "optimizer step"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the step."""

    phase: StepPhase
    place: str
    """`layers`, `head` or `inputs`; a layer of the backward pass as `layer`; empty for all of the
    optimizer's step."""
    index: int = 0
    """Place of a `layer`, from 0 at the inputs."""


Bytes = Mapping[Kind, float]


@dataclass(frozen=True, kw_only=True)
class Traced:
    """One step of one model."""

    n_layers: int
    """0: they are not told apart."""
    n_params: int
    """Trained and frozen."""
    parts: Mapping[Part, Bytes]
    """Bytes at the fullest moment of each."""

    @property
    def peak_bytes(self) -> float:
        return max(sum(held.values()) for held in self.parts.values())

    def as_dict(self) -> dict[str, Any]:
        return {
            "n_layers": self.n_layers,
            "n_params": self.n_params,
            "parts": [
                {**dataclasses.asdict(part), "bytes": dict(held)}
                for part, held in self.parts.items()
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            n_layers=data["n_layers"],
            n_params=data["n_params"],
            parts={
                Part(phase=StepPhase(row["phase"]), place=row["place"], index=row["index"]): {
                    Kind(kind): size for kind, size in row["bytes"].items()
                }
                for row in data["parts"]
            },
        )
