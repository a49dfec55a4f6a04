"""Settings of the live engine, for comparison with those that were asked for.

Taken from the objects that do the work (the optimizer wrapper, process groups, parameters, split
layers), because DeepSpeed's configuration classes accept most settings that it then ignores. Only
what no object holds (the micro-batch) is asked of the engine's configuration.
"""

import contextlib
from collections.abc import Iterable
from typing import Any

import deepspeed.comm as dist
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.module_inject.layers import TensorParallel_Layer
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.pipe.module import PipelineModule
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from deepspeed.utils import groups

from autotune.trial.scripts.train import DTYPES

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def read_back(engine: Any, asked: Iterable[str]) -> dict[str, Any]:
    """Read the configuration that a live DeepSpeed engine trains with.

    Names asked for are also looked for among the attributes of ZeRO's optimizer.

    Returns:
        By name; sizes are in elements. A name that means nothing at the engine's stage is absent.
    """
    optimizer, stage = engine.optimizer, _stage(engine)
    accum = engine.gradient_accumulation_steps()
    if isinstance(engine.module, PipelineModule):
        layout = _read_pipeline(engine)
    else:
        layout = {
            "tp": _tp(engine.module),
            "pp": 1,
            "n_params": _n_params(engine.module, trained=True),
            "n_params_frozen": _n_params(engine.module, trained=False),
            "recomputed_layers": recomputed_layers(engine.module),
            "mlp_chunk_tokens": max(
                (getattr(m, "chunk_tokens", 0) for m in engine.module.modules()), default=0
            ),
        }
    found = layout | {
        "stage": stage,
        "micro_batch": engine.train_micro_batch_size_per_gpu(),
        "grad_accum": getattr(optimizer, "gradient_accumulation_steps", accum),
        "dp": dist.get_world_size(group=engine.seq_data_parallel_group) // _sp(engine),
        "sp": _sp(engine),
        "ep": _ep(engine.module),
        # Of the parameter with the most elements: norms may be kept in fp32.
        "dtype": _dtype_name(max(engine.module.parameters(), key=numel).dtype),
        # Without a wrapper (fp32 at stage 0) the engine clips by itself, by its configuration.
        "gradient_clipping": float(getattr(optimizer, "clip_grad", engine.gradient_clipping())),
        "communication_dtype": _dtype_name(
            getattr(optimizer, "communication_data_type", engine.communication_data_type)
        ),
        "compiled": bool(engine.is_compiled),
        "loss_chunk_tokens": getattr(engine.module.forward, "chunk_tokens", 0),
        "offload_activations": _inputs_place(engine),
        "tp_overlap_comm": TensorParallel_Layer.tp_overlap_comm,
        "head_is_split": any(
            getattr(m, "is_vocab_parallel_lm_head", False) for m in engine.module.modules()
        ),
        "optimizer": type(engine.basic_optimizer).__name__,
        "optimizer_fused": any(
            group.get("fused") for group in getattr(engine.basic_optimizer, "param_groups", ())
        ),
        "optimizer_wrapper": type(optimizer).__name__,
    }
    if (config := getattr(engine.module, "config", None)) is not None:
        found["attention"] = getattr(config, "_attn_implementation", None)
    if getattr(engine, "zenflow", False):
        found |= {
            "zenflow": "overlap" if engine.overlap_step else "sequential",
            "zenflow_topk_ratio": optimizer.topk_ratio,
            "zenflow_select_interval": engine.select_interval // engine.update_interval,
        }
    if isinstance(optimizer, BF16_Optimizer):
        found["grad_accum_dtype"] = _dtype_name(optimizer.grad_acc_dtype)
    if isinstance(optimizer, DeepSpeedZeroOptimizer):
        found |= _read_stage_1_and_2(optimizer)
    elif isinstance(optimizer, DeepSpeedZeroOptimizer_Stage3):
        found |= _read_stage_3(engine, optimizer)
    else:
        return found
    held = {name: getattr(optimizer, name, None) for name in asked}
    return {n: v for n, v in held.items() if isinstance(v, bool | int | float | str)} | found


def _inputs_place(engine: Any) -> str:
    """Where the training script lets inputs of recomputed layers wait."""
    context = getattr(engine, "inputs_on_host", contextlib.nullcontext())
    return "none" if isinstance(context, contextlib.nullcontext) else "cpu"


def _read_pipeline(engine: Any) -> dict[str, Any]:
    """Combine what stands on several stages and slices; every rank has to call it."""
    module, grid = engine.module, engine.grid
    counts = {True: 0, False: 0}
    for parameter in module.parameters():
        is_whole = not getattr(parameter, "tensor_model_parallel", False)
        is_copy = getattr(parameter, "ds_pipe_replicated", False)  # tied, and another stage's
        if not is_copy and not (is_whole and grid.get_slice_parallel_rank() > 0):
            counts[parameter.requires_grad] += parameter.numel()
    device = get_accelerator().current_device_name()
    n_params = torch.tensor([counts[True], counts[False]], device=device)
    tp = torch.tensor(_tp(module), device=device)  # a stage of embeddings alone splits nothing
    group = grid.get_model_parallel_group()
    dist.all_reduce(n_params, group=group)
    dist.all_reduce(tp, op=dist.ReduceOp.MAX, group=group)
    return {
        "tp": int(tp),
        "pp": module.num_stages,
        "n_params": int(n_params[0]),
        "n_params_frozen": int(n_params[1]),
        "recompute_interval": module.activation_checkpoint_interval,
    }


def recomputed_layers(module: torch.nn.Module) -> int:
    """How many layers of a module recompute their activations (Hugging Face's switch is on)."""
    layers = (
        layer
        for parent in module.modules()
        if isinstance(parent, torch.nn.ModuleList)
        for layer in parent
    )
    return sum(bool(getattr(layer, "gradient_checkpointing", False)) for layer in layers)


def _stage(engine: Any) -> int:
    optimizer = engine.optimizer
    if isinstance(optimizer, DeepSpeedZeroOptimizer_Stage3):
        return 3
    if isinstance(optimizer, DeepSpeedZeroOptimizer):
        return 2 if optimizer.partition_gradients else 1
    if isinstance(optimizer, BF16_Optimizer):  # shards the optimizer states, and says stage 1
        return 1
    return 0


def _tp(module: torch.nn.Module) -> int:
    """Largest group over which a layer is really split; AutoTP may find nothing to split."""
    layers = (m for m in module.modules() if isinstance(m, TensorParallel_Layer))
    return max((m.tp_world_size for m in layers if m.mp_group is not None), default=1)


def _sp(engine: Any) -> int:
    """Ranks of the group that shares each sample, as gradients are scaled by it."""
    if engine.sequence_parallel_size == 1:
        return 1
    return int(dist.get_world_size(group=engine.seq_parallel_group))


def _ep(module: torch.nn.Module) -> int:
    """Ranks of the group over which the experts of a layer are spread."""
    spread = [m.ep_group for m in module.modules() if getattr(m, "ep_group", None) is not None]
    return max((dist.get_world_size(group=group) for group in spread), default=1)


def numel(parameter: torch.nn.Parameter) -> int:
    """Elements of a whole parameter."""
    # At stage 3 `numel()` is that of the empty placeholder.
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def _n_params(module: torch.nn.Module, *, trained: bool) -> int:
    """Elements that are trained or frozen, a shared tensor counted once; of one rank if split."""
    return sum(numel(p) for p in module.parameters() if p.requires_grad is trained)


def _read_stage_1_and_2(optimizer: DeepSpeedZeroOptimizer) -> dict[str, Any]:
    masters = optimizer.single_partition_of_fp32_groups
    held = {tensor.device.type for tensor in masters}
    return _read_dtypes(optimizer, masters) | {
        "offload_optimizer": _device(optimizer.cpu_offload and held == {"cpu"}),
    }


def _read_stage_3(engine: Any, optimizer: DeepSpeedZeroOptimizer_Stage3) -> dict[str, Any]:
    parameters = optimizer.parameter_offload
    coordinator = parameters.get_param_coordinator()
    # Both values are private to the coordinator, which is what prefetches and releases.
    private = {name.rpartition("__")[2]: value for name, value in vars(coordinator).items()}
    masters = optimizer.fp32_partitioned_groups_flat
    return (
        _read_dtypes(optimizer, masters)
        | _read_swapping(engine, optimizer)
        | {
            "max_reuse_distance": private["max_reuse_dist_in_numel"],
            "n_sub_groups": len(optimizer.fp16_groups),
            "hpz_partition_size": _hpz_partition_size(),
            "quantized_weights": bool(private["zero_quantized_weights"]),
            "quantized_gradients": optimizer.all2all_process_group is not None,
            "super_offload": "SuperOffload" in type(optimizer).__name__,
            "offload_optimizer": _offload(optimizer.offload_optimizer, optimizer.swap_optimizer),
            "offload_param": _offload(
                parameters.offload_device is not None, optimizer.params_in_nvme_and_cpu
            ),
            "overlap_comm": _overlaps(engine, optimizer),
            "prefetch_bucket_size": private["prefetch_bucket_sz"],
            "max_live_parameters": private["max_n_available_params"],
            "param_persistence_threshold": parameters.param_numel_persistence_threshold,
            "n_persistent_params": len(optimizer.persistent_parameters),
        }
    )


def _read_dtypes(optimizer: Any, masters: list[torch.Tensor]) -> dict[str, Any]:
    return {
        "grad_accum_dtype": _dtype_name(optimizer.gradient_accumulation_dtype),
        "master_dtype": _dtype_name(masters[0].dtype),
        "optimizer_states_dtype": _states_dtype(optimizer),
    }


def _states_dtype(optimizer: Any) -> str:
    """Type of the optimizer's moments, or the type they will have (after a skipped step)."""
    states = optimizer.optimizer.state.values()
    moments = [state["exp_avg"] for state in states if "exp_avg" in state]
    if moments:
        return _dtype_name(moments[0].dtype)
    return "bf16" if getattr(optimizer, "bf16_optimizer_states", False) else "fp32"


def _read_swapping(engine: Any, optimizer: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if optimizer.offload_optimizer:
        found["offload_ratio"] = optimizer.partial_offload
    if (swapper := optimizer.optimizer_swapper) is not None:
        reads, writes = (getattr(swapper, f"async_swap_{way}", False) for way in ("in", "out"))
        found["offload_pipeline"] = _PIPELINES[bool(reads) + 2 * bool(writes)]
    swappers = (getattr(p, "nvme_swapper", None) for p in engine.module.parameters())
    if (param_swapper := next((s for s in swappers if s is not None), None)) is not None:
        found["offload_param_max_in_cpu"] = optimizer.max_params_in_cpu
        found["offload_param_buffer_count"] = param_swapper.param_buffer_count
        found["offload_param_buffer_size"] = param_swapper.elements_per_buffer
    return found


_PIPELINES = ("none", "read", "write", "both")


def _hpz_partition_size() -> int:
    """Ranks of the group that holds a second copy of the parameters; 1: there is none."""
    group = groups._get_zero_param_intra_parallel_group()
    return 1 if group is None else int(dist.get_world_size(group=group))


def _overlaps(engine: Any, optimizer: DeepSpeedZeroOptimizer_Stage3) -> bool:
    stream = optimizer.reduce_and_partition_stream
    if stream is None:  # a device without streams, such as the CPU, overlaps nothing either way
        return bool(engine.zero_overlap_comm())
    return bool(stream != get_accelerator().default_stream())


def _offload(is_offloaded: bool, is_swapped: bool) -> str:
    return "nvme" if is_swapped else _device(is_offloaded)


def _device(is_offloaded: bool) -> str:
    return "cpu" if is_offloaded else "none"


def _dtype_name(dtype: torch.dtype) -> str:
    return _DTYPE_NAMES.get(dtype, str(dtype))
