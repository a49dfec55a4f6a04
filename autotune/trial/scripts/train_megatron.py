"""Train a model with random weights on random tokens under Megatron Core, as one of its ranks.

`megatron_args.json` holds the arguments, by the names that Megatron-LM's scripts give them.
`settings.json` is what they do not say: the ranks, the device, the samples. Replace `batches` to
train on your own data. The script needs torch and megatron-core, `train.py` and `lengths.py`
beside it, and `megatron_cpu.py` on CPU ranks.
"""

import argparse
import dataclasses
import importlib
import json
import math
import os
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

HERE = Path(__file__).resolve().parent
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

Arguments = Mapping[str, Any]
Inputs = dict[str, torch.Tensor]


def beside(name: str) -> Any:
    """A module whose file lies beside this one, in a package or not."""
    return importlib.import_module(f"{__package__}.{name}" if __package__ else name)


def load_megatron(accelerator: str) -> None:
    """Import Megatron Core, on CPU ranks with the host in CUDA's place."""
    if accelerator == "cpu":
        on_cpu = beside("megatron_cpu")
        on_cpu.install()
        on_cpu.mend_megatron()
    for module in ("models.gpt.gpt_model", "models.gpt.gpt_layer_specs", "optimizer"):
        importlib.import_module(f"megatron.core.{module}")


class Training:
    """One rank's part of a model under Megatron, and the schedule that trains it."""

    def __init__(self, chunks: Sequence[Any], optimizer: Any, config: Any, settings: Any) -> None:
        """Take what `make_training` built."""
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
        return [each["loss"] for each in found]

    def _seen(self, batch: Inputs) -> Inputs:
        self.micro_batches.append(len(batch["tokens"]))
        return batch

    def update(self) -> bool:
        """The optimizer's step; says whether it was applied (a loss scale may skip it)."""
        is_applied, *_ = self.optimizer.step()
        return bool(is_applied)


def forward_step(fed: Iterator[Inputs], model: Any) -> tuple[torch.Tensor, Any]:
    """One forward pass, and the function that makes a loss of what it gives back."""
    batch = next(fed)
    mask = batch["mask"]

    def loss_of(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss = (losses.float() * mask).sum() / mask.sum()
        return loss, {"loss": loss.detach().clone()}

    return model(batch["tokens"], batch["positions"], None, labels=batch["labels"]), loss_of


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
        arguments.get("num_virtual_stages_per_pipeline_rank"),
        context_parallel_size=arguments["context_parallel_size"],
        expert_model_parallel_size=arguments["expert_model_parallel_size"],
        expert_tensor_parallel_size=arguments.get("expert_tensor_parallel_size"),
        order=f"tp-cp-ep-{'pp-dp' if arguments.get('use_tp_pp_dp_mapping') else 'dp-pp'}",
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
    from megatron.core.transformer.transformer_config import TransformerConfig

    known = {field.name for field in dataclasses.fields(TransformerConfig)}
    named = {_RENAMED.get(name, name): value for name, value in arguments.items()}
    named.pop("attention_backend", None)  # an enum there; without Transformer Engine nothing asks
    given = {name: value for name, value in named.items() if name in known}
    off = {field for name, field in _SWITCHED_OFF.items() if arguments.get(name)}
    given |= {name: name not in off for name in set(_SWITCHED_OFF.values()) & known}
    if arguments.get("position_embedding_type") != "rope":
        given["apply_rope_fusion"] = False
    given["bias_dropout_fusion"] = settings.accelerator != "cpu"
    if arguments.get("swiglu"):
        given |= {"gated_linear_unit": True, "activation_func": torch.nn.functional.silu}
    else:
        given["activation_func"] = gelu_tanh
        if given["bias_activation_fusion"]:  # which has the same formula, and knows F.gelu alone
            given["activation_func"] = torch.nn.functional.gelu
    n_chunks = arguments.get("num_virtual_stages_per_pipeline_rank")
    overlaps_sends = bool(n_chunks) and "no_overlap_p2p_communication" not in arguments
    given["cpu_offloading"] = "cpu_offloading_num_layers" in arguments
    dtype = beside("train").DTYPES[settings.precision]
    # Batched sends train wrongly between two stages with several chunks, without an error.
    return TransformerConfig(
        **given,
        virtual_pipeline_model_parallel_size=n_chunks,
        pipeline_dtype=dtype,
        params_dtype=dtype,
        overlap_p2p_comm=overlaps_sends,
        batch_p2p_comm=not overlaps_sends,
        deallocate_pipeline_outputs=True,
        use_cpu_initialization=settings.accelerator == "cpu",
    )


def gelu_tanh(inputs: torch.Tensor) -> torch.Tensor:
    """The approximation of GELU that GPT-2 was trained with, and that Megatron fuses."""
    return torch.nn.functional.gelu(inputs, approximate="tanh")


def make_chunks(config: Any, arguments: Arguments) -> list[Any]:
    """The chunks of the model that stand on this pipeline rank, with weights that mean nothing."""
    n_chunks = arguments.get("num_virtual_stages_per_pipeline_rank")
    if n_chunks is None:
        return [make_chunk(config, arguments, None)]
    return [make_chunk(config, arguments, number) for number in range(n_chunks)]


def make_chunk(config: Any, arguments: Arguments, number: int | None) -> Any:
    """One chunk; `number` is its own among those of its rank, None where it is alone."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_decoder_block_spec,
        get_gpt_layer_local_spec,
        get_gpt_layer_with_transformer_engine_spec,
    )
    from megatron.core.models.gpt.gpt_model import GPTModel

    shape = {
        "num_experts": arguments.get("num_experts"),
        "qk_layernorm": arguments.get("qk_layernorm", False),
    }
    if arguments.get("transformer_impl") == "local":
        layer = get_gpt_layer_local_spec(
            **shape, moe_grouped_gemm=False, normalization=arguments["normalization"]
        )
    elif arguments.get("num_experts"):
        of_chunk = {} if number is None else {"vp_stage": number}
        layer = get_gpt_decoder_block_spec(config, use_transformer_engine=True, **of_chunk)
    else:
        layer = get_gpt_layer_with_transformer_engine_spec(**shape)
    of_rank = {} if number is None else {"ignore_virtual": False, "vp_stage": number}
    return GPTModel(
        config,
        layer,
        padded_vocab(arguments),
        arguments["max_position_embeddings"],
        pre_process=parallel_state.is_pipeline_first_stage(**of_rank),
        post_process=parallel_state.is_pipeline_last_stage(**of_rank),
        share_embeddings_and_output_weights="untie_embeddings_and_output_weights" not in arguments,
        position_embedding_type=arguments["position_embedding_type"],
        rotary_base=arguments.get("rotary_base", 10_000),
        rope_scaling=arguments.get("use_rope_scaling", False),
        rope_scaling_factor=arguments.get("rope_scaling_factor", 8.0),
        seq_len_interpolation_factor=arguments.get("rotary_seq_len_interpolation_factor"),
        **({} if number is None else {"vp_stage": number}),
    )


def padded_vocab(arguments: Arguments) -> int:
    """Token ids with those that Megatron adds so that they divide.

    Source: NVIDIA/Megatron-LM, megatron/training/tokenizer/tokenizer.py, _vocab_size_with_padding.
    """
    multiple = PADDED_TO * arguments["tensor_model_parallel_size"]
    return int(math.ceil(arguments["vocab_size"] / multiple) * multiple)


def data_parallel_config(arguments: Arguments, settings: Any) -> Any:
    """Megatron's configuration of data parallelism."""
    from megatron.core.distributed import DistributedDataParallelConfig

    is_overlapped = arguments.get("overlap_grad_reduce", False)
    bucket = max(_BUCKET_PARAMS, _BUCKET_PARAMS_PER_RANK * settings.dp)
    return DistributedDataParallelConfig(
        # Megatron-LM forces it for bf16.
        grad_reduce_in_fp32=arguments.get("bf16", False),
        overlap_grad_reduce=is_overlapped,
        overlap_param_gather=arguments.get("overlap_param_gather", False),
        use_distributed_optimizer=arguments.get("use_distributed_optimizer", False),
        use_megatron_fsdp=arguments.get("use_megatron_fsdp", False),
        data_parallel_sharding_strategy=arguments.get(
            "data_parallel_sharding_strategy", "no_shard"
        ),
        fp8_param_gather=arguments.get("fp8_param_gather", False),
        check_for_nan_in_grad=False,  # the losses are looked at
        bucket_size=bucket if is_overlapped else None,
    )


def optimizer_config(arguments: Arguments, config: Any) -> Any:
    """Megatron's configuration of the optimizer."""
    from megatron.core.optimizer import OptimizerConfig

    known = {field.name for field in dataclasses.fields(OptimizerConfig)}
    given = {name: value for name, value in arguments.items() if name in known}
    return OptimizerConfig(**given, params_dtype=config.params_dtype)


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
    with torch.no_grad():
        for chunk in chunks:
            for name, parameter in chunk.named_parameters():
                if parameter.dim() < 2:
                    continue  # norms and biases start alike everywhere
                whole = global_name(chunk, name)
                is_deep = whole.endswith(("linear_proj.weight", "linear_fc2.weight"))
                seed = zlib.crc32(f"{arguments['seed']}/{whole}".encode())
                part = drawn(
                    parameter,
                    whole,
                    seed=seed,
                    std=deep_std if is_deep else std,
                    gated=arguments.get("swiglu", False),
                )
                parameter.copy_(part)


def global_name(chunk: Any, name: str) -> str:
    """A parameter's name in the whole model: layers and experts are numbered from 0 throughout."""
    from megatron.core import parallel_state

    parts = name.split(".")
    if "layers" in parts:
        at = parts.index("layers") + 1
        parts[at] = str(chunk.decoder.layers[int(parts[at])].layer_number - 1)
    if "local_experts" in parts:
        at = parts.index("local_experts") + 1
        experts = chunk.config.num_moe_experts
        per_rank = experts // parallel_state.get_expert_model_parallel_world_size()
        first = parallel_state.get_expert_model_parallel_rank() * per_rank
        parts[at] = str(first + int(parts[at]))
    whole = ".".join(parts)
    is_tied = chunk.share_embeddings_and_output_weights
    return "embedding.word_embeddings.weight" if is_tied and parts[0] == "output_layer" else whole


def drawn(parameter: Any, name: str, *, seed: int, std: float, gated: bool) -> torch.Tensor:
    """A rank's part of a tensor that is drawn whole; shape as of the parameter.

    Args:
        parameter: The part, as Megatron made it.
        name: The parameter's, in the whole model.
        seed: Of the whole tensor.
        std: Standard deviation of its numbers.
        gated: Whether MLPs have a gate, whose weights stand before those of the up projection.
    """
    from megatron.core import parallel_state

    n_parts, part = 1, 0
    if not getattr(parameter, "allreduce", True):  # an expert's
        n_parts = parallel_state.get_expert_tensor_parallel_world_size()
        part = parallel_state.get_expert_tensor_parallel_rank()
    elif getattr(parameter, "tensor_model_parallel", False):
        n_parts = parallel_state.get_tensor_model_parallel_world_size()
        part = parallel_state.get_tensor_model_parallel_rank()
    dim = parameter.partition_dim if n_parts > 1 else 0
    shape = list(parameter.shape)
    shape[dim] *= n_parts
    generator = torch.Generator().manual_seed(seed)
    whole = torch.empty(shape).normal_(0.0, std, generator=generator)
    if n_parts == 1:
        return whole
    is_gated = gated and name.endswith("linear_fc1.weight")
    halves = whole.chunk(2) if is_gated else (whole,)
    return torch.cat([half.chunk(n_parts, dim)[part] for half in halves])


# ---------------------------------------------------------------- the data


def batches(training: Training, *, order: int = 0) -> list[Iterator[Inputs]]:
    """Micro-batches for each chunk of this rank: those that `train.py` draws for its replica.

    Args:
        training: What is fed.
        order: As of `train.batches`.
    """
    from megatron.core import parallel_state

    replica = parallel_state.get_data_parallel_rank()
    full = beside("train").full

    def steps_applied() -> int:
        return training.steps_applied

    samples = [
        full(training.settings, replica, steps_applied, order=order) for _ in training.chunks
    ]
    return [map(inputs_of, each) for each in samples]


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
    return beside("train").Settings.of(
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


def read(name: str) -> dict[str, Any]:
    """A JSON file of this folder."""
    return dict(json.loads((HERE / name).read_text(encoding="utf-8")))


def main() -> None:
    """Train, and print what each step took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps")
    n_steps = parser.parse_args().steps
    data, arguments = read("settings.json"), read("megatron_args.json")
    settings = settings_of(data, arguments)
    if data["binds_cores"]:
        beside("train").bind_to_cores(settings)
    load_megatron(settings.accelerator)
    join_ranks()
    training = make_training(arguments, settings)
    began_s = time.perf_counter()
    for step, loss in zip(range(n_steps), steps(training), strict=False):
        loss_value = loss.item()  # waits for the device
        step_time_s = time.perf_counter() - began_s
        if dist.get_rank() == 0:
            print(f"step {step}  loss {loss_value:.4f}  {step_time_s:.4f} s", flush=True)
        began_s = time.perf_counter()
    dist.destroy_process_group()
    beside("train").leave()


if __name__ == "__main__":
    main()
