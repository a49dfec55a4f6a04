"""Train a model with random weights on random tokens under Megatron Core, as one of its ranks.

`megatron_args.json` holds the arguments, by the names that Megatron-LM's scripts give them.
`settings.json` is what they do not say: the ranks, the device, the samples. Replace `batches` to
train on your own data. The script needs torch and megatron-core, `train.py` and `lengths.py`
beside it, and `megatron_cpu.py` on CPU ranks.
"""

import copy
import dataclasses
import importlib
import inspect
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

train: Any = importlib.import_module(f"{__package__}.train" if __package__ else "train")
"""The script beside this one, in a package or not."""
PADDED_TO = 128
"""Megatron-LM pads the vocabulary to a multiple of this times the tensor parallel degree."""
_BUCKET_PARAMS = 40_000_000
_BUCKET_PARAMS_PER_RANK = 1_000_000
"""Size of a bucket of gradients: the larger of the two, the second times the data-parallel ranks.

Source: NVIDIA/Megatron-LM, megatron/core/distributed/distributed_data_parallel.py."""

_RENAMED = {
    "norm_epsilon": "layernorm_epsilon",
    "num_experts": "num_moe_experts",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "fp8_format": "fp8",
    "fp8_param_gather": "fp8_param",
}
"""Argument -> the field of Megatron's configuration, where they differ."""
_SWITCHED_OFF = {
    "disable_bias_linear": "add_bias_linear",
    "no_gradient_accumulation_fusion": "gradient_accumulation_fusion",
    "no_masked_softmax_fusion": "masked_softmax_fusion",
    "no_persist_layer_norm": "persist_layer_norm",
    "no_bias_swiglu_fusion": "bias_activation_fusion",
    "no_bias_gelu_fusion": "bias_activation_fusion",
    "no_rope_fusion": "apply_rope_fusion",
}
"""Argument -> the field that it turns off, and that is on without it."""
_OF_YARN = (
    *("rotary_scaling_factor", "yarn_original_max_position_embeddings"),
    *("yarn_beta_fast", "yarn_beta_slow", "mscale", "mscale_all_dim"),
)
"""Arguments that Megatron looks for in its configuration, with `yarn_` before them, where plain
attention has YaRN; none is a field of it.

Source: NVIDIA/Megatron-LM, megatron/training/argument_utils.py, _apply_yarn_config_from_args.
"""

Arguments = Mapping[str, Any]
Inputs = dict[str, torch.Tensor]


def load_megatron(accelerator: str) -> None:
    """Import Megatron Core, on CPU ranks with the host in CUDA's place."""
    if accelerator == "cpu":
        on_cpu = train.beside("megatron_cpu")
        on_cpu.install()
        on_cpu.mend_megatron()
    for module in ("models.gpt.gpt_model", "models.gpt.gpt_layer_specs", "optimizer"):
        importlib.import_module(f"megatron.core.{module}")


class Training:
    """One rank's part of a model under Megatron, and the schedule that trains it."""

    def __init__(self, chunks: Sequence[Any], optimizer: Any, config: Any, settings: Any) -> None:
        from megatron.core.pipeline_parallel import get_forward_backward_func

        self.chunks = chunks
        """The model chunks of this pipeline rank, each under Megatron's data parallelism."""
        self.optimizer = optimizer
        self.config = config
        """Megatron's `TransformerConfig`."""
        self.settings = settings
        self.steps_applied = 0
        self.was_applied = False
        self.micro_batches: list[int] = []
        """Samples of each forward pass of the last optimizer step, of the first chunk."""
        self.schedule = get_forward_backward_func()

    def step(self, fed: Sequence[Iterator[Inputs]]) -> torch.Tensor:
        """One optimizer step; `fed` has the samples of each chunk.

        Returns:
            The loss of this rank's samples, the same on every stage of its pipeline.
        """
        losses = self.compute(fed)
        self.was_applied = self.update()
        self.steps_applied += self.was_applied
        return shared_loss(losses)

    def compute(self, fed: Sequence[Iterator[Inputs]]) -> list[torch.Tensor]:
        """Forward and backward passes of all micro-batches; losses on the last stage alone."""
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        self.micro_batches.clear()
        is_one = len(self.chunks) == 1
        first = map(self._seen, fed[0])
        found = self.schedule(
            forward_step_func=forward_step,
            data_iterator=first if is_one else [first, *fed[1:]],
            model=self.chunks[0] if is_one else list(self.chunks),
            num_microbatches=self.settings.grad_accum,
            seq_length=self.settings.seq_len,
            micro_batch_size=self.settings.micro_batch,
            decoder_seq_length=self.settings.seq_len,
            forward_only=False,
        )
        return [output["loss"] for output in found]

    def _seen(self, batch: Inputs) -> Inputs:
        self.micro_batches.append(len(batch["tokens"]))
        return batch

    def update(self) -> bool:
        is_applied, *_ = self.optimizer.step()
        return bool(is_applied)


def forward_step(
    fed: Iterator[Inputs], model: Any, return_schedule_plan: bool = False
) -> tuple[Any, Any]:
    """One forward pass, and the function that makes a loss of what it gives back.

    Args:
        fed: The samples.
        model: A chunk.
        return_schedule_plan: Whether Megatron wants the plan of the pass, and runs it itself
            beside the backward pass of another micro-batch.
    """
    batch = next(fed)
    mask = batch["mask"]

    def loss_of(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss = (losses.float() * mask).sum() / mask.sum()
        return loss, {"loss": loss.detach().clone()}

    run = unwrapped(model).build_schedule_plan if return_schedule_plan else model
    inputs = batch["tokens"], batch["positions"], None
    return run(*inputs, labels=batch["labels"], loss_mask=mask), loss_of


def unwrapped(model: Any) -> Any:
    """A chunk without what is wrapped around it."""
    while hasattr(model, "module"):
        model = model.module
    return model


def optimizers_of(training: Any) -> list[Any]:
    """Megatron's optimizers of a `Training`: one for the experts, and one for all else."""
    return list(getattr(training.optimizer, "chained_optimizers", [training.optimizer]))


def shared_loss(losses: Sequence[torch.Tensor]) -> torch.Tensor:
    """The mean of a step's losses, which the last stage sends to the others."""
    from megatron.core import parallel_state

    mean = torch.zeros((), dtype=torch.float32, device=device_of_rank())
    if losses:
        mean = torch.stack([loss.float() for loss in losses]).mean()
    if parallel_state.get_pipeline_model_parallel_world_size() > 1:
        last = parallel_state.get_pipeline_model_parallel_last_rank()
        group = parallel_state.get_pipeline_model_parallel_group()
        dist.broadcast(mean, src=last, group=group)
    return mean


def device_of_rank() -> Any:
    """The rank's device: the host, where it stands in for one."""
    return torch.cuda.current_device()


# ---------------------------------------------------------------- the model


def make_training(arguments: Arguments, settings: Any) -> Training:
    """The model, its optimizer and its groups of ranks, as the arguments want them."""
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.distributed import (
        DistributedDataParallel,
        FullyShardedDataParallel,
        finalize_model_grads,
    )
    from megatron.core.optimizer import get_megatron_optimizer
    from megatron.core.transformer.module import Float16Module

    parallel_state.initialize_model_parallel(
        arguments["tensor_model_parallel_size"],
        arguments["pipeline_model_parallel_size"],
        chunks_per_rank(arguments),
        context_parallel_size=arguments["context_parallel_size"],
        expert_model_parallel_size=arguments["expert_model_parallel_size"],
        expert_tensor_parallel_size=arguments.get("expert_tensor_parallel_size"),
        order=f"tp-cp-ep-{'pp-dp' if arguments.get('use_tp_pp_dp_mapping') else 'dp-pp'}",
        get_embedding_ranks=lambda ranks: embedding_ranks(ranks, arguments),
    )
    torch.manual_seed(arguments["seed"])
    tensor_parallel.model_parallel_cuda_manual_seed(arguments["seed"])
    config = transformer_config(arguments, settings)
    if config.tp_comm_overlap:
        share_buffers(arguments)
    chunks = make_chunks(config, arguments)
    draw_weights(chunks, arguments)
    chunks = [chunk.to(device_of_rank()) for chunk in chunks]
    if config.bf16 or config.fp16:
        chunks = [Float16Module(config, chunk) for chunk in chunks]
    of_data = data_parallel_config(arguments, settings)
    wrapper: Any = (
        FullyShardedDataParallel if of_data.use_megatron_fsdp else DistributedDataParallel
    )
    chunks = [
        wrapper(config, of_data, chunk, disable_bucketing=number > 0)
        for number, chunk in enumerate(chunks)
    ]
    optimizer = get_megatron_optimizer(optimizer_config(arguments, config), chunks)
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    overlap(config, chunks, arguments)
    for chunk in chunks:
        chunk.train()
    return Training(chunks, optimizer, config, settings)


def stages_of(arguments: Arguments) -> list[str] | None:
    """What each stage of `pipeline_model_parallel_layout` has: `Et`, `tt`, `tmL`; None without.

    Source: NVIDIA/Megatron-LM, megatron/core/transformer/pipeline_parallel_layer_layout.py.
    """
    layout = arguments.get("pipeline_model_parallel_layout")
    if not layout:
        return None
    layout = str(layout).replace(",", "")
    for repeated in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        layout = re.sub(repeated, lambda found: found[1] * int(found[2]), layout)
    return layout.split("|")


def chunks_per_rank(arguments: Arguments) -> int | None:
    """Chunks of a pipeline rank, by the layout where there is one; None: one."""
    if stages := stages_of(arguments):
        count = len(stages) // int(arguments["pipeline_model_parallel_size"])
        return count if count > 1 else None
    named: int | None = arguments.get("num_virtual_stages_per_pipeline_rank")
    return named


def embedding_ranks(ranks: Sequence[int], arguments: Arguments) -> list[int]:
    """Ranks of a pipeline that have the embedding: MTP layers and a tied output need it, too.

    Without those of MTP layers in another stage than the last, the copies of the embedding drift
    apart, without an error.

    Source: NVIDIA/Megatron-LM, pretrain_gpt.py, get_embedding_ranks.
    """
    found = {ranks[0]}
    if "untie_embeddings_and_output_weights" not in arguments:
        found.add(ranks[-1])
    if arguments.get("mtp_num_layers"):
        stages = stages_of(arguments)
        if stages is None:
            found.add(ranks[-1])
        else:
            found |= {ranks[n % len(ranks)] for n, stage in enumerate(stages) if "m" in stage}
    return sorted(found)


def share_buffers(arguments: Arguments) -> None:
    """Make the buffers by which tensor parallel ranks send while they multiply; on GPUs alone.

    Source: NVIDIA/Megatron-LM, megatron/training/initialize.py, _initialize_tp_communicators.
    """
    base = importlib.import_module("transformer_engine.pytorch.module.base")
    tokens = arguments["seq_length"] * arguments["micro_batch_size"]
    base.initialize_ub(
        shape=[tokens // arguments["context_parallel_size"], arguments["hidden_size"]],
        tp_size=arguments["tensor_model_parallel_size"],
        use_fp8="fp8_format" in arguments,
        bootstrap_backend="nccl",
    )


def overlap(config: Any, chunks: Sequence[Any], arguments: Arguments) -> None:
    """Hand the schedule what it needs to reduce and gather while it computes.

    Source: NVIDIA/Megatron-LM, megatron/training/training.py, train.
    """

    def for_schedule(of_chunks: list[Any]) -> Any:
        return of_chunks[0] if len(of_chunks) == 1 else of_chunks

    if arguments.get("overlap_grad_reduce"):
        config.no_sync_func = for_schedule([chunk.no_sync for chunk in chunks])
        if len(chunks) > 1:  # chunks reduce when the schedule says, all stages alike
            config.grad_sync_func = [chunk.start_grad_sync for chunk in chunks]
    if arguments.get("overlap_param_gather") and len(chunks) > 1:
        config.param_sync_func = [chunk.start_param_sync for chunk in chunks]


def transformer_config(arguments: Arguments, settings: Any) -> Any:
    """Megatron's configuration of the model, as its own scripts make it of their arguments."""
    from megatron.core.transformer import transformer_config as configs

    is_latent = arguments.get("multi_latent_attention", False)
    kind = configs.MLATransformerConfig if is_latent else configs.TransformerConfig
    named = {_RENAMED.get(name, name): value for name, value in arguments.items()}
    named.pop("attention_backend", None)  # an enum there; without Transformer Engine nothing asks
    for name in ("moe_layer_freq", "window_attn_skip_freq"):
        if isinstance(named.get(name), str):
            named[name] = layer_pattern(named[name])
    if "window_size" in named:
        before, after = named["window_size"].split(",")
        named["window_size"] = int(before), int(after)
    given = _fields(kind, named)
    if is_latent:  # a rank by default; a flag that is left out means none
        given.setdefault("q_lora_rank", None)
    off = {field for name, field in _SWITCHED_OFF.items() if arguments.get(name)}
    given |= _fields(kind, {name: name not in off for name in _SWITCHED_OFF.values()})
    if arguments.get("position_embedding_type") != "rope":  # fused for plain rotary ones alone
        given["apply_rope_fusion"] = False
    given["bias_dropout_fusion"] = settings.accelerator != "cpu"
    given.setdefault("attention_softmax_in_fp32", False)  # the flag's default, not the field's
    if arguments.get("swiglu"):
        given |= {"gated_linear_unit": True, "activation_func": torch.nn.functional.silu}
    elif arguments.get("quick_geglu"):
        from megatron.core.fusions.fused_bias_geglu import quick_gelu

        given |= {"gated_linear_unit": True, "activation_func": quick_gelu}
    else:
        given["activation_func"] = gelu_tanh
        if given["bias_activation_fusion"]:  # which has the same formula, and knows F.gelu alone
            given["activation_func"] = torch.nn.functional.gelu
    n_chunks = chunks_per_rank(arguments)
    overlaps_sends = bool(n_chunks) and "no_overlap_p2p_communication" not in arguments
    given["cpu_offloading"] = "cpu_offloading_num_layers" in arguments
    dtype = train.DTYPES[settings.precision]
    # Batched sends train wrongly between two stages with several chunks, without an error.
    config = kind(
        **given,
        virtual_pipeline_model_parallel_size=n_chunks,
        pipeline_dtype=dtype,
        params_dtype=dtype,
        overlap_p2p_comm=overlaps_sends,
        batch_p2p_comm=not overlaps_sends,
        deallocate_pipeline_outputs=True,
        use_cpu_initialization=settings.accelerator == "cpu",
    )
    if arguments["position_embedding_type"] == "yarn":
        for name in _OF_YARN:
            setattr(config, f"yarn_{name.removeprefix('yarn_')}", arguments[name])
        rounds = "no_yarn_correction_range_round_to_int" not in arguments
        config.yarn_correction_range_round_to_int = rounds
    return config


def layer_pattern(text: str) -> list[int]:
    """The 0 or 1 of each layer of `([0]*3+[1]*58)`, as Megatron writes which layers are which."""
    parts = re.findall(r"\[([\d,]+)\](?:\*(\d+))?", text)
    return [int(flag) for part, n in parts for flag in part.split(",") * int(n or 1)]


def gelu_tanh(inputs: torch.Tensor) -> torch.Tensor:
    """The approximation of GELU that GPT-2 was trained with, and that Megatron fuses."""
    return torch.nn.functional.gelu(inputs, approximate="tanh")


def make_chunks(config: Any, arguments: Arguments) -> list[Any]:
    """The chunks of the model that stand on this pipeline rank, with weights that mean nothing."""
    numbers = range(count) if (count := chunks_per_rank(arguments)) else [None]
    return [make_chunk(config, arguments, number) for number in numbers]


def make_chunk(config: Any, arguments: Arguments, number: int | None) -> Any:
    """One chunk; `number` is its own among those of its rank, None where it is alone."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.models.gpt.gpt_model import GPTModel

    has_te = arguments.get("transformer_impl") != "local"
    layers = get_gpt_decoder_block_spec(
        config, has_te, normalization=arguments["normalization"], vp_stage=number
    )
    of_rank = {} if number is None else {"ignore_virtual": False, "vp_stage": number}
    return GPTModel(
        config,
        layers,
        padded_vocab(arguments),
        arguments["max_position_embeddings"],
        pre_process=parallel_state.is_pipeline_first_stage(**of_rank),
        post_process=parallel_state.is_pipeline_last_stage(**of_rank),
        share_embeddings_and_output_weights="untie_embeddings_and_output_weights" not in arguments,
        position_embedding_type=arguments["position_embedding_type"],
        rotary_percent=arguments.get("rotary_percent", 1.0),
        rotary_base=arguments.get("rotary_base", 10_000),
        rope_scaling=arguments.get("use_rope_scaling", False),
        rope_scaling_factor=arguments.get("rope_scaling_factor", 8.0),
        seq_len_interpolation_factor=arguments.get("rotary_seq_len_interpolation_factor"),
        mtp_block_spec=mtp_spec(config, layers, has_te, number),
        **({} if number is None else {"vp_stage": number}),
    )


def mtp_spec(config: Any, layers: Any, has_te: bool, number: int | None) -> Any:
    """Layers that predict further tokens, as the last layer is; None in a chunk without them.

    Source: NVIDIA/Megatron-LM, gpt_builders.py (0.16), gpt_builder.
    """
    if not config.mtp_num_layers:
        return None
    from megatron.core.models.gpt import gpt_layer_specs as specs

    like = layers
    if not layers.layer_specs:  # a stage may have no other layer
        alone = copy.copy(config)
        alone.pipeline_model_parallel_size = 1
        alone.virtual_pipeline_model_parallel_size = alone.pipeline_model_parallel_layout = None
        alone.num_layers_in_first_pipeline_stage = alone.num_layers_in_last_pipeline_stage = None
        make = specs.get_gpt_decoder_block_spec
        knows_rank = "pp_rank" in inspect.signature(make).parameters  # 0.15 on
        of_rank = {} if knows_rank else {"vp_stage": number}
        like = make(alone, has_te, normalization=config.normalization, **of_rank)
    return specs.get_gpt_mtp_block_spec(config, like, has_te, vp_stage=number)


def padded_vocab(arguments: Arguments) -> int:
    """Token ids with those that Megatron adds so that they divide.

    Source: NVIDIA/Megatron-LM, megatron/training/tokenizer/tokenizer.py, _vocab_size_with_padding.
    """
    multiple = PADDED_TO * arguments["tensor_model_parallel_size"]
    return int(math.ceil(arguments["vocab_size"] / multiple) * multiple)


def data_parallel_config(arguments: Arguments, settings: Any) -> Any:
    """Megatron's configuration of data parallelism."""
    from megatron.core.distributed import DistributedDataParallelConfig

    bucket = max(_BUCKET_PARAMS, _BUCKET_PARAMS_PER_RANK * settings.dp)
    return DistributedDataParallelConfig(
        # Megatron-LM forces it for bf16, unless it is told not to.
        grad_reduce_in_fp32=arguments.get("bf16", False)
        and not arguments.get("grad_reduce_in_bf16", False),
        **_fields(DistributedDataParallelConfig, arguments),
        nccl_ub=arguments.get("use_nccl_ub", False),
        # As its scripts' arguments have it: none with fp16's scaled losses, alike with chunks.
        check_for_nan_in_grad=settings.precision != "fp16",
        align_param_gather=bool(chunks_per_rank(arguments)),
        bucket_size=bucket if arguments.get("overlap_grad_reduce") else None,
    )


def optimizer_config(arguments: Arguments, config: Any) -> Any:
    """Megatron's configuration of the optimizer."""
    from megatron.core.optimizer import OptimizerConfig

    given, dtypes = _fields(OptimizerConfig, arguments), {**train.DTYPES, "fp8": torch.uint8}
    given |= {name: dtypes[given[name]] for name in given if name.endswith("_dtype")}
    return OptimizerConfig(**given, params_dtype=config.params_dtype)


def _fields(kind: Any, arguments: Arguments) -> dict[str, Any]:
    known = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in arguments.items() if name in known}


# ---------------------------------------------------------------- the weights


def draw_weights(chunks: Sequence[Any], arguments: Arguments) -> None:
    """Give the model its initial weights, the same ones in every layout.

    Megatron draws them by rank: the same seed gives another model in each layout, and losses
    could not be compared. Here each tensor is drawn whole from a seed of its own, and a rank keeps
    its part.
    """
    std = arguments["init_method_std"]
    # Layers that end a residual branch start smaller: GPT-2's rule, and Megatron's.
    deep_std = std / math.sqrt(2 * arguments["num_layers"])
    gated = bool(arguments.get("swiglu") or arguments.get("quick_geglu"))
    with torch.no_grad():
        for chunk in chunks:
            for name, parameter in chunk.named_parameters():
                for whole, tensor, split in tensors_of(chunk, name, parameter):
                    is_drawn = tensor.dim() > 1 or whole.endswith(_DRAWN_VECTORS)
                    if not is_drawn:
                        continue  # norms and biases start alike everywhere
                    is_deep = whole.endswith(("linear_proj.weight", "linear_fc2.weight"))
                    part = drawn(
                        tensor.shape,
                        split,
                        seed=zlib.crc32(f"{arguments['seed']}/{whole}".encode()),
                        std=deep_std if is_deep else std,
                        n_blocks=2 if gated and whole.endswith("linear_fc1.weight") else 1,
                    )
                    tensor.copy_(part)


_DRAWN_VECTORS = ("softmax_offset", "router.bias")
"""Vectors that Megatron draws as it does matrices: GPT-OSS has them."""
Split = tuple[int, int, int]
"""Dimension along which ranks share a tensor, their number, and the number of this one."""


def tensors_of(chunk: Any, name: str, parameter: Any) -> Iterator[tuple[str, torch.Tensor, Split]]:
    """The tensors of the whole model in which a parameter has its part, with their names there.

    Megatron's grouped experts keep all of a rank in one parameter, the others one in each.
    """
    whole, split = global_name(chunk, name), split_of(parameter, name)
    grouped = re.search(r"experts\.weight([12])$", whole)
    if grouped is None:
        yield whole, parameter, split
        return
    first, count = experts_of_rank(chunk)
    is_up = grouped[1] == "1"
    hidden = chunk.config.hidden_size
    size = (count, hidden, -1) if is_up else (count, -1, hidden)
    of_experts = parameter.view(size).transpose(1, 2)  # the others keep (outputs, inputs)
    for number, weight in enumerate(of_experts):
        stem = whole[: grouped.start()]
        layer = f"experts.local_experts.{first + number}.linear_fc{grouped[1]}.weight"
        yield stem + layer, weight, (0 if is_up else 1, *split[1:])


def global_name(chunk: Any, name: str) -> str:
    """A parameter's name in the whole model: layers and experts are numbered from 0 throughout.

    Layers that predict further tokens stand in one stage, and have the same numbers everywhere.
    """
    parts = name.split(".")
    if "layers" in parts and parts[0] != "mtp":
        at = parts.index("layers") + 1
        parts[at] = str(chunk.decoder.layers[int(parts[at])].layer_number - 1)
    first = experts_of_rank(chunk)[0]
    if "local_experts" in parts:
        at = parts.index("local_experts") + 1
        parts[at] = str(first + int(parts[at]))
    elif (numbered := re.fullmatch(r"(weight|bias)(\d+)", parts[-1])) and parts[-3] == "experts":
        # Transformer Engine's grouped layers: linear_fc1.weight0.
        parts[-3:] = ["experts", "local_experts", str(first + int(numbered[2])), parts[-2]]
        parts.append(numbered[1])
    whole = ".".join(parts)
    is_tied = chunk.share_embeddings_and_output_weights
    return "embedding.word_embeddings.weight" if is_tied and parts[0] == "output_layer" else whole


def experts_of_rank(chunk: Any) -> tuple[int, int]:
    """Number of this rank's first expert, and of its experts."""
    from megatron.core import parallel_state

    n_ranks = parallel_state.get_expert_model_parallel_world_size()
    count = (chunk.config.num_moe_experts or 0) // n_ranks
    return parallel_state.get_expert_model_parallel_rank() * count, count


def split_of(parameter: Any, name: str) -> Split:
    """How ranks share a parameter, as Megatron made it."""
    from megatron.core import parallel_state

    n_parts, part = 1, 0
    if not getattr(parameter, "allreduce", True):  # an expert's
        n_parts = parallel_state.get_expert_tensor_parallel_world_size()
        part = parallel_state.get_expert_tensor_parallel_rank()
    elif getattr(parameter, "tensor_model_parallel", False) or name.endswith("softmax_offset"):
        n_parts = parallel_state.get_tensor_model_parallel_world_size()
        part = parallel_state.get_tensor_model_parallel_rank()
    return getattr(parameter, "partition_dim", 0) if n_parts > 1 else 0, n_parts, part


def drawn(
    shape: Sequence[int], split: Split, *, seed: int, std: float, n_blocks: int
) -> torch.Tensor:
    """A rank's part of a tensor that is drawn whole.

    Args:
        shape: The part's.
        split: How ranks share it.
        seed: Of the whole tensor.
        std: Standard deviation of its numbers.
        n_blocks: Blocks of rows of which each rank has a part: an MLP's gate stands before its up
            projection.
    """
    dim, n_parts, part = split
    whole_shape = list(shape)
    whole_shape[dim] *= n_parts
    generator = torch.Generator().manual_seed(seed)
    whole = torch.empty(whole_shape).normal_(0.0, std, generator=generator)
    if n_parts == 1:
        return whole
    return torch.cat([block.chunk(n_parts, dim)[part] for block in whole.chunk(n_blocks)])


# ---------------------------------------------------------------- the data


def batches(training: Training, *, order: int = 0) -> list[Iterator[Inputs]]:
    """Micro-batches for each chunk of this rank: those that `train.py` draws for its replica.

    Args:
        training: What is fed.
        order: As of `train.batches`.
    """
    from megatron.core import parallel_state

    replica = parallel_state.get_data_parallel_rank()
    samples = [
        train.full(training.settings, replica, lambda: training.steps_applied, order=order)
        for _ in training.chunks
    ]
    return [map(inputs_of, drawn) for drawn in samples]


def inputs_of(batch: Inputs) -> Inputs:
    """What the model takes of samples (samples, tokens); the last token has no successor."""
    from megatron.core import parallel_state

    tokens = batch["input_ids"]
    mask = torch.ones(tokens.shape, dtype=torch.float32)
    mask[:, -1] = 0.0
    inputs = {
        "tokens": tokens,
        "labels": tokens.roll(-1, dims=1),
        "mask": mask,
        "positions": torch.arange(tokens.shape[1]).expand_as(tokens),
    }
    if parallel_state.get_context_parallel_world_size() > 1:
        from megatron.core.utils import get_batch_on_this_cp_rank

        inputs = get_batch_on_this_cp_rank(inputs)
    return {name: tensor.contiguous().to(device_of_rank()) for name, tensor in inputs.items()}


# ---------------------------------------------------------------- the steps


def steps(training: Training, *, order: int = 0) -> Iterator[torch.Tensor]:
    """Train for ever; yields the loss of each optimizer step. `order` is as of `batches`."""
    fed = batches(training, order=order)
    while True:
        yield training.step(fed)


def settings_of(data: Mapping[str, Any], arguments: Arguments) -> Any:
    """What `train.py` knows of a run: its ranks, its device and its samples."""
    micro_batch = arguments["micro_batch_size"]
    per_step = micro_batch * data["dp"]
    return train.Settings.of(
        data,
        {},
        micro_batch=micro_batch,
        grad_accum=arguments["global_batch_size"] // per_step,
    )


def join_ranks() -> None:
    """Make the process group, and wait until it carries something; the host makes it gloo's."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend="nccl")
    dist.all_reduce(torch.zeros(1, device=device_of_rank()))


def main() -> None:
    """Train, and print what each step took."""
    n_steps = train.steps_asked()
    data, arguments = train.read("settings.json"), train.read("megatron_args.json")
    settings = settings_of(data, arguments)
    if data["binds_cores"]:
        train.bind_to_cores(settings)
    load_megatron(settings.accelerator)
    join_ranks()
    losses = steps(make_training(arguments, settings))
    train.print_steps(n_steps, losses, is_first=dist.get_rank() == 0)
    dist.destroy_process_group()
    train.leave()


if __name__ == "__main__":
    main()
