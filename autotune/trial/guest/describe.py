"""What a user's command trains, read off its live engine."""

import importlib.util
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from autotune.trial.guest.edits import MAX_TEXT
from autotune.trial.readback import numel, recomputed_layers
from autotune.trial.transformer_shape import HEADS, KV_HEADS, size_named

_FRAMEWORKS = (
    ("llamafactory", "llama-factory"),
    ("axolotl", "axolotl"),
    ("trl", "trl"),
    ("lightning", "lightning"),
    ("pytorch_lightning", "lightning"),
    ("swift.trainers", "ms-swift"),
)
"""Packages that train by Trainer, accelerate or their own loop -> what people call them."""


def describe(engine: Any, seen: Mapping[str, Any]) -> dict[str, Any]:
    """What the first rank knows at the end of its steps, for `description.json`."""
    module = engine.module
    counts = [(numel(parameter), parameter.requires_grad) for parameter in module.parameters()]
    return {
        **seen,
        "framework": next(
            (name for package, name in _FRAMEWORKS if package in sys.modules), seen["framework"]
        ),
        "trained_file": seen["config_file"] if len(seen["config_files"]) > 1 else "",
        "executable": sys.executable,
        "world": torch.distributed.get_world_size(),
        "dp": int(engine.dp_world_size) if hasattr(engine, "dp_world_size") else 1,
        "engine": type(engine).__name__,
        "has_flash_attention": importlib.util.find_spec("flash_attn") is not None,
        "optimizer": type(_innermost(engine.optimizer)).__name__,
        "model_class": type(_unwrapped(module)).__name__,
        "model_config": _config_of(module),
        "n_params": sum(n for n, is_trained in counts if is_trained),
        "n_params_frozen": sum(n for n, is_trained in counts if not is_trained),
        "largest_param": max((n for n, _ in counts), default=0),
        "sizes": _sizes(module),
        "recomputed_layers": recomputed_layers(module),
        "files": sorted(set(_script_files())),
        "is_compiled": bool(getattr(engine, "is_compiled", False)),
    }


def _script_files() -> Iterator[str]:
    """Files of code of the user's own that are loaded: what lies where the command runs."""
    here = os.getcwd() + os.sep
    script = os.path.dirname(os.path.abspath(sys.argv[0])) + os.sep
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        path = os.path.abspath(file)
        # Modules that torch makes up name files that are nowhere.
        is_of_script = path.startswith((here, script)) and "site-packages" not in path
        if is_of_script and os.path.isfile(path):
            yield path


def _innermost(optimizer: Any) -> Any:
    """The optimizer that updates, below DeepSpeed's own wrappers."""
    for _ in range(4):
        inner = getattr(optimizer, "optimizer", None)
        if inner is None:
            break
        optimizer = inner
    return optimizer


def _unwrapped(module: Any) -> Any:
    """The model below what PEFT puts around it, or a module that holds nothing else."""
    if hasattr(module, "get_base_model"):
        return module.get_base_model()
    inner = [] if hasattr(module, "config") else [*module.children()]
    inner = [child for child in inner if next(child.parameters(), None) is not None]
    if len(inner) == 1 and next(module.parameters(recurse=False), None) is None:
        found = _unwrapped(inner[0])
        return found if hasattr(found, "config") else module
    return module


def _config_of(module: Any) -> dict[str, Any]:
    """A Hugging Face model's config; empty for any other."""
    config: Any = getattr(_unwrapped(module), "config", None)
    if not hasattr(config, "to_dict"):
        return {}
    text = json.dumps(
        {**config.to_dict(), "attn_implementation": getattr(config, "_attn_implementation", None)},
        default=lambda value: str(value)[:MAX_TEXT],
        skipkeys=True,
    )
    # A figure that is not finite is text, as everywhere: no JSON of others reads `Infinity`.
    found: dict[str, Any] = json.loads(text, parse_constant=str)
    found.pop("_name_or_path", None)
    return found


def _sizes(module: torch.nn.Module) -> dict[str, int]:
    """What a model without a config shows of its sizes: the layers that repeat, and the widths."""
    lists = [
        m for m in module.modules() if isinstance(m, torch.nn.ModuleList | torch.nn.Sequential)
    ]
    layers = [len(stack) for stack in lists if len({type(layer) for layer in stack}) == 1]
    embeddings = [m for m in module.modules() if isinstance(m, torch.nn.Embedding)]
    linears = [m for m in module.modules() if isinstance(m, torch.nn.Linear)]
    widths = Counter(w for one in linears for w in (one.in_features, one.out_features))
    hidden = max(widths, key=lambda width: (widths[width], width), default=0)
    inner = [linear.in_features for linear in linears if linear.out_features == hidden]
    return {
        "n_layers": max(layers, default=0),
        "hidden": hidden,
        "ffn_hidden": max(inner, default=0),
        "n_heads": size_named(module, HEADS),
        "n_kv_heads": size_named(module, KV_HEADS),
        "vocab": max((embedding.num_embeddings for embedding in embeddings), default=0),
    }
