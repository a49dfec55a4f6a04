"""Values of Megatron's knobs that stand for several words, and what stands for them in columns.

In a column of whole numbers 0 is a knob's default, and any other number a place in its values.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from autotune.base.data import table_beside


def sets_of(parts: Sequence[str]) -> tuple[str, ...]:
    """Every choice of some parts, each joined by `+`, the smaller ones first."""
    return tuple(
        "+".join(chosen)
        for count in range(1, len(parts) + 1)
        for chosen in combinations(parts, count)
    )


class Values:
    """Values of a knob that are too many to list, each with a number: the known ones first."""

    def __init__(self, *known: str) -> None:
        self._texts = list(known)
        self._numbers = {text: number for number, text in enumerate(known)}

    def number(self, text: str) -> int:
        if text not in self._numbers:
            self._numbers[text] = len(self._texts)
            self._texts.append(text)
        return self._numbers[text]

    def text(self, number: int) -> str:
        return self._texts[number]


LAYOUTS = Values("even", "balanced")
"""How layers are placed on pipeline stages; the others are layouts that somebody wrote."""
BALANCED = 1
_KNOWN = {name: tuple(row) for name, row in table_beside(__file__, "choices.json").items()}
"""Values of knobs, and what they are."""
FSDP, DISPATCHERS, OFFLOADED = _KNOWN["FSDP"], _KNOWN["DISPATCHERS"], _KNOWN["OFFLOADED"]
FP8, FP8_RECIPES, MOMENTS = _KNOWN["FP8"], _KNOWN["FP8_RECIPES"], _KNOWN["MOMENTS"]
GRADIENTS, CP_KINDS, GRAPHS = _KNOWN["GRADIENTS"], _KNOWN["CP_KINDS"], _KNOWN["GRAPHS"]
MODULES, ORDERS = _KNOWN["MODULES"], _KNOWN["ORDERS"]
RECOMPUTED = sets_of(MODULES)
"""Every choice of modules to recompute."""


def has(part: str, choices: Sequence[str], codes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Where a column of places in `choices` has a part."""
    return np.array([part in choice.split("+") for choice in choices])[codes]
