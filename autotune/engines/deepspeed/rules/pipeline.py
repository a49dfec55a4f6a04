"""Pipeline parallelism: what DeepSpeed's PipelineModule and our transformer's layers cannot do.

With pp=1 nothing here applies: the model is Hugging Face's, and AutoTP splits it.
"""

from typing import Any

from autotune.engines.deepspeed.rules.base import Case, Setup, Witness, ignored, raised
from autotune.job.model import ModelShape
from autotune.space.rule import Finding, rule


def _pp(ds_config: dict[str, Any], fix: dict[str, Any], pattern: str, **case: Any) -> Witness:
    return raised(pattern, ds_config, fix, pp=2, **case)


_SGD: dict[str, Any] = {
    "optimizer": {"type": "SGD", "params": {"lr": 0.5, "torch_adam": None}},
    "zero_allow_untested_optimizer": True,
}
_BF16 = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 0}}


@rule(
    "pipeline.stage",
    "runtime/pipe/engine.py: __init__",
    *(
        _pp(
            {"zero_optimization": {"stage": stage}},
            {"zero_optimization": {"stage": 1}},
            "AssertionError: ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism",
        )
        for stage in (2, 3)
    ),
)
def _stage(setup: Setup) -> Finding | None:
    if setup.pp == 1 or setup.stage < 2:
        return None
    return Finding(
        message=f"pp={setup.pp} at ZeRO stage {setup.stage}: a pipeline keeps the gradients of "
        "all its micro-batches until the step, so DeepSpeed takes stages 0 and 1",
        changes={"zero_optimization": {"stage": 1}},
        advice="or set pp to 1",
    )


@rule(
    "pipeline.model",
    "autotune/trial/transformer_shape.py",
    *(
        Witness(
            broken=Case(ds_config={"zero_optimization": {"stage": 1}}, pp=2, model=model),
            repaired=Case(ds_config={"zero_optimization": {"stage": 1}}, model=model),
            consequence="raised",
            raises=f"NoPipelineError: {pattern}",
        )
        for model, pattern in (
            ({"architecture": "ctrl"}, "model_type ctrl: the pipeline's transformer knows"),
            ({"architecture": "plain"}, "a factory's model is a module"),
            ({"lora_rank": 4}, "LoRA: the pipeline's transformer has no adapters"),
        )
    ),
)
def _model(setup: Setup) -> Finding | None:
    if setup.pp == 1 or not setup.pipeline_refusal:
        return None
    return Finding(message=f"pp={setup.pp}: {setup.pipeline_refusal}", advice="set pp to 1")


def n_layers(model: ModelShape) -> int:
    """Layers that the stages are made of (autotune/trial/scripts/transformer.py: layer_specs).

    The blocks, the embeddings and the output head; learned positions, and the last norm where the
    head is the embeddings' weight, are layers of their own.
    """
    return model.n_layers + 2 + (model.max_seq_len is not None) + model.tied_embeddings


@rule(
    "pipeline.layers",
    "runtime/utils.py: partition_uniform; autotune/trial/scripts/transformer.py asks "
    "before, since ranks without a layer fail alone and leave the others waiting",
    Witness(
        broken=Case(
            ds_config={"zero_optimization": {"stage": 1}},
            world=4,
            pp=4,
            model={"n_layers": 1},
        ),
        repaired=Case(
            ds_config={"zero_optimization": {"stage": 1}},
            world=4,
            pp=2,
            model={"n_layers": 1},
        ),
        consequence="raised",
        raises="ValueError: pp=4 stages, and 3 layers to cut into them",
    ),
)
def _layers(setup: Setup) -> Finding | None:
    if setup.pp == 1 or setup.model is None or setup.pp <= n_layers(setup.model):
        return None
    return Finding(
        message=f"pp={setup.pp}: the model's {setup.model.n_layers} blocks, embeddings and output "
        f"head are {n_layers(setup.model)} layers, so some stages would have none",
        advice=f"set pp to {n_layers(setup.model)} or less",
    )


@rule(
    "pipeline.heads",
    "autotune/trial/scripts/transformer.py: make_pipeline",
    Witness(
        broken=Case(
            ds_config={"zero_optimization": {"stage": 1}},
            world=4,
            tp=2,
            pp=2,
            model={"n_kv_heads": 1},
        ),
        repaired=Case(
            ds_config={"zero_optimization": {"stage": 1}},
            world=4,
            tp=2,
            pp=2,
        ),
        consequence="raised",
        raises="ValueError: tp=2 does not divide 4 heads and 1 key-value heads",
    ),
)
def _heads(setup: Setup) -> Finding | None:
    model = setup.model
    if setup.pp == 1 or model is None:
        return None
    sizes = {"heads": model.n_heads, "key-value heads": model.n_kv_heads}
    uneven = [f"{size} % {setup.tp} = {size % setup.tp} ({name})" for name, size in sizes.items()]
    if not any(size % setup.tp for size in sizes.values()):
        return None
    return Finding(
        message=f"tp={setup.tp} with pp={setup.pp}: the pipeline's transformer splits whole heads "
        f"evenly, and {' and '.join(uneven)}",
        advice="choose a tp that divides both",
    )


@rule(
    "pipeline.clipping_at_stage_0",
    "runtime/utils.py: clip_grad_norm_ counts a parameter where the rank is the first "
    "of its model-parallel group (runtime/pipe/topology.py: get_model_parallel_rank)",
    Witness(
        broken=Case(ds_config=_SGD | {"gradient_clipping": 0.1}, pp=2),
        repaired=Case(
            ds_config=_SGD | {"gradient_clipping": 0.1, "zero_optimization": {"stage": 1}},
            pp=2,
        ),
        consequence="differs",
        reads={"norm_is_whole": False},
    ),
)
def _clipping(setup: Setup) -> Finding | None:
    if setup.pp == 1 or setup.stage != 0 or setup.dtype != "fp32":
        return None
    if not setup.clipping:
        return None
    return Finding(
        message=f"pp={setup.pp} in fp32 at ZeRO stage 0 with gradient_clipping: "
        "DeepSpeed clips by the norm of the first stage's gradients and leaves out the others' "
        "(but for layers split by tp)",
        changes={"zero_optimization": {"stage": 1}},
        advice="or set gradient_clipping to 0",
    )


@rule(
    "pipeline.bf16_at_stage_0",
    "runtime/engine.py: _do_optimizer_sanity_check",
    Witness(
        broken=Case(ds_config=_BF16, pp=2, precision="bf16"),
        repaired=Case(
            ds_config=_BF16 | {"zero_optimization": {"stage": 1}},
            pp=2,
            precision="bf16",
        ),
        consequence="differs",
        reads={"wrapper": "BF16_Optimizer"},
    ),
)
def _bf16_at_stage_0(setup: Setup) -> Finding | None:
    if setup.pp == 1 or setup.stage != 0 or setup.dtype != "bf16":
        return None
    return Finding(
        message=f"pp={setup.pp} in bf16 at ZeRO stage 0: DeepSpeed takes its BF16_Optimizer, "
        "which shards the optimizer's states and so is stage 1",
        changes={"zero_optimization": {"stage": 1}},
    )


@rule(
    "pipeline.overlap_comm",
    "runtime/engine.py: _configure_zero_optimizer",
    ignored(
        {"zero_optimization": {"stage": 1, "overlap_comm": True}},
        {"zero_optimization": {"overlap_comm": None}},
        pp=2,
    ),
)
def _overlap(setup: Setup) -> Finding | None:
    if setup.pp == 1 or setup.zero.get("overlap_comm") is not True:
        return None
    return Finding(
        message=f"zero_optimization.overlap_comm=true with pp={setup.pp}: DeepSpeed switches it "
        "off, since a pipeline reduces its gradients after the last micro-batch",
        changes={"zero_optimization": {"overlap_comm": None}},
    )
