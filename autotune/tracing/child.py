"""Trace a model in a process of its own: `python -m autotune.tracing.child ANSWER < request`.

It imports torch and the user's code, which the program that asks does not. The model is made of
fake tensors: they have shapes and no memory. They lie on a fake CPU, since a torch without CUDA
cannot pretend to have one; where the real device is another, `autotune.tracing.request` says what
that changes.
"""

import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from autotune.job.model_probe import NotUsableError, answer, one_line
from autotune.tracing.moments import Traced
from autotune.tracing.step import layers_of, trace_step
from autotune.trial.scripts.train import (
    DTYPES,
    add_adapters,
    apply_recompute,
    chunk_loss,
    chunk_mlps,
    default_dtype,
    from_config,
    from_factory,
)

_NO_KERNEL = (UnsupportedOperatorException, NotImplementedError)


def main() -> None:
    """Answer with what was traced."""
    answer(answer_to)


def answer_to(request: Mapping[str, Any]) -> dict[str, Any]:
    """Traced memory, and how long it took.

    Raises:
        NotUsableError: The model cannot be built, or its step cannot be run.
    """
    start_s = time.monotonic()
    source = request["source"]
    config = source.get("config")
    n_layers = 0
    if config is not None:
        from transformers import AutoConfig  # heavy

        named = getattr(AutoConfig.for_model(**config), "num_hidden_layers", None)
        n_layers = named if isinstance(named, int) else 0
    found = _traced(request, source, n_layers)
    return {**found.as_dict(), "took_s": time.monotonic() - start_s}


def _traced(request: Mapping[str, Any], source: dict[str, Any], n_layers: int) -> Traced:
    with FakeTensorMode(allow_non_fake_inputs=True), as_in_a_trial(request["has_fused_dropout"]):
        try:
            model = _built(request, source)
        except Exception as error:
            raise _explained("building it", error) from error
        if layers_of(model, n_layers) is None:
            n_layers = 0
        size = (request["micro_batch"], request["seq_len"])
        tokens = torch.randint(0, source["vocab"], size)
        try:
            return trace_step(
                model,
                {"input_ids": tokens, "labels": tokens},
                n_layers=n_layers,
                gradients=request["gradients"],
                granule_bytes=request["granule_bytes"],
            )
        except Exception as error:
            raise _explained("its step", error) from error


def _built(request: Mapping[str, Any], source: dict[str, Any]) -> torch.nn.Module:
    """As a trial builds it (`autotune.trial.scripts.train`)."""
    dtype = DTYPES[request["precision"]]
    with default_dtype(dtype):
        if "factory" in source:
            model = from_factory(source)
        else:
            model = from_config(source["config"], dtype, request["attention"])
    if "lora" in source:
        add_adapters(model, source["lora"])
    apply_recompute(model, request["recompute"])
    chunk_loss(model, request["loss_chunk_tokens"])
    tokens = request["micro_batch"] * request["seq_len"]
    chunk_mlps(model, request.get("mlp_chunk_tokens", 0), most_tokens=tokens)
    return model.train()


def _explained(what: str, error: Exception) -> NotUsableError:
    where = _place(error)
    raised = one_line(error)
    text = f"{what} cannot be traced: {raised}{where}"
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        text = (
            f"{what} cannot be traced: it reads values ({error.func}){where}, and fake tensors "
            "have none"
        )
        hint = (
            "leave the trace out; or write that line without .item(), .tolist(), .nonzero() or an "
            "if on a tensor"
        )
    elif isinstance(error, _NO_KERNEL) or "fake impl" in raised:
        hint = (
            "give the kernel a fake one (torch.library.register_fake); or choose another "
            "implementation, such as --set attention=sdpa"
        )
    elif isinstance(error, ImportError):
        hint = "install it; or choose another implementation, such as --set attention=sdpa"
    else:
        hint = "leave the trace out; a trial shows whether the model runs outside of it"
    return NotUsableError(text, hint)


def _place(error: Exception) -> str:
    """The innermost line that is neither torch's nor ours; empty where there is none."""
    others = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<")
    frames = traceback.extract_tb(error.__traceback__)
    here = [frame for frame in frames if not frame.filename.startswith(others)]
    return f" ({here[-1].filename}:{here[-1].lineno})" if here else ""


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


if __name__ == "__main__":
    main()
