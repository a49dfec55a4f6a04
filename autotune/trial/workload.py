"""The built-in training script: the job's model with random weights on random tokens.

It trains as a user's script would and knows nothing of measuring; the wrapper ends it.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

from autotune.contract import TrialSpec
from autotune.trial.adapters import add_adapters
from autotune.trial.experts import initialize_experts, prepare_autoep
from autotune.trial.lengths import is_drawn
from autotune.trial.models import (
    DTYPES,
    accepts_mask,
    apply_recompute,
    default_dtype,
    from_config,
    from_factory,
)
from autotune.trial.samples import Inputs, drawn
from autotune.trial.sequence import gradient_scale, own_piece, split_attention, whole_loss


def train(spec: TrialSpec, ds_config: dict[str, Any]) -> None:
    """Train for ever: build the model, initialize the engine, step."""
    engine = make_engine(spec, ds_config)
    if spec.layout.pp > 1:
        micro_batches = ((tokens, tokens) for tokens in batches(spec))
        while True:
            engine.train_batch(data_iter=micro_batches)
    scale = gradient_scale(ds_config, spec.layout.sp)
    for batch in inputs(spec, engine):
        micro_step(engine, batch, scale)


def micro_step(engine: Any, batch: Inputs, scale: int) -> torch.Tensor:
    """One forward and backward pass, and every so many the optimizer's step; returns the loss.

    Args:
        engine: DeepSpeed's.
        batch: What this rank is fed.
        scale: See `autotune.trial.sequence.gradient_scale`.
    """
    output = engine(**batch)
    loss: torch.Tensor = output if isinstance(output, torch.Tensor) else output.loss
    if engine.sequence_parallel_size > 1:
        loss = whole_loss(loss, group=engine.seq_parallel_group, scale=scale)
    engine.backward(loss)
    engine.step()
    return loss


def make_engine(spec: TrialSpec, ds_config: dict[str, Any]) -> Any:
    """The model as the candidate wants it, under DeepSpeed."""
    torch.manual_seed(spec.workload.seed)
    model = build_pipeline(spec) if spec.layout.pp > 1 else _build_adapted(spec, ds_config)
    mpu = split_attention(model, sp=spec.layout.sp, micro_batch=spec.layout.micro_batch)
    model.train()
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=[p for p in model.parameters() if p.requires_grad],
        config=ds_config,
        mpu=mpu,
    )
    if spec.workload.settings["compile"] != "none":
        engine.compile()
    return engine


def build_pipeline(spec: TrialSpec) -> torch.nn.Module:
    """This rank's stage of the job's model, as our own transformer computes it.

    Raises:
        NoPipelineError: It cannot compute what the model's config describes.
    """
    from autotune.trial.transformer import Shape, make_pipeline  # heavy, and not for every trial
    from autotune.trial.transformer_shape import shape_of

    shape = Shape(**shape_of(spec.workload.model, spec.workload.seq_len))
    dtype = DTYPES[spec.workload.precision]
    return make_pipeline(
        shape, pp=spec.layout.pp, tp=spec.layout.tp, seed=spec.workload.seed, dtype=dtype
    )


def _build_adapted(spec: TrialSpec, ds_config: dict[str, Any]) -> torch.nn.Module:
    """The whole model, with what the trial does to it besides DeepSpeed."""
    model = build_model(spec, ds_config)
    if "lora" in spec.workload.model:
        add_adapters(model, spec.workload.model["lora"])
    apply_recompute(model, str(spec.workload.settings["recompute"]))
    if spec.workload.settings["loss_chunk_tokens"]:
        from autotune.trial.loss import chunk_loss  # heavy: it needs transformers

        chunk_loss(model, int(spec.workload.settings["loss_chunk_tokens"]))
    prepare_autoep(model, ds_config)
    return model


def build_model(spec: TrialSpec, ds_config: dict[str, Any]) -> torch.nn.Module:
    """Build the model with as few whole copies as the configuration allows.

    Stage 3 shards every layer as it is made (`zero.Init`). Otherwise the model is made in the
    training precision on the rank's own device, so that the host never holds a copy for a GPU.
    AutoTP splits a whole model: there each rank makes one, on the host.
    """
    with contextlib.ExitStack() as stack:
        if spec.layout.tp == 1 and ds_config.get("zero_optimization", {}).get("stage") == 3:
            stack.enter_context(deepspeed.zero.Init(config_dict_or_path=ds_config))
        elif spec.layout.tp == 1:
            stack.enter_context(torch.device(get_accelerator().current_device_name()))
            stack.enter_context(default_dtype(DTYPES[spec.workload.precision]))
        if "factory" in spec.workload.model:
            return from_factory(spec.workload.model)
        model = from_config(
            spec.workload.model["config"],
            DTYPES[spec.workload.precision],
            str(spec.workload.settings["attention"]),
        )
    if spec.layout.tp == 1 and ds_config.get("zero_optimization", {}).get("stage") == 3:
        initialize_experts(model)
    return model


def inputs(spec: TrialSpec, engine: Any) -> Iterator[Inputs]:
    """Micro-batches of the job's lengths, on the rank's device, for ever: this rank's pieces."""
    for samples in _samples(spec, engine):
        if spec.layout.sp == 1:
            yield samples
        else:
            rank = torch.distributed.get_rank() % spec.layout.sp
            yield own_piece(samples, sp=spec.layout.sp, rank=rank)


def _samples(spec: TrialSpec, engine: Any) -> Iterator[Inputs]:
    if not is_drawn(spec.workload.lengths):
        # A packed row is full: documents follow one another, and every token attends to all
        # before it, over their boundaries. Nothing but the meaning of the tokens differs.
        yield from ({"input_ids": tokens, "labels": tokens} for tokens in batches(spec))
        return

    def is_warming_up() -> bool:
        applied: int = engine.global_steps - engine.skipped_steps
        return applied < spec.measure.warmup_steps

    rank = torch.distributed.get_rank() // (spec.layout.tp * spec.layout.sp)
    device = get_accelerator().current_device_name()
    takes_mask = accepts_mask(engine.module)
    for batch in drawn(spec, rank=rank, is_warming_up=is_warming_up, takes_mask=takes_mask):
        yield {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def batches(spec: TrialSpec) -> Iterator[torch.Tensor]:
    """Random tokens, (micro_batch, seq_len), for ever; the same for ranks that share samples.

    And in a pipeline, whose first stage takes the tokens and whose last one the labels.
    """
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    replica = rank // (spec.layout.tp * spec.layout.sp) % spec.layout.dp
    generator = torch.Generator().manual_seed(spec.workload.seed * 100_003 + replica)
    device = get_accelerator().current_device_name()
    shape = (spec.layout.micro_batch, spec.workload.seq_len)
    for _ in range(steps_trained(spec) * spec.layout.grad_accum):
        torch.randint(0, int(spec.workload.model["vocab"]), shape, generator=generator)
    while True:
        tokens = torch.randint(0, int(spec.workload.model["vocab"]), shape, generator=generator)
        yield tokens.to(device, non_blocking=True)


def steps_trained(spec: TrialSpec) -> int:
    """Optimizer steps whose data a resumed training has seen already."""
    return (None if spec.measure.checkpoint is None else spec.measure.checkpoint.resumes_at) or 0
