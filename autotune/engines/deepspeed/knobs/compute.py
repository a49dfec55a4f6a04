"""Knobs of the computation itself: attention, loss, compilation, the optimizer's kernel."""

from collections.abc import Mapping
from typing import Any

from autotune.base.nested import look_up
from autotune.contract import KnobValue
from autotune.engines.deepspeed.knobs.base import DeepSpeedKnob
from autotune.engines.deepspeed.knobs.situation import (
    ADAM,
    has_adam,
    has_pipeline,
    optimizer_implementation,
)
from autotune.space.knob import Context, Knobs


def _is_hugging_face(values: Knobs, context: Context) -> bool:
    return context.is_hugging_face and not has_pipeline(values)


def _fold_chunk(value: KnobValue, values: Knobs, context: Context) -> KnobValue:
    # One chunk that holds all tokens is no chunking.
    tokens = int(values.get("micro_batch", 1)) * context.seq_len
    return 0 if tokens and int(value) >= tokens else value


def _fold_compile(value: KnobValue, values: Knobs, _: Context) -> KnobValue:
    # engine.py: get_deepcompile_backend falls back to the torch compiler at stage 0.
    return "torch" if value == "deepcompile" and values.get("zero.stage") == 0 else value


def _has_a_choice(_: Knobs, context: Context) -> bool:
    return has_adam(context)


def _read_compile(config: Mapping[str, Any]) -> Any:
    # Without it a script may call engine.compile() or not: the file does not say.
    return "deepcompile" if look_up(config, "compile.deepcompile") is True else None


def _read_implementation(config: Mapping[str, Any]) -> Any:
    return optimizer_implementation(look_up(config, "optimizer.params"))


ENTRIES = (
    DeepSpeedKnob(
        name="attention",
        by_script=True,
        default="default",
        choices=("default", "eager", "sdpa", "flash_attention_2"),
        scope="for Hugging Face models without a pipeline",
        acts=_is_hugging_face,
        needs_cuda=("flash_attention_2",),
        help="attention implementation; default: what transformers takes by itself, which is sdpa "
        "where the model has it",
        source="transformers: _attn_implementation",
    ),
    DeepSpeedKnob(
        name="loss_chunk_tokens",
        by_script=True,
        asks="a training script with the loss in chunks",
        default=0,
        scope="without a pipeline, for Hugging Face models whose loss is known to be plain cross "
        "entropy",
        acts=_is_hugging_face,
        fold=_fold_chunk,
        help="compute logits and cross entropy over so many tokens at a time and again in "
        "backward, so that the logits of all tokens never exist at once; 0: all at once",
        source="autotune/trial/scripts/train.py",
    ),
    DeepSpeedKnob(
        name="compile",
        key="compile.deepcompile",
        reader=_read_compile,
        by_script=True,
        default="none",
        choices=("none", "torch", "deepcompile"),
        asks="torch.compile to hold",
        fold=_fold_compile,
        needs_cuda=("deepcompile",),
        help="compile the model with torch.compile, or with DeepSpeed's passes over its graph",
        source="runtime/engine.py: compile, get_deepcompile_backend",
    ),
    DeepSpeedKnob(
        name="optimizer.implementation",
        key="optimizer.params.torch_adam",
        more_keys=("optimizer.params.fused",),
        reader=_read_implementation,
        default="deepspeed",
        choices=("deepspeed", "torch", "torch_fused"),
        scope=f"for {' and '.join(ADAM)}",
        acts=_has_a_choice,
        help="whose Adam: DeepSpeed's (FusedAdam; DeepSpeedCPUAdam where offloaded), torch's, or "
        "torch's fused one",
        source="runtime/engine.py: get_optimizer_configuration",
    ),
)
