"""The arguments of a layout, as Megatron-LM's pretrain scripts take them: the one list of them.

A trial's own training script reads them, an export writes them as flags, and `check` compares a
user's with them. Names are those of the flags, without dashes before them and with underscores
between words; `True` stands for a flag that takes no value.

Source: NVIDIA/Megatron-LM, megatron/training/arguments.py (Megatron Core 0.14 to 0.16), and from
0.16 on the fields of its configuration classes, which keep the names.
"""

from collections.abc import Mapping
from typing import Any

from autotune.base.errors import JobError
from autotune.cost.plans import Recompute
from autotune.devices.hardware import Environment
from autotune.engines.megatron.choices import FP8, FP8_RECIPES, FSDP, OFFLOADED, RECOMPUTED
from autotune.engines.megatron.knobs import KNOBS, value_of
from autotune.job.job import Job
from autotune.job.model import Model
from autotune.trial.transformer_shape import NoPipelineError, shape_of

Arguments = dict[str, int | float | str | bool | list[str]]

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

_LLAMA_3_SCALING = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""What Megatron's `--use-rope-scaling` is fixed to.

Source: NVIDIA/Megatron-LM, megatron/core/models/common/embeddings/rotary_pos_embedding.py."""
_TORCH_ADAM = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
"""Defaults of torch.optim.AdamW, which a job's optimizer leaves out."""
CLIP_GRAD = 1.0


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
        **layout_arguments(row, job),
        **model_arguments(job.model_with(layers), job.seq_len),
        **optimizer_arguments(job),
        **seed_arguments(job),
    }


def layout_arguments(row: Mapping[str, int], job: Job) -> Arguments:
    """How the ranks share the work, the batch, the precision, recomputation and overlap."""
    found: Arguments = {
        "tensor_model_parallel_size": row["tp"],
        "pipeline_model_parallel_size": row["pp"],
        "context_parallel_size": row["cp"],
        "expert_model_parallel_size": row["ep"],
        "micro_batch_size": row["micro_batch"],
        "global_batch_size": job.global_batch,
        "seq_length": job.seq_len,
    }
    if row["vp"] > 1:
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
    found |= _more_of_layout(row) | _sharding(row) | _offload(row) | _fp8(row)
    if job.precision != "fp32":
        found[job.precision] = True
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
    return found


def _sharding(row: Mapping[str, int]) -> Arguments:
    if not row["fsdp"]:
        return {}
    return {
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
    if row["optimizer_offload_overlap"]:
        found["overlap_cpu_optimizer_d2h_h2d"] = True
    if row["activation_offload"]:
        found["cpu_offloading_num_layers"] = row["activation_offload"]
    if row["offload_modules"]:
        found["fine_grained_activation_offloading"] = True
        found["offload_modules"] = OFFLOADED[row["offload_modules"]].split("+")
    return found


def _fp8(row: Mapping[str, int]) -> Arguments:
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


def model_arguments(model: Model, seq_len: int) -> Arguments:
    """The model's sizes; `vocab_size` is the number of its token ids, before any padding.

    Raises:
        JobError: Megatron's GPT model cannot be this one.
    """
    shape = _shape(model, seq_len)
    found: Arguments = {
        "num_layers": shape["n_layers"],
        "hidden_size": shape["hidden"],
        "ffn_hidden_size": shape["ffn_hidden"],
        "num_attention_heads": shape["n_heads"],
    }
    if shape["n_kv_heads"] != shape["n_heads"]:
        found["group_query_attention"] = True
        found["num_query_groups"] = shape["n_kv_heads"]
    if shape["head_dim"] * shape["n_heads"] != shape["hidden"]:
        found["kv_channels"] = shape["head_dim"]
    found["max_position_embeddings"] = shape["n_positions"] or seq_len
    found |= _positions(model, shape)
    found["normalization"] = "RMSNorm" if shape["norm"] == "rms" else "LayerNorm"
    found["norm_epsilon"] = shape["norm_eps"]
    found |= _layers(model, shape)
    if not shape["tied_embeddings"]:
        found["untie_embeddings_and_output_weights"] = True
    found["vocab_size"] = shape["vocab"]
    found["attention_dropout"] = shape["attention_dropout"]
    found["hidden_dropout"] = shape.get("residual_dropout", 0.0)
    found["init_method_std"] = shape["init_std"]
    return found | _experts(model)


def has_layer_norm(model: Model, seq_len: int) -> bool:
    """Whether the norms of a model are LayerNorm, and none of RMS.

    Raises:
        JobError: Megatron's GPT model cannot be this one.
    """
    return bool(_shape(model, seq_len)["norm"] != "rms")


def _shape(model: Model, seq_len: int) -> dict[str, Any]:
    """Sizes as of `shape_of`; a mixture of experts has those of the dense model beside them."""
    config = model.source.get("config", {})
    source = dict(model.source)
    if config.get("model_type") == "mixtral":
        source["config"] = {**config, "model_type": "mistral"}
    try:
        return shape_of(source, seq_len)
    except NoPipelineError as error:
        raise _cannot_be(model, str(error)) from error


def _positions(model: Model, shape: Mapping[str, Any]) -> Arguments:
    if "rotary" not in shape:
        return {"position_embedding_type": "learned_absolute"}
    rotary = shape["rotary"]
    theta = int(rotary["theta"])
    found: Arguments = {"position_embedding_type": "rope", "rotary_base": theta}
    if rotary["kind"] == "linear":
        found["rotary_seq_len_interpolation_factor"] = int(rotary["factor"])
    elif rotary["kind"] == "llama3":
        other = {k: rotary[k] for k, v in _LLAMA_3_SCALING.items() if rotary[k] != v}
        if other:
            raise _cannot_be(model, f"its rotary scaling has {other}, Megatron's is fixed")
        found["use_rope_scaling"] = True
        found["rope_scaling_factor"] = rotary["factor"]
    return found


def _layers(model: Model, shape: Mapping[str, Any]) -> Arguments:
    """Activation, biases and the norms of queries and keys."""
    found: Arguments = {}
    if shape["gated_mlp"]:
        if shape["activation"] != "silu":
            raise _cannot_be(model, f"its gated MLP has {shape['activation']}, Megatron's silu")
        found["swiglu"] = True
    elif not shape["activation"].startswith("gelu"):
        raise _cannot_be(model, f"its MLP has {shape['activation']}, Megatron's gelu")
    biases = {shape["output_bias"], shape["mlp_bias"]}
    if len(biases) > 1:
        raise _cannot_be(model, "its attention has biases where its MLP has none")
    if biases == {False}:
        found["disable_bias_linear"] = True
        if shape["qkv_bias"]:
            found["add_qkv_bias"] = True
    if shape["qk_norm"]:
        found["qk_layernorm"] = True
    return found


def _experts(model: Model) -> Arguments:
    if model.shape.n_experts < 2:
        return {}
    return {
        "num_experts": model.shape.n_experts,
        "moe_router_topk": model.shape.experts_per_token,
        # What the cost model counts; the default gathers all tokens instead.
        "moe_token_dispatcher_type": "alltoall",
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": 0.0,
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


def _cannot_be(model: Model, why: str) -> JobError:
    return JobError(
        f"engine megatron: model {model.name!r}: {why}",
        "name a GPT-2, Llama, Mistral, Mixtral or Qwen model, or use --engine deepspeed",
    )
