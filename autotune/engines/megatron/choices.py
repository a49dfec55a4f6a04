"""Values of Megatron's knobs that stand for several words, and what stands for them in columns.

In a column of whole numbers 0 is a knob's default, and any other number a place in its values.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray


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
FSDP = ("none", "optim", "optim_grads", "optim_grads_params")
"""What Megatron's FSDP shards: as ZeRO's stages 1, 2 and 3."""
MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")
"""Modules that selective recomputation can compute again."""
RECOMPUTED = sets_of(MODULES)
"""Every choice of them."""
DISPATCHERS = ("alltoall", "deepep", "hybridep", "allgather")
"""What sends tokens to their experts: a row for each expert; each token once to a rank; all tokens
to every rank."""
OFFLOADED = (
    "none",
    *("core_attn", "core_attn+attn_proj", "qkv_linear", "core_attn+attn_proj+qkv_linear"),
)
"""Modules whose inputs go to the host; that of `attn_proj` is the result of `core_attn`."""
FP8 = ("none", "hybrid", "e4m3")
FP8_RECIPES = ("delayed", "tensorwise", "blockwise", "mxfp8")
MOMENTS = ("fp32", "bf16")
"""Precisions of Adam's two moments."""
GRADIENTS = ("fp32", "bf16")
"""Precisions in which gradients are summed and reduced."""
CP_KINDS = ("p2p", "a2a", "all_gather")
"""How context parallel ranks exchange keys and values, in Transformer Engine's words."""
GRAPHS = (
    "none",
    "attn",
    "attn+mlp",
    "moe_router+moe_preprocess",
    "attn+moe_router+moe_preprocess",
)
"""Parts of a layer that CUDA graphs of Transformer Engine capture."""
ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")
"""Axes of the ranks, neighbours first."""


def has(part: str, choices: Sequence[str], codes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Where a column of places in `choices` has a part."""
    return np.array([part in choice.split("+") for choice in choices])[codes]
