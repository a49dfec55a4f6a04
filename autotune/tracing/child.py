"""Trace a model in a process of its own: `python -m autotune.tracing.child ANSWER < request`.

It imports torch and the user's code, which the program that asks does not. The model is made of
fake tensors: they have shapes and no memory. They lie on a fake CPU, since a torch without CUDA
cannot pretend to have one; where the real device is another, `autotune.tracing.request` says what
that changes.
"""

import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from autotune.job.model_probe import NotUsableError, answer, one_line
from autotune.tracing.fakes import as_in_a_trial
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
    """Remedy for the user."""
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


if __name__ == "__main__":
    main()
