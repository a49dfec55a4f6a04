"""Knobs of the layout: what is sharded, split and recomputed, and how many samples at once."""

from collections.abc import Mapping
from typing import Any

from autotune.base.nested import look_up
from autotune.contract import KnobValue
from autotune.engines.deepspeed.knobs.base import DeepSpeedKnob
from autotune.engines.deepspeed.knobs.situation import degree, has_pipeline
from autotune.engines.deepspeed.knobs.stages import stages
from autotune.space.knob import Context, Knobs


def _fold_recompute(value: KnobValue, values: Knobs, context: Context) -> KnobValue:
    # Layers 0, K, 2K, ...: from K = n_layers on it is the first layer alone. In a pipeline K
    # layers of a stage together: from the longest stage's on, all of every stage.
    if not str(value).startswith("every_"):
        return value
    most = context.model.n_layers
    if has_pipeline(values):
        most = max(n_layers for _, n_layers in stages(context.model, degree(values, "pp")))
    every = min(int(str(value).removeprefix("every_")), most)
    return "full" if every == 1 else f"every_{every}"


def _has_experts(_: Knobs, context: Context) -> bool:
    return context.model.n_experts > 0 and context.is_hugging_face


def _spreads_experts(values: Knobs, _: Context) -> bool:
    return degree(values, "ep") > 1


def _splits_layers(values: Knobs, _: Context) -> bool:
    return degree(values, "tp") > 1 and not has_pipeline(values)


def _read_head(config: Mapping[str, Any]) -> Any:
    said = look_up(config, "tensor_parallel.vocab_parallel_lm_head")
    return {True: "split", False: "gathered"}.get(said) if isinstance(said, bool) else None


def _read_sequence(config: Mapping[str, Any]) -> Any:
    # With the pass it is the compiler's degree: the script must not split once more.
    passes = look_up(config, "compile.passes")
    has_auto_sp = isinstance(passes, list) and "autosp" in passes
    return None if has_auto_sp else look_up(config, "sequence_parallel_size")


def _read_experts(config: Mapping[str, Any]) -> Any:
    section = look_up(config, "expert_parallel")
    is_on = isinstance(section, Mapping) and section.get("enabled")
    return section.get("autoep_size") if is_on else None


ENTRIES = (
    DeepSpeedKnob(
        name="zero.stage",
        key="zero_optimization.stage",
        is_always_shown=True,
        default=0,
        choices=(0, 1, 2, 3),
        help="ZeRO stage: what is sharded over the data-parallel ranks (0 nothing, 1 optimizer "
        "states, 2 and gradients, 3 and parameters)",
        source="runtime/zero/config.py",
    ),
    DeepSpeedKnob(
        name="tp",
        key="tensor_parallel.autotp_size",
        by_template=True,
        default=1,
        minimum=1,
        help="tensor parallel degree (DeepSpeed AutoTP; its split layers in a pipeline)",
        source="module_inject/auto_tp.py",
    ),
    DeepSpeedKnob(
        name="pp",
        by_script=True,
        asks="the model as DeepSpeed's PipelineModule",
        default=1,
        minimum=1,
        help="pipeline parallel degree: stages of about as many parameters each (DeepSpeed's "
        "PipelineModule); from 2 on our own transformer of the model's shapes is trained",
        source="runtime/pipe/module.py",
    ),
    DeepSpeedKnob(
        name="tp.overlap_comm",
        key="tensor_parallel.tp_overlap_comm",
        by_template=True,
        default=False,
        scope="where tp is above 1, without a pipeline",
        acts=_splits_layers,
        help="all-reduce the gradients of a split layer's input while those of its weights are "
        "computed",
        source="module_inject/layers.py: AsyncColumnParallel; two CPU ranks train alike",
    ),
    DeepSpeedKnob(
        name="tp.head",
        key="tensor_parallel.vocab_parallel_lm_head",
        reader=_read_head,
        default="default",
        choices=("default", "gathered", "split"),
        scope="where tp is above 1, without a pipeline",
        acts=_splits_layers,
        help="gathered: every rank has the logits of the whole vocabulary; split: each computes "
        "its part, and the loss is one over all parts; default: split where the head is tied to "
        "the embedding and transformers' plan splits that",
        source="runtime/engine.py: _apply_autotp_partitioning; two CPU ranks train alike",
    ),
    DeepSpeedKnob(
        name="tp.loss",
        key="tensor_parallel.vocab_parallel_ce_backend",
        by_template=True,
        default="torch",
        choices=("torch", "liger"),
        scope="with tp.head=split",
        when={"tp.head": ("split",)},
        needs_cuda=("liger",),
        help="whose cross entropy of split logits: torch's, or the package liger_kernel's",
        source="sequence/cross_entropy.py: configure_vocab_parallel_loss; no rank has run "
        "liger's, it needs a GPU",
    ),
    DeepSpeedKnob(
        name="sp",
        asks="a training script with Ulysses attention",
        key="sequence_parallel_size",
        more_keys=("data_parallel_size",),
        reader=_read_sequence,
        by_script=True,
        default=1,
        minimum=1,
        help="sequence parallel degree (Ulysses): ranks that share each sample, a piece of its "
        "sequence each, and in attention a part of the heads each",
        source="runtime/sequence_parallel/ulysses_sp.py",
    ),
    DeepSpeedKnob(
        name="ep",
        key="expert_parallel.autoep_size",
        more_keys=("expert_parallel.enabled",),
        reader=_read_experts,
        default=1,
        minimum=1,
        scope="for mixtures of experts built from a Hugging Face config",
        acts=_has_experts,
        help="expert parallel degree (DeepSpeed AutoEP): neighbouring ranks over which the "
        "experts of each layer are spread; 1: every rank has all of them",
        source="module_inject/auto_ep.py",
    ),
    DeepSpeedKnob(
        name="ep.dispatch",
        key="expert_parallel.comm_backend",
        more_keys=("expert_parallel.comm_max_tokens_per_rank",),
        by_template=True,
        default="comm",
        choices=("comm", "deepep"),
        scope="where ep is above 1",
        acts=_spreads_experts,
        needs_cuda=("deepep",),
        help="the way of tokens to their experts: comm, an all-to-all of a row for each expert of "
        "a token; deepep, the kernels of DeepEP, which send a token once to each rank, in bf16",
        source="module_inject/auto_ep_comm.py",
    ),
    DeepSpeedKnob(
        name="ep.gate_up",
        key="expert_parallel.gate_up_impl",
        by_template=True,
        default="separate",
        choices=("separate", "fused"),
        scope="where ep is above 1",
        acts=_spreads_experts,
        help="whether an expert's gate and up projections are two grouped products, or one over "
        "both weights, which are put together at each call",
        source="moe/ep_experts.py: GroupedExperts",
    ),
    DeepSpeedKnob(
        name="micro_batch",
        key="train_micro_batch_size_per_gpu",
        is_always_shown=True,
        default=1,
        minimum=1,
        help="samples per rank and forward pass; gradient accumulation follows from the global "
        "batch",
        source="runtime/config.py: _set_batch_related_parameters",
    ),
    DeepSpeedKnob(
        name="recompute",
        by_script=True,
        default="none",
        choices=("none", "full"),
        pattern=r"every_([2-9]|[1-9]\d{1,3})",
        pattern_words="every_K",
        fold=_fold_recompute,
        help="activation recomputation: none, full, or every_K (layers 0, K, 2K, ...; in a "
        "pipeline all but the output head, K layers of a stage at once)",
        source="transformers: gradient_checkpointing_enable; runtime/pipe/module.py: forward",
    ),
)
