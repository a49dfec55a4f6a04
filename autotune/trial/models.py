"""The job's model as a trial builds it, by transformers or by the user's factory."""

import contextlib
import importlib
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
"""Precision of a job -> of its weights."""


def from_config(config: dict[str, Any], dtype: torch.dtype, attention: str) -> torch.nn.Module:
    """A Hugging Face model with random weights; no caches.

    Args:
        config: As in a config.json.
        dtype: Of the weights.
        attention: The implementation; `default`: transformers' own choice.
    """
    from transformers import AutoConfig, AutoModelForCausalLM  # heavy

    hf_config = AutoConfig.for_model(**config)
    hf_config.use_cache = False
    chosen = {} if attention == "default" else {"attn_implementation": attention}
    model: torch.nn.Module = AutoModelForCausalLM.from_config(hf_config, dtype=dtype, **chosen)
    return model


def from_factory(source: dict[str, Any]) -> torch.nn.Module:
    """What the user's factory returns, given `TrialSpec.model`."""
    sys.path[:0] = [path for path in source.get("path", []) if path not in sys.path]
    module_name, _, attribute = source["factory"].partition(":")
    model: torch.nn.Module = getattr(importlib.import_module(module_name), attribute)()
    return model


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Weights are made in this precision meanwhile."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def apply_recompute(model: torch.nn.Module, recompute: str) -> None:
    """Recompute no layer, all layers, or every K-th, by Hugging Face's own switch.

    Raises:
        ValueError: The model has no such switch.
    """
    if recompute == "none":
        return
    enable = getattr(model, "gradient_checkpointing_enable", None)
    if enable is None:
        raise ValueError(f"recompute={recompute}: {type(model).__name__} cannot recompute")
    enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if recompute == "full":
        return
    every = int(recompute.removeprefix("every_"))
    layers = [m for m in model.modules() if is_recomputable(m)]
    for index, layer in enumerate(layers):
        layer.gradient_checkpointing = index % every == 0


def is_recomputable(module: torch.nn.Module) -> bool:
    """Whether a module is one of Hugging Face's layers that can recompute themselves."""
    from transformers.modeling_layers import GradientCheckpointingLayer  # heavy

    return isinstance(module, GradientCheckpointingLayer)


def accepts_mask(model: torch.nn.Module) -> bool:
    """Whether the model's `forward` has an `attention_mask`; a factory's need not."""
    parameters = inspect.signature(model.forward).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return takes_any or "attention_mask" in parameters
