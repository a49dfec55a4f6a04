"""Where fake tensors would take another way than real ones, and hold something else."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn


@contextmanager
def as_in_a_trial(has_fused_dropout: bool) -> Iterator[None]:
    """Meanwhile models of fake tensors take the way of a trial's.

    Args:
        has_fused_dropout: Whether the device's fused attention drops scores without keeping any,
            as GPUs' do. A CPU's cannot drop at all.
    """
    with ExitStack() as stack:
        stack.enter_context(_unpacked_masks())
        stack.enter_context(mock.patch.object(nn.Module, "_apply", _casts()))
        if has_fused_dropout:
            attend = torch.nn.functional.scaled_dot_product_attention
            stack.enter_context(
                mock.patch.object(
                    torch.nn.functional, "scaled_dot_product_attention", _without_dropout(attend)
                )
            )
        yield


@contextmanager
def _unpacked_masks() -> Iterator[None]:
    """Transformers leaves causal masks to the kernel where positions show no packed samples.

    It cannot read fake positions, and would make a mask as large as the scores for every layer. A
    trial gives no positions, so nothing is packed.
    """
    from transformers import masking_utils  # heavy

    name = "find_packed_sequence_indices"
    if not hasattr(masking_utils, name):  # it came with a release, and may go with one
        yield
        return
    with mock.patch.object(masking_utils, name, return_value=None):
        yield


def _casts() -> Callable[..., nn.Module]:
    """`Module._apply`, which is behind `.to()`, `.half()` and the like.

    Torch's own swaps a fake weight for its cast one, and refuses since fake tensors are referred
    to weakly. Here a weight is replaced, once for all modules that share it.
    """
    replaced: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}

    def apply(module: Any, change: Callable[[Any], Any], recurse: bool = True) -> Any:
        for child in module.children() if recurse else ():
            child._apply(change)
        for name, weight in module._parameters.items():
            if weight is None:
                continue
            if id(weight) not in replaced:
                with torch.no_grad():
                    cast = change(weight)
                if cast is weight:
                    continue
                new = nn.Parameter(cast, requires_grad=weight.requires_grad)
                replaced[id(weight)] = (weight, new)  # keeps the old one: its id stays taken
            module._parameters[name] = replaced[id(weight)][1]
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else change(buffer)
        return module

    return apply


def _without_dropout(attend: Callable[..., Any]) -> Callable[..., Any]:
    def attend_to_all(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        *rest: Any,
        **named: Any,
    ) -> Any:
        return attend(query, key, value, attn_mask, 0.0, *rest, **named)

    return attend_to_all
