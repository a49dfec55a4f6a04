"""Memory of a traced step: bytes by kind, at the fullest moment of each part of the step.

Every part is one in which the same work is done whatever the depth of the model: the layers'
forward pass, the output head's, the backward pass of one layer, ... What it holds at its fullest
moment grows by the same bytes with each further layer, so two depths tell every other one. That is
not so of the peak of a whole step, which is the largest part's: with recomputation another part
leads from some depth on.
"""

import dataclasses
from collections.abc import Mapping, Sequence
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
    """Place of a `layer`: from 0 by its distance to the inputs, from -1 by that to the head."""


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


def depths(n_layers: int, period: int) -> tuple[int, int, int] | None:
    """Depths that tell those of a model: two to draw a line through, one to prove it.

    The kinds of layers repeat after a period: every K-th is recomputed, every other one attends to
    a window. None: the whole model is no more work than these.
    """
    least = 2 * _edge(period)
    first = least + (n_layers - least) % period
    found = first, first + period, first + 2 * period
    return found if sum(found) < n_layers else None


def at_depth(shallow: Traced, deeper: Traced, n_layers: int) -> Traced:
    """The same model with more layers, told by two of its `depths`."""
    period = deeper.n_layers - shallow.n_layers
    periods = (n_layers - shallow.n_layers) / period
    below, above = (_ends(traced, _edge(period)) for traced in (shallow, deeper))
    return Traced(
        n_layers=n_layers,
        n_params=round(_line(shallow.n_params, deeper.n_params, periods)),
        parts={
            part: {kind: _line(below[part][kind], above[part][kind], periods) for kind in Kind}
            for part in below
        },
    )


def differs(traced: Traced, extrapolated: Traced) -> float:
    """How far a traced step is off what was told of it: a share, the largest of all parts."""
    known = _ends(traced, len([part for part in extrapolated.parts if part.place == "layer"]) // 2)
    off = (
        abs(sum(known[part].values()) - sum(extrapolated.parts[part].values()))
        for part in extrapolated.parts
    )
    return max(off) / traced.peak_bytes


def _line(first: float, second: float, periods: float) -> float:
    return first + (second - first) * periods


def _edge(period: int) -> int:
    """Layers at either end that are followed from depth to depth.

    Two, since the outermost one lies beside something else than a layer. Between the ends what is
    held changes evenly from period to period, so no layer there holds more than both ends.
    """
    return max(2, period)


def _ends(traced: Traced, edge: int) -> dict[Part, Bytes]:
    """The parts of which every depth has the same ones."""
    n = traced.n_layers
    found: dict[Part, Bytes] = {}
    for part, held in traced.parts.items():
        if part.place != "layer" or part.index < edge:
            found[part] = held
        elif part.index >= n - edge:
            found[Part(phase=part.phase, place="layer", index=part.index - n)] = held
    return found


def same_parts(several: Sequence[Traced]) -> bool:
    """Whether the steps have the same parts but for their depth."""
    first, *others = (
        {part for part in traced.parts if part.place != "layer"} for traced in several
    )
    return all(other == first for other in others)
