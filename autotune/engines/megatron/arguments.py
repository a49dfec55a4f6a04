"""The arguments of a layout, as Megatron-LM's pretrain scripts take them: the one list of them.

A trial's own training script reads them, an export writes them as flags, and `check` compares a
user's with them. Names are those of the flags, without dashes before them and with underscores
between words; `True` stands for a flag that takes no value.

Source: NVIDIA/Megatron-LM, megatron/training/arguments.py (Megatron Core 0.14 to 0.16), and from
0.16 on the fields of its configuration classes, which keep the names.
"""

from collections.abc import Mapping

from autotune.cost.plans import Recompute
from autotune.devices.hardware import Environment
from autotune.engines.megatron.choices import (
    BALANCED,
    CP_KINDS,
    DISPATCHERS,
    FLEX,
    FP8,
    FP8_RECIPES,
    FSDP,
    GRAPHS,
    LAYOUTS,
    MOMENTS,
    OFFLOADED,
    RECOMPUTED,
)
from autotune.engines.megatron.knobs import KNOBS, value_of
from autotune.engines.megatron.model_arguments import Arguments, model_arguments
from autotune.engines.megatron.stages import (
    balanced_layers,
    layers_in,
    stages_of,
    work_of,
    written,
)
from autotune.job.job import Job
from autotune.job.model import Model
from autotune.job.model_shape import ModelShape

_WITHOUT_TRANSFORMER_ENGINE: Arguments = {
    "transformer_impl": "local",
    "attention_backend": "unfused",
    "no_persist_layer_norm": True,
    "no_rope_fusion": True,
}
"""Arguments without which Megatron asks for Transformer Engine.

Source: NVIDIA/Megatron-LM, megatron/core: transformer/transformer_config.py,
transformer/torch_norm.py, models/common/embeddings/rope_utils.py."""
_WITHOUT_APEX: Arguments = {
    "no_gradient_accumulation_fusion": True,
    "no_masked_softmax_fusion": True,
}
"""Arguments without which Megatron asks for the kernels of Apex.

Source: NVIDIA/Megatron-LM, megatron/core: tensor_parallel/layers.py, fusions/fused_softmax.py."""
ON_CPU: Arguments = {
    **_WITHOUT_TRANSFORMER_ENGINE,
    **_WITHOUT_APEX,
    "no_bias_swiglu_fusion": True,
    "no_bias_gelu_fusion": True,
}
"""Arguments without which Megatron asks for kernels that only a GPU has."""
SCRIPT_ON_CPU: Arguments = {"num_workers": 0}
"""Arguments of a checkout's own script besides: processes that load data would take the cores of
the ranks."""
KNOBS_OF = {
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "num_virtual_stages_per_pipeline_rank": "vp",
    "pipeline_model_parallel_layout": "stages",
    "account_for_embedding_in_pipeline_split": "ends_as_layers",
    "account_for_loss_in_pipeline_split": "ends_as_layers",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "sequence_parallel": "sequence_parallel",
    "micro_batch_size": "micro_batch",
    "use_distributed_optimizer": "distributed_optimizer",
    "overlap_grad_reduce": "overlap_grad_reduce",
    "overlap_param_gather": "overlap_param_gather",
    "no_overlap_p2p_communication": "overlap_p2p",
    "tp_comm_overlap": "tp_comm_overlap",
    "moe_token_dispatcher_type": "dispatcher",
    "moe_enable_deepep": "dispatcher",
    "moe_flex_dispatcher_backend": "dispatcher",
    "overlap_moe_expert_parallel_comm": "overlap_experts",
    "delay_wgrad_compute": "delay_weight_grads",
    "moe_shared_expert_overlap": "overlap_shared_experts",
    "use_megatron_fsdp": "fsdp",
    "data_parallel_sharding_strategy": "fsdp",
    "expert_tensor_parallel_size": "etp",
    "decoder_first_pipeline_num_layers": "first_stage_layers",
    "decoder_last_pipeline_num_layers": "last_stage_layers",
    "use_tp_pp_dp_mapping": "order",
    "optimizer_cpu_offload": "optimizer_offload",
    "optimizer_offload_fraction": "optimizer_offload",
    "use_precision_aware_optimizer": "optimizer_offload",
    "overlap_cpu_optimizer_d2h_h2d": "optimizer_offload_overlap",
    "cpu_offloading_num_layers": "activation_offload",
    "fine_grained_activation_offloading": "offload_modules",
    "offload_modules": "offload_modules",
    "recompute_modules": "recompute_modules",
    "exp_avg_dtype": "adam_moments",
    "exp_avg_sq_dtype": "adam_moments",
    "grad_reduce_in_bf16": "main_grads",
    "use_nccl_ub": "nccl_ub",
    "use_transformer_engine_op_fuser": "fused_experts",
    "moe_mlp_glu_interleave_size": "fused_experts",
    "cp_comm_type": "cp_kind",
    "fsdp_double_buffer": "fsdp_double_buffer",
    "cuda_graph_impl": "cuda_graphs",
    "cuda_graph_scope": "cuda_graphs",
    "te_rng_tracker": "cuda_graphs",
    "fp4_format": "fp4",
    "fp8_format": "fp8",
    "fp8_recipe": "fp8_recipe",
    "fp8_param_gather": "fp8_param_gather",
    "recompute_granularity": "recompute",
    "recompute_method": "recompute",
    "recompute_num_layers": "recompute",
}
"""Argument -> the knob that it follows from."""
DECIDED = frozenset(
    {
        *KNOBS_OF,
        *("num_layers_per_virtual_pipeline_stage", "recompute_activations"),
        *("global_batch_size", "seq_length"),
        *("fp16", "bf16", "num_layers", "hidden_size", "num_attention_heads"),
        *("train_iters", "train_samples", "log_interval", "eval_iters", "eval_interval"),
        *("save", "load", "tensorboard_dir", "wandb_project"),
    }
)
"""Arguments that no user adds: those of the knobs, of the job, and of how a trial measures."""

_TORCH_ADAM = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
"""Defaults of torch.optim.AdamW, which a job's optimizer leaves out."""
CLIP_GRAD = 1.0


_FUSED_EXPERTS: Arguments = {
    "moe_grouped_gemm": True,
    "moe_permute_fusion": True,
    "moe_router_fusion": True,
}
"""Kernels of Transformer Engine for mixtures of experts, which Megatron leaves off by default.

Source: NVIDIA/Megatron-LM, megatron/core/transformer/moe/README.md; the router's asks for
Transformer Engine 2.6, the permutation's for 2.1."""


def expert_kernels(environment: Environment, model: Model) -> Arguments:
    """What a mixture of experts is told where Transformer Engine has kernels for it."""
    has_te = environment.accelerator != "cpu" and environment.has_transformer_engine
    return dict(_FUSED_EXPERTS) if has_te and model.shape.n_experts > 1 else {}


def kernel_arguments(environment: Environment) -> Arguments:
    """What Megatron is told where kernels that it asks for by default are not there."""
    if environment.accelerator == "cpu":
        return dict(ON_CPU)
    found: Arguments = {}
    if not environment.has_transformer_engine:
        found |= _WITHOUT_TRANSFORMER_ENGINE
    if not environment.has_apex:
        found |= _WITHOUT_APEX
    return found


def arguments_of(row: Mapping[str, int], job: Job, *, layers: int | None = None) -> Arguments:
    """The arguments of a layout for a job.

    Args:
        row: The layout's columns (`autotune.engines.megatron.layouts.Layouts.row`).
        job: What is trained.
        layers: Layers of the model; None: all of them.

    Raises:
        JobError: Megatron's GPT model cannot be the job's model.
    """
    return {
        **model_arguments(job.model_with(layers), job.seq_len),
        **layout_arguments(row, job, layers=layers),
        **optimizer_arguments(job),
        **seed_arguments(job),
    }


def layout_arguments(row: Mapping[str, int], job: Job, *, layers: int | None = None) -> Arguments:
    """How the ranks share the work, the batch, the precision, recomputation and overlap.

    Arguments as of `arguments_of`.
    """
    shape = job.model_with(layers).shape
    found: Arguments = {
        "tensor_model_parallel_size": row["tp"],
        "pipeline_model_parallel_size": row["pp"],
        "context_parallel_size": row["cp"],
        "expert_model_parallel_size": row["ep"],
        "micro_batch_size": row["micro_batch"],
        "global_batch_size": job.global_batch,
        "seq_length": job.seq_len,
    }
    if row["stages"]:
        found["pipeline_model_parallel_layout"] = _placement(row, shape, job.seq_len)
    elif row["vp"] > 1:
        found["num_virtual_stages_per_pipeline_rank"] = row["vp"]
    if row["ends_as_layers"]:
        found["account_for_embedding_in_pipeline_split"] = True
        found["account_for_loss_in_pipeline_split"] = True
    if row["sequence_parallel"]:
        found["sequence_parallel"] = True
    found |= _recompute(row)
    if not row["overlap_grad_reduce"]:  # 0 is the default of a knob, which is on here
        found["overlap_grad_reduce"] = True
    if row["distributed_optimizer"]:
        found["use_distributed_optimizer"] = True
        if not row["overlap_param_gather"]:
            found["overlap_param_gather"] = True
    if shape.n_experts > 1:
        found |= _experts(row)
    found |= _more_of_layout(row) | _sharding(row) | _offload(row) | _fp8(row)
    if job.precision != "fp32":
        found[job.precision] = True
    return found


def _placement(row: Mapping[str, int], shape: ModelShape, seq_len: int) -> str:
    """Which layers a stage has, in Megatron's words; a reduced model's are balanced."""
    text = LAYOUTS.text(row["stages"])
    stages = stages_of(text) if row["stages"] != BALANCED else None
    if stages is not None and sum(layers_in(stages)) == shape.n_layers:
        return text
    counts = balanced_layers(work_of(shape, seq_len), row["pp"], row["vp"])
    return written(counts, shape.n_mtp_layers)


def _experts(row: Mapping[str, int]) -> Arguments:
    kind = DISPATCHERS[row["dispatcher"]]
    found: Arguments = {"moe_token_dispatcher_type": kind}
    if row["dispatcher"] in FLEX:
        found = {"moe_token_dispatcher_type": "flex", "moe_router_dtype": "fp32"}
        # Every release has this flag; the backend's came with 0.16.
        found |= (
            {"moe_enable_deepep": True}
            if kind == "deepep"
            else {"moe_flex_dispatcher_backend": kind}
        )
    if row["overlap_experts"]:
        found["overlap_moe_expert_parallel_comm"] = True
    if row["delay_weight_grads"]:
        found["delay_wgrad_compute"] = True
    if row["overlap_shared_experts"]:
        found["moe_shared_expert_overlap"] = True
    if row["fused_experts"]:
        # The kernel wants gates and linear units in turn, blocks of so many.
        found |= {"use_transformer_engine_op_fuser": True, "moe_mlp_glu_interleave_size": 32}
    return found


def _more_of_layout(row: Mapping[str, int]) -> Arguments:
    found: Arguments = {}
    for end in ("first", "last"):
        if layers := row[f"{end}_stage_layers"]:
            found[f"decoder_{end}_pipeline_num_layers"] = layers
    if row["etp"]:
        found["expert_tensor_parallel_size"] = row["etp"]
    if row["order"]:
        found["use_tp_pp_dp_mapping"] = True
    if row["overlap_p2p"]:
        found["no_overlap_p2p_communication"] = True
    if row["tp_comm_overlap"]:
        found["tp_comm_overlap"] = True
    if row["main_grads"]:
        found["grad_reduce_in_bf16"] = True
    if row["nccl_ub"]:
        found["use_nccl_ub"] = True
    if row["cp_kind"]:
        found["cp_comm_type"] = CP_KINDS[row["cp_kind"]]
    if row["cuda_graphs"]:
        found["cuda_graph_impl"] = "transformer_engine"
        found["cuda_graph_scope"] = GRAPHS[row["cuda_graphs"]].split("+")
        # The default tracker of random states cannot be captured.
        found["te_rng_tracker"] = True
    return found


def _sharding(row: Mapping[str, int]) -> Arguments:
    if not row["fsdp"]:
        return {}
    doubled = {"fsdp_double_buffer": True} if row["fsdp_double_buffer"] else {}
    return {
        **doubled,
        "use_megatron_fsdp": True,
        "data_parallel_sharding_strategy": FSDP[row["fsdp"]],
        # What Megatron asks for beside it, whether or not anything is saved.
        "ckpt_format": "fsdp_dtensor",
    }


def _offload(row: Mapping[str, int]) -> Arguments:
    found: Arguments = {}
    if row["optimizer_offload"]:
        found |= {
            "optimizer_cpu_offload": True,
            "optimizer_offload_fraction": _value("optimizer_offload", row),
            "use_precision_aware_optimizer": True,
        }
    if row["adam_moments"]:
        kind = MOMENTS[row["adam_moments"]]
        found["use_precision_aware_optimizer"] = True
        found |= {"exp_avg_dtype": kind, "exp_avg_sq_dtype": kind}
    if row["optimizer_offload_overlap"]:
        found["overlap_cpu_optimizer_d2h_h2d"] = True
    if row["activation_offload"]:
        found["cpu_offloading_num_layers"] = row["activation_offload"]
    if row["offload_modules"]:
        found["fine_grained_activation_offloading"] = True
        found["offload_modules"] = OFFLOADED[row["offload_modules"]].split("+")
    return found


def _fp8(row: Mapping[str, int]) -> Arguments:
    if row["fp4"]:
        return {"fp4_format": "e2m1"}
    if not row["fp8"]:
        return {}
    found: Arguments = {
        "fp8_format": FP8[row["fp8"]],
        "fp8_recipe": FP8_RECIPES[row["fp8_recipe"]],
    }
    if row["fp8_param_gather"]:
        found["fp8_param_gather"] = True
    return found


def _value(name: str, row: Mapping[str, int]) -> float:
    return float(value_of(KNOBS[name], row[name]))


def _recompute(row: Mapping[str, int]) -> Arguments:
    if row["recompute"] == Recompute.SELECTIVE:
        found: Arguments = {"recompute_granularity": "selective"}
        if row["recompute_modules"]:
            found["recompute_modules"] = RECOMPUTED[row["recompute_modules"]].split("+")
        return found
    if row["recompute"] != Recompute.FULL:
        return {}
    return {
        "recompute_granularity": "full",
        "recompute_method": "block" if row["recompute_layers"] else "uniform",
        "recompute_num_layers": row["recompute_layers"] or 1,
    }


def optimizer_arguments(job: Job) -> Arguments:
    """Adam with the job's settings, at one learning rate."""
    params = {**_TORCH_ADAM, **job.optimizer.get("params", {})}
    beta_1, beta_2 = params["betas"]
    return {
        "optimizer": "adam",
        "lr": params["lr"],
        "lr_decay_style": "constant",
        "weight_decay": params["weight_decay"],
        "adam_beta1": beta_1,
        "adam_beta2": beta_2,
        "adam_eps": params["eps"],
        "clip_grad": CLIP_GRAD,
    }


def seed_arguments(job: Job) -> Arguments:
    """The seed of weights and data."""
    return {"seed": job.seed or 1}  # Megatron wants one above 0
