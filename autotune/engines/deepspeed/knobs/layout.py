"""Knobs of the layout: what is sharded, split and recomputed, and how many samples at once."""

from autotune.contract import KnobValue
from autotune.engines.deepspeed.knobs.situation import degree, has_pipeline
from autotune.engines.deepspeed.knobs.stages import stages
from autotune.space.knob import Context, Knob, Knobs


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


ENTRIES = (
    Knob(
        name="zero.stage",
        group="layout",
        kind="int",
        is_always_shown=True,
        default=0,
        choices=(0, 1, 2, 3),
        help="ZeRO stage: what is sharded over the data-parallel ranks (0 nothing, 1 optimizer "
        "states, 2 and gradients, 3 and parameters)",
        source="runtime/zero/config.py",
    ),
    Knob(
        name="tp",
        group="layout",
        kind="int",
        default=1,
        minimum=1,
        help="tensor parallel degree (DeepSpeed AutoTP; its split layers in a pipeline)",
        source="module_inject/auto_tp.py",
    ),
    Knob(
        name="pp",
        by_script=True,
        group="layout",
        kind="int",
        default=1,
        minimum=1,
        help="pipeline parallel degree: stages of about as many parameters each (DeepSpeed's "
        "PipelineModule); from 2 on our own transformer of the model's shapes is trained",
        source="runtime/pipe/module.py",
    ),
    Knob(
        name="sp",
        by_script=True,
        group="layout",
        kind="int",
        default=1,
        minimum=1,
        help="sequence parallel degree (Ulysses): ranks that share each sample, a piece of its "
        "sequence each, and in attention a part of the heads each",
        source="runtime/sequence_parallel/ulysses_sp.py",
    ),
    Knob(
        name="ep",
        group="layout",
        kind="int",
        default=1,
        minimum=1,
        scope="for Mixtral-like models built from a Hugging Face config",
        acts=_has_experts,
        help="expert parallel degree (DeepSpeed AutoEP): neighbouring ranks over which the "
        "experts of each layer are spread; 1: every rank has all of them",
        source="module_inject/auto_ep.py",
    ),
    Knob(
        name="micro_batch",
        group="layout",
        kind="int",
        is_always_shown=True,
        default=1,
        minimum=1,
        help="samples per rank and forward pass; gradient accumulation follows from the global "
        "batch",
        source="runtime/config.py: _set_batch_related_parameters",
    ),
    Knob(
        name="recompute",
        by_script=True,
        group="layout",
        kind="choice",
        default="none",
        choices=("none", "full"),
        pattern=r"every_([2-9]|[1-9]\d{1,3})",
        fold=_fold_recompute,
        help="activation recomputation: none, full, or every_K (layers 0, K, 2K, ...; in a "
        "pipeline all but the output head, K layers of a stage at once)",
        source="transformers: gradient_checkpointing_enable; runtime/pipe/module.py: forward",
    ),
)
