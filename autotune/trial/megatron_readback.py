"""Settings of a live Megatron, for comparison with those that were asked for.

Taken from what does the work: the groups of ranks, the chunks of the model, the optimizer, and the
samples that went through.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.tensor_parallel.layers import param_is_not_tensor_parallel_duplicate

from autotune.trial.scripts.train import DTYPES
from autotune.trial.scripts.train_megatron import optimizers_of, unwrapped

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def read_back(training: Any) -> dict[str, Any]:
    """Read what a `Training` trains with; every rank has to call it."""
    config, chunks = training.config, training.chunks
    of_data = chunks[0].ddp_config
    optimizers = optimizers_of(training)
    return {
        "tp": parallel_state.get_tensor_model_parallel_world_size(),
        "pp": parallel_state.get_pipeline_model_parallel_world_size(),
        "vp": len(chunks),
        "cp": parallel_state.get_context_parallel_world_size(),
        "ep": parallel_state.get_expert_model_parallel_world_size(),
        "dp": parallel_state.get_data_parallel_world_size(),
        "sequence_parallel": bool(config.sequence_parallel),
        "micro_batch": max(training.micro_batches, default=0),
        "grad_accum": len(training.micro_batches),
        "distributed_optimizer": all(isinstance(o, DistributedOptimizer) for o in optimizers),
        "etp": parallel_state.get_expert_tensor_parallel_world_size(),
        "order": _order(),
        "recompute_modules": "+".join(sorted(config.recompute_modules or ["core_attn"])),
        "overlap_p2p": bool(config.overlap_p2p_comm),
        "tp_comm_overlap": bool(config.tp_comm_overlap),
        "fsdp": of_data.data_parallel_sharding_strategy if of_data.use_megatron_fsdp else "none",
        "fsdp_double_buffer": bool(of_data.fsdp_double_buffer),
        "overlap_experts": bool(config.overlap_moe_expert_parallel_comm),
        "delay_weight_grads": bool(config.delay_wgrad_compute),
        "overlap_shared_experts": bool(config.moe_shared_expert_overlap),
        "adam_moments": _moments(optimizers[0].optimizer),
        "optimizer_offload": float(getattr(optimizers[0].optimizer, "offload_fraction", 0.0)),
        "optimizer_offload_overlap": bool(
            getattr(optimizers[0].optimizer, "overlap_cpu_optimizer_d2h_h2d", False)
        ),
        "activation_offload": config.cpu_offloading_num_layers if config.cpu_offloading else 0,
        "offload_modules": "+".join(getattr(config, "offload_modules", None) or ["none"]),
        "cuda_graphs": _graphs(training),
        "main_grads": "fp32" if of_data.grad_reduce_in_fp32 else "bf16",
        "nccl_ub": bool(getattr(of_data, "nccl_ub", False)),
        "fused_experts": bool(getattr(config, "use_transformer_engine_op_fuser", False)),
        "cp_kind": _cp_kind(config),
        "fp4": bool(getattr(config, "fp4", None)),
        "fp8": config.fp8 or "none",
        "fp8_recipe": config.fp8_recipe or "delayed",
        "fp8_param_gather": bool(config.fp8_param),
        "stage_layers": _of_stages(_n_layers(chunks)),
        "stages": _stages(chunks),
        "dense_layers": _dense_layers(chunks),
        "dispatcher": _dispatcher(config),
        "n_mtp_layers": _total(
            _n_mtp_layers(chunks), parallel_state.get_pipeline_model_parallel_group()
        ),
        "overlap_grad_reduce": bool(of_data.overlap_grad_reduce),
        "overlap_param_gather": bool(of_data.overlap_param_gather),
        "recompute": _recompute(config),
        "dtype": _DTYPE_NAMES[max(_parameters(chunks), key=torch.Tensor.numel).dtype],
        "n_layers": _total(_n_layers(chunks), parallel_state.get_pipeline_model_parallel_group()),
        "n_params": _n_params(chunks),
        "padded_vocab": unwrapped(chunks[0]).vocab_size,
        "optimizer": type(optimizers[0].optimizer).__name__,
    }


def _recompute(config: Any) -> str:
    """As the knob of that name says it."""
    if config.recompute_granularity != "full":
        return config.recompute_granularity or "none"
    is_block = config.recompute_method == "block"
    return f"block_{config.recompute_num_layers}" if is_block else "full"


def _graphs(training: Any) -> str:
    """Parts of a layer that CUDA graphs capture, as the knob of that name says them.

    Transformer Engine's graphs are captured by the training loop of a checkout; without one no
    graph is there, whatever the configuration says.
    """
    is_captured = getattr(training.config, "cuda_graph_impl", None) == "transformer_engine"
    if not is_captured or not getattr(training, "captures_graphs", False):
        return "none"
    scopes = training.config.cuda_graph_scope or ()
    return "+".join(getattr(scope, "name", str(scope)) for scope in scopes) or "none"


def _cp_kind(config: Any) -> str:
    """How context parallel ranks exchange keys and values; alike in all layers."""
    kind = getattr(config, "cp_comm_type", None) or "p2p"
    return str(kind if isinstance(kind, str) else kind[0])


def _moments(optimizer: Any) -> str:
    """Precision of Adam's first moments; fp32 where no step has made them."""
    moments_of_each = (
        state["exp_avg"] for state in optimizer.state.values() if "exp_avg" in state
    )
    dtype = next((moments.dtype for moments in moments_of_each), torch.float32)
    return _DTYPE_NAMES.get(dtype, str(dtype))


def _order() -> str:
    """Which is nearer to a rank: its stage's replicas, or the other stages of its pipeline."""
    ranks = dist.get_process_group_ranks(parallel_state.get_pipeline_model_parallel_group())
    inside = (
        parallel_state.get_tensor_model_parallel_world_size()
        * parallel_state.get_context_parallel_world_size()
    )
    are_near = len(ranks) > 1 and ranks[1] - ranks[0] == inside
    has_replicas = parallel_state.get_data_parallel_world_size() > 1
    return "tp-cp-ep-pp-dp" if are_near and has_replicas else "tp-cp-ep-dp-pp"


def _of_stages(number: int) -> list[int]:
    """A number of each stage of this rank's pipeline, in order."""
    group = parallel_state.get_pipeline_model_parallel_group()
    device = torch.cuda.current_device()
    of_rank = torch.tensor([number], dtype=torch.int64, device=device)
    found = [torch.zeros_like(of_rank) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, of_rank, group=group)
    return [int(of_stage) for of_stage in found]


def _stages(chunks: Sequence[Any]) -> str:
    """What each stage has, in the model's order: `Et|tt|tmL`, as Megatron writes a layout."""
    rows = [
        zip(
            *(
                _of_stages(count)
                for count in (
                    int(chunk.pre_process),
                    len(chunk.decoder.layers),
                    _n_mtp_layers([chunk]),
                    int(chunk.post_process),
                )
            ),
            strict=True,
        )
        for chunk in map(unwrapped, chunks)
    ]
    counts = (count for row in rows for count in row)
    return "|".join("E" * e + "t" * t + "m" * m + "L" * loss for e, t, m, loss in counts)


def _n_mtp_layers(chunks: Iterable[Any]) -> int:
    blocks = (getattr(unwrapped(chunk), "mtp", None) for chunk in chunks)
    return sum(len(block.layers) for block in blocks if block is not None)


def _dense_layers(chunks: Iterable[Any]) -> list[int]:
    """Layers of a mixture without experts, numbered from 0; none of a dense model."""
    layers = [layer for chunk in chunks for layer in unwrapped(chunk).decoder.layers]
    config = unwrapped(next(iter(chunks))).config
    device = torch.cuda.current_device()
    is_dense = torch.zeros(config.num_layers, dtype=torch.int64, device=device)
    for layer in layers:
        if config.num_moe_experts and not hasattr(layer.mlp, "router"):
            is_dense[layer.layer_number - 1] = 1
    dist.all_reduce(is_dense, group=parallel_state.get_pipeline_model_parallel_group())
    return [int(number) for number in is_dense.nonzero()]


def _dispatcher(config: Any) -> str:
    """What brings rows to experts, as the knob of that name says it; `none` in a dense model."""
    if not config.num_moe_experts:
        return "none"
    if config.moe_token_dispatcher_type != "flex":
        return str(config.moe_token_dispatcher_type)
    return str(getattr(config, "moe_flex_dispatcher_backend", None) or "deepep")


def _parameters(chunks: Iterable[Any]) -> list[torch.nn.Parameter]:
    return [parameter for chunk in chunks for parameter in chunk.parameters()]


def _n_layers(chunks: Iterable[Any]) -> int:
    """Transformer layers of this rank, with those that predict further tokens."""
    return sum(
        type(module).__name__ == "TransformerLayer"
        for chunk in chunks
        for module in chunk.modules()
    )


def _n_params(chunks: Iterable[Any]) -> int:
    """Elements of the whole model, each counted once, wherever they stand."""
    dense = experts = 0
    for parameter in _parameters(chunks):
        is_copy = getattr(parameter, "shared", False)  # tied, and another stage's
        if is_copy or not param_is_not_tensor_parallel_duplicate(parameter):
            continue
        if getattr(parameter, "allreduce", True):
            dense += parameter.numel()
        else:
            experts += parameter.numel()
    of_experts = parallel_state.get_expert_tensor_model_pipeline_parallel_group()
    return _total(dense, parallel_state.get_model_parallel_group()) + _total(experts, of_experts)


def _total(count: int, group: Any) -> int:
    counts = torch.tensor([count], dtype=torch.int64, device=torch.cuda.current_device())
    dist.all_reduce(counts, group=group)
    return int(counts)


def states(training: Any) -> dict[str, int]:
    """Bytes that this rank holds of weights, gradients and what its optimizer keeps."""
    weights = _parameters(training.chunks)
    gradients = [
        buffer.grad_data
        for chunk in training.chunks
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers)
    ]
    of_weights = {weight.untyped_storage().data_ptr() for weight in weights}
    tensors: list[torch.Tensor] = []
    for optimizer in optimizers_of(training):
        adam = optimizer.optimizer
        for group in adam.param_groups:
            # What lies in the memory of a weight is no copy of it.
            tensors += [
                p for p in group["params"] if p.untyped_storage().data_ptr() not in of_weights
            ]
        for state in adam.state.values():
            tensors += [value for value in state.values() if torch.is_tensor(value)]
    return {
        "params_bytes": _bytes(weights),
        "grads_bytes": _bytes(gradients),
        "optimizer_bytes": _bytes(tensors),
    }


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    unique = {(tensor.data_ptr(), tensor.numel()): tensor for tensor in tensors}
    return sum(tensor.numel() * tensor.element_size() for tensor in unique.values())
