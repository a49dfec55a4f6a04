"""Pipeline parallelism: what DeepSpeed's PipelineModule and our transformer's layers cannot do.

With pp=1 nothing here applies: the model is Hugging Face's, and AutoTP splits it.
"""

from autotune.engines.deepspeed.rules.base import Setup, zero
from autotune.job.model_shape import ModelShape
from autotune.space.rule import Finding, rule


@rule("runtime/pipe/engine.py: __init__")
def _stage(setup: Setup) -> Finding | None:
    if setup.pp == 1 or setup.stage < 2:
        return None
    return Finding(
        message=f"pp={setup.pp} at ZeRO stage {setup.stage}: a pipeline keeps the gradients of "
        "all its micro-batches until the step, so DeepSpeed takes stages 0 and 1",
        changes=zero(1),
        advice="or set pp to 1",
    )


@rule("autotune/trial/transformer_shape.py")
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
    "runtime/utils.py: partition_uniform; autotune/trial/scripts/transformer.py asks "
    "before, since ranks without a layer fail alone and leave the others waiting"
)
def _layers(setup: Setup) -> Finding | None:
    if setup.pp == 1 or setup.model is None or setup.pp <= n_layers(setup.model):
        return None
    return Finding(
        message=f"pp={setup.pp}: the model's {setup.model.n_layers} blocks, embeddings and output "
        f"head are {n_layers(setup.model)} layers, so some stages would have none",
        advice=f"set pp to {n_layers(setup.model)} or less",
    )


@rule("autotune/trial/scripts/transformer.py: make_pipeline")
def _heads(setup: Setup) -> Finding | None:
    model = setup.model
    if setup.pp == 1 or model is None:
        return None
    sizes = {"heads": model.n_heads, "key-value heads": model.n_kv_heads}
    if not any(size % setup.tp for size in sizes.values()):
        return None
    uneven = [f"{size} % {setup.tp} = {size % setup.tp} ({name})" for name, size in sizes.items()]
    return Finding(
        message=f"tp={setup.tp} with pp={setup.pp}: the pipeline's transformer splits whole heads "
        f"evenly, and {' and '.join(uneven)}",
        advice="choose a tp that divides both",
    )


@rule(
    "runtime/utils.py: clip_grad_norm_ counts a parameter where the rank is the first "
    "of its model-parallel group (runtime/pipe/topology.py: get_model_parallel_rank)",
    consequence="differs",
)
def _clipping_at_stage_0(setup: Setup) -> Finding | None:
    if setup.pp == 1 or setup.stage != 0 or setup.dtype != "fp32" or not setup.clipping:
        return None
    return Finding(
        message=f"pp={setup.pp} in fp32 at ZeRO stage 0 with gradient_clipping: "
        "DeepSpeed clips by the norm of the first stage's gradients and leaves out the others' "
        "(but for layers split by tp)",
        changes=zero(1),
        advice="or set gradient_clipping to 0",
    )


@rule("runtime/engine.py: _do_optimizer_sanity_check", consequence="differs")
def _bf16_at_stage_0(setup: Setup) -> Finding | None:
    if setup.pp == 1 or setup.stage != 0 or setup.dtype != "bf16":
        return None
    return Finding(
        message=f"pp={setup.pp} in bf16 at ZeRO stage 0: DeepSpeed takes its BF16_Optimizer, "
        "which shards the optimizer's states and so is stage 1",
        changes=zero(1),
    )


@rule("runtime/engine.py: _configure_zero_optimizer", consequence="ignored")
def _overlap_comm(setup: Setup) -> Finding | None:
    if setup.pp == 1 or setup.zero.get("overlap_comm") is not True:
        return None
    return Finding(
        message=f"zero_optimization.overlap_comm=true with pp={setup.pp}: DeepSpeed switches it "
        "off, since a pipeline reduces its gradients after the last micro-batch",
        changes=zero(overlap_comm=None),
    )
