"""Trace a model in a process of its own: `python -m autotune.tracing.child ANSWER < request`.

It imports torch and the user's code, which the program that asks does not. The model is made of
fake tensors: they have shapes and no memory. They lie on a fake CPU, since a torch without CUDA
cannot pretend to have one; where the real device is another, `autotune.tracing.request` says what
that changes.
"""

import math
import time
import traceback
from collections.abc import Callable, Mapping
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
from autotune.tracing.moments import Traced, at_depth, depths, differs, same_parts
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

_EVERY = "every_"
_MOST_OFF = 1e-3
"""Share of the peak that a depth may be off the line through two others; beyond it the model's
layers are not alike, and all of them are traced."""

_NO_KERNEL = (UnsupportedOperatorException, NotImplementedError)


def main() -> None:
    """Answer with what was traced."""
    answer(answer_to)


def answer_to(request: Mapping[str, Any]) -> dict[str, Any]:
    """Traced memory, the depths, and how long it took.

    Raises:
        NotUsableError: The model cannot be built, or its step cannot be run.
    """
    start_s = time.monotonic()
    source = request["source"]
    config = source.get("config")
    n_layers, period, lists = (0, 1, []) if config is None else _layers(config)
    recompute = str(request["recompute"])
    if recompute.startswith(_EVERY):
        period = math.lcm(period, int(recompute.removeprefix(_EVERY)))

    def traced(depth: int) -> Traced:
        shallow = source
        if depth != n_layers:
            shallow = {**source, "config": _cut(source["config"], n_layers, depth, lists)}
        return _traced(request, shallow, depth)

    found, used = _extrapolated(traced, n_layers, period, request)
    return {**found.as_dict(), "depths": used, "took_s": time.monotonic() - start_s}


def _extrapolated(
    traced: Callable[[int], Traced], n_layers: int, period: int, request: Mapping[str, Any]
) -> tuple[Traced, list[int]]:
    """From small depths where these tell the whole; else, and else only, the whole model."""
    chosen = depths(n_layers, period) if request["may_extrapolate"] else None
    if chosen is None:
        return traced(n_layers), [n_layers]
    several = [traced(depth) for depth in chosen]
    extrapolated_params = at_depth(several[0], several[1], n_layers).n_params
    if (
        not all(step.n_layers for step in several)
        or not same_parts(several)
        or extrapolated_params != request["n_params"]
        or differs(several[2], at_depth(several[0], several[1], chosen[2])) > _MOST_OFF
    ):
        return traced(n_layers), [n_layers]
    return at_depth(several[0], several[1], n_layers), list(chosen)


def _layers(config: dict[str, Any]) -> tuple[int, int, list[str]]:
    """A config's layers: their number, their period, and the keys that list all of them."""
    from transformers import AutoConfig  # heavy

    hf_config = AutoConfig.for_model(**config)
    n_layers = getattr(hf_config, "num_hidden_layers", None)
    if not isinstance(n_layers, int):
        return 0, 1, []
    listed = {
        key: value
        for key, value in hf_config.to_dict().items()
        if isinstance(value, list) and len(value) == n_layers
    }
    return n_layers, math.lcm(*map(_period, listed.values())), list(listed)


def _period(values: list[Any]) -> int:
    """The least distance at which all values are alike; else their number."""
    n = len(values)
    return next((p for p in range(1, n) if values[p:] == values[: n - p]), n)


def _cut(config: dict[str, Any], n_layers: int, depth: int, lists: list[str]) -> dict[str, Any]:
    from transformers import AutoConfig  # heavy

    spelled = AutoConfig.for_model(config["model_type"]).attribute_map
    name = spelled.get("num_hidden_layers", "num_hidden_layers")
    fields = {key: value for key, value in config.items() if key != "num_hidden_layers"}
    cut = {key: fields[key][:depth] for key in lists if len(fields.get(key) or []) == n_layers}
    return {**fields, **cut, name: depth}


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
