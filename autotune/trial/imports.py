"""Import what DeepSpeed and transformers import on the way, before the memory base is taken.

Imported modules are no part of a configuration's memory, so they belong to the base. And modules
that nothing uses are not waited for: DeepSpeed's ZeRO loads its Muon functions, which compile on
import and drag in torch's whole inductor (1.5 s and 40 MiB per rank), for any optimizer.
"""

import importlib
from typing import Any

_ENGINE = (
    "deepspeed.runtime.zero.stage_1_and_2",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.bf16_optimizer",
    "deepspeed.module_inject.auto_tp",
)
_MUON = "deepspeed.runtime.zero.muon.original_muon"
_HUGGING_FACE = ("transformers.modeling_utils", "transformers.models.auto.modeling_auto")


def preload(ds_config: dict[str, Any], model: dict[str, Any]) -> None:
    """Import the modules of the engine, whose optimizer decides about Muon, and of the model."""
    optimizer = str(ds_config.get("optimizer", {}).get("type", ""))
    if "muon" not in optimizer.lower():
        _import_uncompiled(_MUON)
    # The engine brings it in, or the model does; under zero.Init, which replaces
    # Tensor.__new__, that would be too late (seen with Mixtral).
    _import_if_there("torch._dynamo")
    for module in _ENGINE:
        _import_if_there(module)
    if "lora" in model:
        _import_if_there("peft")
    if "config" in model:
        for module in _HUGGING_FACE:
            _import_if_there(module)
        _import_if_there(f"transformers.models.{model['config'].get('model_type')}")


def _import_uncompiled(module: str) -> None:
    from deepspeed.runtime import compiler

    if not hasattr(compiler, "compile"):  # before 0.18, when nothing compiled on import
        return
    compile_decorator = compiler.compile
    compiler.compile = lambda *_args, **_kwargs: lambda function: function
    try:
        _import_if_there(module)
    finally:
        compiler.compile = compile_decorator


def _import_if_there(module: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError:
        return  # another version's layout: it is then loaded when it is needed
