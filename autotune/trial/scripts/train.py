"""Train a model with random weights on random tokens under DeepSpeed, as one of its ranks.

`ds_config.json` is what DeepSpeed reads. `settings.json` is what it has no key for: the model,
its adapters, the lengths of the samples, recomputation, the layout of the ranks, the seed.
Replace `batches` to train on your own data. The script needs torch, deepspeed and transformers,
`lengths.py` beside it, and `transformer.py` for a pipeline.
"""

import argparse
import contextlib
import copy
import importlib
import inspect
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

HERE = Path(__file__).resolve().parent
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
"""Precision of a run -> type of its weights."""
IGNORED = -100
"""Label of a token that the loss does not count (transformers' own)."""

Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is trained, and how the ranks share it."""

    source: Mapping[str, Any]
    """`config` (Hugging Face's) or `factory` and `path`; `vocab`; `lora` for adapters."""
    seq_len: int
    """Tokens per sample."""
    precision: str
    lengths: Mapping[str, Any]
    """Empty: every sample has `seq_len` tokens; else see `lengths.py`."""
    seed: int
    world: int
    tp: int
    pp: int
    dp: int
    sp: int
    micro_batch: int
    grad_accum: int
    global_batch: int
    accelerator: str
    """`cpu` or `cuda`."""
    recompute: str
    """`none`, `full`, or `every_K`: recompute every K-th layer."""
    attention: str
    """Attention implementation of a Hugging Face model; `default`: transformers' own choice."""
    loss_chunk_tokens: int
    """Compute logits and loss over so many tokens at a time; 0: over all at once."""
    compile: str
    mlp_chunk_tokens: int = 0
    """Compute each MLP over so many tokens at a time; 0: over all at once."""
    offload_activations: str = "none"
    """`cpu`: the inputs of recomputed layers wait on the host for the backward pass."""
    transformer: Mapping[str, Any] = field(default_factory=dict)
    """Sizes of the model where it is a pipeline; see `transformer.py`."""

    @classmethod
    def of(
        cls,
        data: Mapping[str, Any],
        config: Mapping[str, Any],
        *,
        micro_batch: int,
        grad_accum: int,
    ) -> "Settings":
        """Read what `settings.json` says; `config` is Hugging Face's, empty for a factory's model.

        Keys that the script does not use are left alone.
        """
        elsewhere = {"source", "micro_batch", "grad_accum"}
        settings = {key.replace(".", "_"): value for key, value in data.items()}
        named = {
            f.name: settings[f.name] for f in fields(cls) if f.name in settings.keys() - elsewhere
        }
        source = {key: data[key] for key in ("factory", "path", "vocab", "lora") if key in data}
        return cls(
            **named,
            source={**source, "config": config} if config else source,
            micro_batch=micro_batch,
            grad_accum=grad_accum,
        )


def make_engine(settings: Settings, ds_config: dict[str, Any]) -> Any:
    """The model as the configuration wants it, under DeepSpeed."""
    import deepspeed

    torch.manual_seed(settings.seed)
    if settings.pp > 1:
        model, mpu = make_stage(settings), None
    else:
        model = make_model(settings, ds_config)
        if "lora" in settings.source:
            add_adapters(model, settings.source["lora"])
        compress(model, ds_config)
        apply_recompute(model, settings.recompute)
        chunk_loss(model, settings.loss_chunk_tokens)
        chunk_mlps(model, settings.mlp_chunk_tokens, most_tokens=most_tokens(settings))
        prepare_autoep(model, ds_config)
        mpu = split_attention(model, sp=settings.sp, micro_batch=settings.micro_batch)
    model.train()
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=[p for p in model.parameters() if p.requires_grad],
        config=ds_config,
        mpu=mpu,
    )
    engine.inputs_on_host = inputs_on_host(settings.offload_activations)
    if settings.compile != "none":
        engine.compile()
    return engine


# ---------------------------------------------------------------- the model


def make_stage(settings: Settings) -> torch.nn.Module:
    """This rank's stage of a pipeline: the model as `transformer.py` computes it."""
    transformer = beside("transformer")
    return transformer.make_pipeline(
        transformer.Shape(**settings.transformer),
        pp=settings.pp,
        tp=settings.tp,
        seed=settings.seed,
        dtype=DTYPES[settings.precision],
    )


def beside(name: str) -> Any:
    """A module whose file lies beside this one, in a package or not."""
    return importlib.import_module(f"{__package__}.{name}" if __package__ else name)


def make_model(settings: Settings, ds_config: Mapping[str, Any]) -> torch.nn.Module:
    """Build the model with as few whole copies as the configuration allows.

    Stage 3 shards every layer as it is made (`zero.Init`). Otherwise the model is made in the
    training precision on the rank's own device, so that the host never holds a copy for a GPU.
    AutoTP splits a whole model: under it each rank makes one, on the host.
    """
    dtype = DTYPES[settings.precision]
    is_sharded = settings.tp == 1 and ds_config.get("zero_optimization", {}).get("stage") == 3
    with contextlib.ExitStack() as stack:
        if is_sharded:
            # zero.Init replaces Tensor.__new__, over which torch._dynamo stumbles when a model
            # brings it in only then.
            importlib.import_module("torch._dynamo")
            stack.enter_context(sharding(ds_config))
        elif settings.tp == 1:
            stack.enter_context(torch.device(device_of_rank()))
            stack.enter_context(default_dtype(dtype))
        if "factory" in settings.source:
            return from_factory(settings.source)
        if is_sharded:
            stack.enter_context(left_undrawn())
        model = from_config(settings.source["config"], dtype, settings.attention)
    draw_weights(model, settings.seed)
    return model


def sharding(ds_config: Mapping[str, Any]) -> Any:
    """The context in which stage 3 shards layers as they are made.

    MiCS, which DeepSpeed had before 0.19.7, has one of its own and refuses what the other made.
    """
    import deepspeed

    size = ds_config["zero_optimization"].get("mics_shard_size", -1)
    init = deepspeed.zero.MiCS_Init if size > 0 else deepspeed.zero.Init
    return init(config_dict_or_path=ds_config)


@contextlib.contextmanager
def left_undrawn() -> Iterator[None]:
    """Leave weights that stage 3 has sharded to `draw_weights`.

    transformers zeroes the row of padding, which the empty weight of a sharded embedding has not
    (transformers 5.23: IndexError for a config with `pad_token_id`, such as Gemma's and OLMoE's).
    """
    from transformers import PreTrainedModel

    initialize = PreTrainedModel._initialize_weights

    def whole_ones(self: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        if not any(hasattr(p, "ds_id") for p in module.parameters(recurse=False)):
            initialize(self, module, *args, **kwargs)

    PreTrainedModel._initialize_weights = whole_ones
    try:
        yield
    finally:
        PreTrainedModel._initialize_weights = initialize


def compress(model: torch.nn.Module, ds_config: Mapping[str, Any]) -> None:
    """Put DeepSpeed's compressing layers in place of the model's, where the configuration asks.

    `deepspeed.initialize` does not: without this the section `compression_training`, which
    DeepSpeed had before 0.19.7, does nothing.
    """
    if "compression_training" not in ds_config:
        return
    from deepspeed.compression.compress import init_compression

    init_compression(model, copy.deepcopy(dict(ds_config)))


def device_of_rank() -> str:
    """Name of the rank's device, such as `cuda:0`."""
    from deepspeed.accelerator import get_accelerator

    return str(get_accelerator().current_device_name())


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make weights in this precision meanwhile."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def from_factory(source: Mapping[str, Any]) -> torch.nn.Module:
    """What the user's factory `package.module:name` returns."""
    sys.path[:0] = [path for path in source.get("path", []) if path not in sys.path]
    module_name, _, attribute = source["factory"].partition(":")
    return getattr(importlib.import_module(module_name), attribute)()


def from_config(config: Mapping[str, Any], dtype: torch.dtype, attention: str) -> torch.nn.Module:
    """A Hugging Face model with random weights and no caches; `config` as in a config.json."""
    from transformers import AutoConfig, AutoModelForCausalLM

    hf_config = AutoConfig.for_model(**config)
    hf_config.use_cache = False
    chosen = {} if attention == "default" else {"attn_implementation": attention}
    return AutoModelForCausalLM.from_config(hf_config, dtype=dtype, **chosen)


def draw_weights(model: Any, seed: int) -> None:
    """Give a Hugging Face model its initial weights, the same ones in every layout.

    transformers draws them one after the other while the model is built. Under `zero.Init` that
    misses: stage 3 shards a layer as soon as it is made, before transformers fills it (fused
    experts and routers hold not a number then, other layers what torch draws by default). So each
    module draws anew, from a seed of its own, on the rank's device, by the rule of its model.
    Weights that are loaded from a checkpoint have no need of it.
    """
    import deepspeed

    device = device_of_rank()
    for number, module in enumerate(_children_first(model)):
        weights = list(module.parameters(recurse=False))
        if not hasattr(module, "_init_weights"):
            # Some models draw a child's weight again from its parent (GPT-2: `c_proj`).
            weights += [p for child in module.children() for p in child.parameters(recurse=False)]
        if not weights:
            continue
        is_sharded = any(hasattr(parameter, "ds_id") for parameter in weights)
        with deepspeed.zero.GatheredParameters(weights, modifier_rank=0, enabled=is_sharded):
            if is_sharded and torch.distributed.get_rank() != 0:
                continue
            torch.manual_seed(seed * 100_003 + number)
            with on_device(weights, device):
                for parameter in weights:
                    parameter._is_hf_initialized = False
                model._init_weights(module)
    torch.manual_seed(seed)


def _children_first(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """All modules of a model, each after those inside it, as transformers goes through them."""
    for child in module.children():
        yield from _children_first(child)
    yield module


@contextlib.contextmanager
def on_device(parameters: Sequence[torch.nn.Parameter], device: str) -> Iterator[None]:
    """Hold parameters on a device meanwhile: another one draws other random numbers."""
    homes = [parameter.device for parameter in parameters]
    for parameter in parameters:
        parameter.data = parameter.data.to(device)
    try:
        yield
    finally:
        for parameter, home in zip(parameters, homes, strict=True):
            parameter.data = parameter.data.to(home)


def prepare_autoep(model: Any, ds_config: Mapping[str, Any]) -> None:
    """Let DeepSpeed's AutoEP put its own layers in place of a mixture of experts.

    It also moves the hooks by which transformers records what routers say, and fails over those
    of a newer transformers (DeepSpeed 0.19.8, transformers 5.23: `_CanRecordRegistry.get`).
    Training without a loss of the routers records nothing: the hooks are given up.
    """
    if not ds_config.get("expert_parallel", {}).get("enabled", False):
        return
    for module in model.modules():
        if getattr(module, "_can_record_outputs", None):
            module._can_record_outputs = {}


def add_adapters(model: torch.nn.Module, lora: Mapping[str, Any]) -> None:
    """Freeze a model and give its target modules low-rank adapters to train.

    They are put into the model, which stays what it was to everybody else (AutoTP, recomputation,
    a chunked loss), where peft's `get_peft_model` would wrap it; the arithmetic is the same. Each
    takes the precision and the device of the weight beside it. Call it outside of `zero.Init`:
    inside, peft would set the empty placeholders of sharded weights, so that B starts at random
    instead of zero (seen with DeepSpeed 0.19.8: another first loss). `deepspeed.initialize` shards
    them with the rest.

    Raises:
        ImportError: peft is not installed.
        ValueError: The model has none of the target modules, or cannot have adapters there.
    """
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=lora["rank"],
        lora_alpha=lora["alpha"],
        lora_dropout=lora["dropout"],
        target_modules=lora["target_modules"],
    )
    inject_adapter_in_model(config, model)


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
    from transformers.modeling_layers import GradientCheckpointingLayer

    every = int(recompute.removeprefix("every_"))
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    for index, layer in enumerate(layers):
        layer.gradient_checkpointing = index % every == 0


def chunk_loss(model: Any, chunk_tokens: int) -> None:
    """Make a Hugging Face causal model compute its loss in chunks; 0 leaves it as it is.

    The logits of all tokens never exist at once: each chunk's are made, used and dropped, and made
    again in backward, at the price of a second product with the output head. The loss is the
    model's own: the mean cross entropy of each token's successor, in fp32. That holds for models
    whose logits are their output head's and nothing else.
    """
    if not chunk_tokens:
        return
    from transformers.modeling_outputs import CausalLMOutput

    def forward(
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        shift_labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | None = None,
        **rest: Any,
    ) -> Any:
        hidden = model.base_model(input_ids=input_ids, **rest).last_hidden_state
        states = hidden.flatten(0, 1).split(chunk_tokens)
        targets = (shifted(labels) if shift_labels is None else shift_labels).flatten()
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for part, wanted in zip(states, targets.split(chunk_tokens), strict=True):
            loss = loss + checkpoint(_summed, model, part, wanted, use_reentrant=False)
        if num_items_in_batch is None:
            num_items_in_batch = (targets != IGNORED).sum()
        return CausalLMOutput(loss=loss / num_items_in_batch)

    forward.chunk_tokens = chunk_tokens  # type: ignore[attr-defined]  # says that it is in force
    model.forward = forward


def _summed(model: Any, states: torch.Tensor, targets: torch.Tensor) -> Any:
    # Asked anew each time: AutoTP replaces the head after the model is built.
    head = model.get_output_embeddings()
    logits = head(states)
    if getattr(head, "is_vocab_parallel_lm_head", False):
        # This rank's part of the vocabulary; the loss over all parts is DeepSpeed's.
        return model.loss_function(logits, shift_labels=targets, num_items_in_batch=1)
    return functional.cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="sum")


def chunk_mlps(model: torch.nn.Module, chunk_tokens: int, *, most_tokens: int) -> None:
    """Make every MLP of a Hugging Face model compute over chunks of its tokens; 0: as it is.

    What lies between its products never exists for all tokens at once: each chunk's is made, used
    and dropped, and made again in backward, as DeepSpeed's TiledMLP does. There are as many chunks
    as `most_tokens` of a micro-batch make, whatever its own are: at stage 3 ranks gather the
    weights for each chunk together.
    """
    if not chunk_tokens:
        return
    n_chunks = -(-most_tokens // chunk_tokens)
    for layer in model.modules():
        mlp = getattr(layer, "mlp", None)
        if isinstance(mlp, torch.nn.Module):
            mlp.forward = _in_chunks(mlp.forward, n_chunks)
            mlp.chunk_tokens = chunk_tokens  # says that it is in force


def _in_chunks(
    forward: Callable[[torch.Tensor], torch.Tensor], n_chunks: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    def chunked(states: torch.Tensor) -> torch.Tensor:
        parts = states.flatten(0, -2).tensor_split(n_chunks)
        found = [checkpoint(forward, part, use_reentrant=False) for part in parts]
        return torch.cat(found).unflatten(0, states.shape[:-1])

    return chunked


def most_tokens(settings: Settings) -> int:
    """Tokens of a rank's largest micro-batch."""
    longest = settings.seq_len
    if settings.lengths.get("kind") == "histogram":
        longest = beside("lengths").longest(settings.lengths)
    return -(-settings.micro_batch * longest // settings.sp)


def inputs_on_host(where: str) -> Any:
    """The context of a forward and backward pass in which inputs of recomputed layers are kept.

    With `cpu` each goes to the host when its layer has run, and comes back for the backward pass,
    but for the last one. The switch is DeepSpeed's, which does nothing on a CPU rank.
    """
    if where == "none":
        return contextlib.nullcontext()
    from deepspeed.runtime.activation_checkpointing import offload_activations

    # Its pinned buffers are reused if there is room for those of all layers.
    return offload_activations.get_checkpoint_hidden_states_offloading_ctx_manager(
        max_cpu_buffer_pool_count=100_000
    )


def shifted(labels: torch.Tensor) -> torch.Tensor:
    """The label of each token's successor; the last token of a sample has none."""
    return functional.pad(labels, (0, 1), value=IGNORED)[:, 1:]


# ------------------------------------------------- samples that ranks share (Ulysses)


def split_attention(model: Any, *, sp: int, micro_batch: int) -> Any:
    """Make a Hugging Face model's attention work on split sequences.

    DeepSpeed's port (`UlyssesSPAttentionHF`) puts itself where the model calls its attention:
    there the pieces of the sequence are exchanged for parts of the heads. What a rank is fed, and
    the loss, are this script's (`sequence_piece`, `whole_loss`).

    `sp` neighbours share a sample; the model has the attention that it will train with.

    Returns:
        The groups, for `deepspeed.initialize(mpu=...)`: without them gradients are reduced over
        the data-parallel ranks alone. None where nothing is split.

    Raises:
        ValueError: The heads, or the attention implementation, cannot be split.
    """
    if sp == 1:
        return None
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    config = model.config
    if getattr(config, "head_dim", 0) is None:
        # Ulysses takes an open one (Mixtral's) for a width; the model reads it no more.
        config.head_dim = config.hidden_size // config.num_attention_heads
    return UlyssesSPAttentionHF.register_with_transformers(
        model_name_or_path=model,
        core_attn_implementation=config._attn_implementation,
        sequence_parallel_size=sp,
        micro_batch_size=micro_batch,
        seq_length_is_variable=True,
    )


def sequence_piece(inputs: Inputs, *, sp: int, rank: int) -> Inputs:
    """A rank's piece of samples (samples, tokens) that all `sp` ranks of its group hold whole.

    Labels are shifted before they are cut: the last token of a piece is followed by the first of
    the next. A mask is left out: padding stands at the right, where nothing before it attends.

    Returns:
        What a Hugging Face model takes: the piece, the positions and successors of its tokens, and
        how many of the whole sequence count, so that the losses of all pieces add up to the mean.

    Raises:
        ValueError: The tokens do not divide.
    """
    n_tokens = inputs["input_ids"].shape[1]
    if n_tokens % sp:
        raise ValueError(f"{n_tokens} tokens cannot be split over {sp} ranks")
    targets = shifted(inputs["labels"])
    whole = {
        "input_ids": inputs["input_ids"],
        "labels": inputs["labels"],
        "shift_labels": targets,
        "position_ids": torch.arange(n_tokens, device=targets.device).expand_as(targets),
    }
    size = n_tokens // sp
    span = slice(rank * size, (rank + 1) * size)
    pieces = {name: tensor[:, span].contiguous() for name, tensor in whole.items()}
    return pieces | {"num_items_in_batch": (targets != IGNORED).sum()}


def gradient_scale(ds_config: Mapping[str, Any], sp: int) -> int:
    """Factor by which each rank's share of the loss is multiplied before backward.

    DeepSpeed divides the gradients, summed over all ranks, by the data-parallel ones alone, which
    is right for shares that add up to the loss; but at stage 3 it scatters them and divides by all
    ranks, which is right for shares that average to it (0.19.8, stage3.py: __avg_scatter_grads
    against stage_1_and_2.py: average_tensor).

    Raises:
        ValueError: Stage 3 is not to scatter: then it divides the gradients of parameters that fit
            into a bucket in one way, those of larger ones in the other.
    """
    zero = ds_config.get("zero_optimization", {})
    if sp == 1 or zero.get("stage") != 3:
        return 1
    if not zero.get("reduce_scatter", True):
        raise ValueError("reduce_scatter=false at stage 3: no scale is right for all gradients")
    return sp


def whole_loss(share: torch.Tensor, *, group: Any, scale: int) -> torch.Tensor:
    """The loss of whole samples: the sum of the shares of the ranks of a group.

    Returns:
        The loss, the same on every rank; its gradient is that of `scale` (see `gradient_scale`)
        times this rank's share.
    """
    total = share.detach().clone()
    torch.distributed.all_reduce(total, group=group)
    scaled = share * scale
    return scaled + (total - scaled.detach())


# ---------------------------------------------------------------- the data


def batches(
    settings: Settings, engine: Any, *, warm_up_steps: int = 0, order: int = 0
) -> Iterator[Inputs]:
    """Micro-batches of random tokens on the rank's device, for ever: this rank's pieces.

    Which samples an optimizer step trains follows from how many were applied before it, and from
    nothing else: every layout trains the same samples in the same step, a resumed training goes
    on with those that are next, and a step that a loss scale skipped (fp16) is done again. Ranks
    that share a model or a sample draw the same ones. In a pipeline the first stage takes the
    tokens, and the last one the labels.

    Args:
        settings: What is trained.
        engine: DeepSpeed's.
        warm_up_steps: Until so many optimizer steps are applied, samples that differ in length
            are all as long as the longest, so that the highest memory is seen first.
        order: In which order the samples of an optimizer step are trained; each number is another
            one, 0 that of their numbers. The sum is the same, but rounded otherwise. Samples that
            differ in length keep theirs: others would meet in a micro-batch and be padded.
    """
    sp = settings.sp
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    replica = rank // (settings.tp * sp) % settings.dp

    def steps_applied() -> int:
        return int(engine.global_steps - engine.skipped_steps)

    if settings.lengths.get("kind") == "histogram":
        samples = drawn(settings, replica, steps_applied, warm_up_steps=warm_up_steps)
    else:
        # A packed row is full: documents follow one another, and every token attends to all
        # before it, over their boundaries. Nothing but the meaning of the tokens differs.
        samples = full(settings, replica, steps_applied, order=order)
    device, takes_mask = device_of_rank(), accepts_mask(engine.module)
    for whole in samples:
        inputs = whole if sp == 1 else sequence_piece(whole, sp=sp, rank=rank % sp)
        if not takes_mask:
            inputs.pop("attention_mask", None)
        yield {name: tensor.to(device, non_blocking=True) for name, tensor in inputs.items()}


def full(
    settings: Settings, replica: int, steps_applied: Callable[[], int], *, order: int = 0
) -> Iterator[Inputs]:
    """Micro-batches of a data-parallel rank, of samples that all have `seq_len` tokens.

    `steps_applied` is asked before each optimizer step; `order` is as of `batches`.
    """
    while True:
        step = steps_applied()
        places = list(range(settings.global_batch))
        if order:
            random.Random(f"{order}/{step}").shuffle(places)
        for numbers in _numbers(settings, replica):
            samples = [_tokens(settings, step, places[n], settings.seq_len) for n in numbers]
            tokens = torch.stack(samples)
            yield {"input_ids": tokens, "labels": tokens}


def drawn(
    settings: Settings,
    replica: int,
    steps_applied: Callable[[], int],
    *,
    warm_up_steps: int = 0,
) -> Iterator[Inputs]:
    """Micro-batches of a data-parallel rank, of samples whose lengths a histogram gives, padded.

    `steps_applied` is asked before each optimizer step; `warm_up_steps` is as of `batches`.
    """
    lengths, histogram = beside("lengths"), settings.lengths
    multiple = math.lcm(int(histogram["pad_to_multiple"]), settings.sp)
    while True:
        step = steps_applied()
        found = lengths.step_lengths(histogram, settings.global_batch, settings.seed, step)
        if step < warm_up_steps:
            found = [lengths.longest(histogram)] * settings.global_batch
        for numbers in _numbers(settings, replica):
            yield collate([_tokens(settings, step, n, found[n]) for n in numbers], multiple)


def _numbers(settings: Settings, replica: int) -> Iterator[range]:
    """Which samples of an optimizer step are in each micro-batch of a data-parallel rank."""
    for micro_step in range(settings.grad_accum):
        first = (micro_step * settings.dp + replica) * settings.micro_batch
        yield range(first, first + settings.micro_batch)


def collate(samples: Sequence[torch.Tensor], pad_to_multiple: int) -> Inputs:
    """Pad on the right to the longest sample, rounded up; padding has no label and no attention.

    Returns:
        `input_ids`, `labels` and `attention_mask`, each (samples, padded length).
    """
    width = max(len(sample) for sample in samples)
    shape = (len(samples), -(-width // pad_to_multiple) * pad_to_multiple)
    tokens = torch.zeros(shape, dtype=torch.long)
    labels = torch.full(shape, IGNORED, dtype=torch.long)
    mask = torch.zeros(shape, dtype=torch.long)
    for row, sample in enumerate(samples):
        tokens[row, : len(sample)] = labels[row, : len(sample)] = sample
        mask[row, : len(sample)] = 1
    return {"input_ids": tokens, "labels": labels, "attention_mask": mask}


def _tokens(settings: Settings, step: int, number: int, length: int) -> torch.Tensor:
    """One sample; it depends on the job, the step and its number alone.

    Token k of V comes up with a density of (k / V)^(-2/3) / 3, as in text some do far more often
    than others (Zipf). So there is something to learn, 0.9 nats within a few steps, and a
    training that goes wrong shows in its loss.
    """
    seed = (settings.seed * 100_003 + step) * settings.global_batch + number
    generator = torch.Generator().manual_seed(seed % 2**63)
    vocab = int(settings.source["vocab"])
    drawn = torch.rand(length, generator=generator, dtype=torch.float64)
    return (drawn**3 * vocab).long()


def accepts_mask(model: torch.nn.Module) -> bool:
    """Whether the model's `forward` has an `attention_mask`; a factory's need not."""
    parameters = inspect.signature(model.forward).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return takes_any or "attention_mask" in parameters


# ---------------------------------------------------------------- the steps


def micro_step(engine: Any, batch: Inputs, scale: int) -> torch.Tensor:
    """One forward and backward pass, and every so many the optimizer's step; returns the loss."""
    with engine.inputs_on_host:
        output = engine(**batch)
        loss: torch.Tensor = output if isinstance(output, torch.Tensor) else output.loss
        if engine.sequence_parallel_size > 1:
            loss = whole_loss(loss, group=engine.seq_parallel_group, scale=scale)
        engine.backward(loss)
    engine.step()
    return loss


def bind_to_cores(settings: Settings) -> None:
    """Give every CPU rank a core of its own, a GPU rank its share of them."""
    cores, rank = sorted(os.sched_getaffinity(0)), int(os.environ["LOCAL_RANK"])
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", settings.world))
    size = 1 if settings.accelerator == "cpu" else max(1, len(cores) // ranks)
    first = rank * size % len(cores)
    os.sched_setaffinity(0, cores[first : first + size])
    torch.set_num_threads(size)


def leave() -> None:
    """End this rank, and remove what it would leave behind."""
    where = f"{os.getuid()}_{os.environ['MASTER_ADDR']}_{os.environ['MASTER_PORT']}"
    # Shared memory of a CPU rank, which DeepSpeed never removes.
    segment = Path(f"/dev/shm/deepspeed_allreduce_buffer_{where}_{os.environ['LOCAL_RANK']}")
    with contextlib.suppress(OSError):
        segment.unlink()
    sys.stdout.flush()
    # The interpreter's end would abort a rank now and then: gloo's threads outlive their group.
    os._exit(0)


def steps(
    engine: Any,
    settings: Settings,
    ds_config: Mapping[str, Any],
    *,
    warm_up_steps: int = 0,
    order: int = 0,
) -> Iterator[Any]:
    """Train for ever; yields the last loss of each optimizer step. Arguments as of `batches`."""
    fed = batches(settings, engine, warm_up_steps=warm_up_steps, order=order)
    scale = gradient_scale(ds_config, settings.sp)
    loss = None
    while True:
        if settings.pp > 1:  # it takes its micro-batches in flight; the loss is their mean
            yield engine.train_batch((batch["input_ids"], batch["labels"]) for batch in fed)
            continue
        for _ in range(settings.grad_accum):
            loss = micro_step(engine, next(fed), scale)
        yield loss


def start() -> tuple[Any, Settings, dict[str, Any]]:
    """The engine of what the files of this folder describe, with what they say."""
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    data, ds_config = read("settings.json"), read("ds_config.json")
    config = {} if "factory" in data else read("model/config.json")
    settings = Settings.of(
        data,
        config,
        micro_batch=ds_config["train_micro_batch_size_per_gpu"],
        grad_accum=ds_config.get("gradient_accumulation_steps", 1),
    )
    if data["binds_cores"]:
        bind_to_cores(settings)
    # Before anything is made on a device: until then every rank's current one is the first.
    get_accelerator().set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed()
    return make_engine(settings, ds_config), settings, ds_config


def read(name: str) -> dict[str, Any]:
    """A JSON file of this folder."""
    return dict(json.loads((HERE / name).read_text(encoding="utf-8")))


def steps_asked() -> int:
    """Optimizer steps that the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps")
    return int(parser.parse_args().steps)


def print_steps(n_steps: int, losses: Iterator[Any], *, is_first: bool) -> None:
    """Train so many steps; the first rank prints what each took."""
    began_s = time.perf_counter()
    for step, loss in zip(range(n_steps), losses, strict=False):
        loss_value = loss.item()  # waits for the device
        step_time_s = time.perf_counter() - began_s
        if is_first:
            print(f"step {step}  loss {loss_value:.4f}  {step_time_s:.4f} s", flush=True)
        began_s = time.perf_counter()


def main() -> None:
    """Train, and print what each step took."""
    n_steps = steps_asked()
    engine, settings, ds_config = start()
    losses = steps(engine, settings, ds_config)
    print_steps(n_steps, losses, is_first=engine.global_rank == 0)
    engine.destroy()
    torch.distributed.destroy_process_group()
    leave()


if __name__ == "__main__":
    main()
