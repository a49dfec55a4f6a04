"""Knobs of the computation itself: attention, loss, compilation, the optimizer's kernel."""

from collections.abc import Mapping
from typing import Any

from autotune.base.nested import look_up
from autotune.contract import KnobValue
from autotune.engines.deepspeed.knobs.base import DeepSpeedKnob
from autotune.engines.deepspeed.knobs.situation import (
    ADAM,
    degree,
    has_adam,
    has_pipeline,
    optimizer_implementation,
)
from autotune.space.knob import Context, Knobs


def _is_hugging_face(values: Knobs, context: Context) -> bool:
    return context.is_hugging_face and not has_pipeline(values)


def _fold_chunk(value: KnobValue, values: Knobs, context: Context) -> KnobValue:
    # One chunk that holds all tokens of a rank is no chunking.
    tokens = int(values.get("micro_batch", 1)) * context.seq_len // degree(values, "sp")
    return 0 if tokens and int(value) >= tokens else value


def _has_plain_mlps(values: Knobs, context: Context) -> bool:
    return _is_hugging_face(values, context) and context.model.n_experts == 0


def _keeps_inputs(values: Knobs, context: Context) -> bool:
    is_recomputed = values.get("recompute", "none") != "none"
    is_compiled = values.get("compile", "none") != "none"  # that takes the layers' calls apart
    return _is_hugging_face(values, context) and is_recomputed and not is_compiled


def _read_passes(config: Mapping[str, Any]) -> Any:
    section = look_up(config, "compile")
    if not isinstance(section, Mapping) or section.get("deepcompile") is not True:
        return None
    return next((name for name, key in PASSES.items() if section.get(key) is True), "none")


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


PASSES = {
    "activations": "offload_activation",
    "optimizer": "offload_opt_states",
    "params": "offload_parameters",
}
"""Value of compile.offload -> the key that switches its pass on."""
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
        name="mlp_chunk_tokens",
        by_script=True,
        default=0,
        scope="without a pipeline, for dense Hugging Face models",
        acts=_has_plain_mlps,
        fold=_fold_chunk,
        help="compute each MLP over so many tokens at a time and again in backward, as "
        "DeepSpeed's TiledMLP does, so that what lies between its products never exists for all "
        "tokens; 0: all at once",
        source="autotune/trial/scripts/train.py; two CPU ranks train alike",
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
        name="compile.offload",
        key="compile.offload_activation",
        more_keys=("compile.offload_opt_states", "compile.offload_parameters"),
        reader=_read_passes,
        default="none",
        choices=("none", *PASSES),
        scope="with compile=deepcompile at stage 3",
        when={"compile": ("deepcompile",), "zero.stage": (3,)},
        needs_cuda=tuple(PASSES),
        help="what DeepCompile moves to the host while the graph runs, as far as memory asks for "
        "it; each pass stands in the place of those that prefetch parameters and keep some of "
        "them gathered",
        source="compile/init_z3.py: init_z3; no rank has run it, it needs a GPU",
    ),
    DeepSpeedKnob(
        name="offload.activations",
        by_script=True,
        default="none",
        choices=("none", "cpu"),
        scope="for Hugging Face models that are not compiled, without a pipeline, where layers "
        "are recomputed",
        acts=_keeps_inputs,
        needs_cuda=("cpu",),
        help="where the inputs of recomputed layers wait for the backward pass",
        source="runtime/activation_checkpointing/offload_activations.py; nothing moves on a CPU "
        "rank, it needs a GPU",
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
