"""The arguments of a layout, as Megatron-LM's pretrain scripts take them: the one list of them.

A trial's own training script reads them, an export writes them as flags, and `check` compares a
user's with them. Names are those of the flags, without dashes before them and with underscores
between words; `True` stands for a flag that takes no value.

Source: NVIDIA/Megatron-LM, megatron/training/arguments.py (Megatron Core 0.14 to 0.16), and from
0.16 on the fields of its configuration classes, which keep the names.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

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
Row = Mapping[str, int]
"""A layout's columns, and `n_experts` of its model."""


class Carried(NamedTuple):
    """How an argument follows from a layout."""

    knob: str
    """The knob that decides it; empty: it comes with another argument."""
    value: Callable[[Row], Any]
    """Its value; nothing, 0 or False: it is left out."""
    kind: Literal["number", "switch", "other"] = "other"
    """Whether it is the knob's number, or on where the knob is."""


def _number(knob: str) -> Carried:
    return Carried(knob, lambda row: row[knob], "number")


def _switch(knob: str, value: Callable[[Row], Any] | None = None) -> Carried:
    return Carried(knob, value or (lambda row: row[knob] > 0), "switch")


def _is_on(knob: str) -> Carried:
    """A switch that comes with others which say what the knob is."""
    return Carried(knob, lambda row: row[knob] > 0)


def _part(knob: str, choices: Sequence[str], *, joined: bool = False) -> Carried:
    """A knob's value in its own words; off its default alone."""

    def value(row: Row) -> Any:
        chosen = choices[row[knob]]
        return row[knob] > 0 and (chosen.split("+") if joined else chosen)

    return Carried(knob, value)


def _is_full(row: Row) -> bool:
    return row["recompute"] == Recompute.FULL


def _is_selective(row: Row) -> bool:
    return row["recompute"] == Recompute.SELECTIVE


def _flex(row: Row) -> str:
    """The dispatcher that sends each token once; empty: another one does."""
    return DISPATCHERS[row["dispatcher"]] if row["dispatcher"] in FLEX else ""


CARRIED: Mapping[str, Carried] = {
    "tensor_model_parallel_size": _number("tp"),
    "pipeline_model_parallel_size": _number("pp"),
    "context_parallel_size": _number("cp"),
    "expert_model_parallel_size": _number("ep"),
    "micro_batch_size": _number("micro_batch"),
    "num_virtual_stages_per_pipeline_rank": Carried(
        "vp", lambda row: not row["stages"] and row["vp"] > 1 and row["vp"]
    ),
    "account_for_embedding_in_pipeline_split": _is_on("ends_as_layers"),
    "account_for_loss_in_pipeline_split": _is_on("ends_as_layers"),
    "sequence_parallel": _switch("sequence_parallel"),
    "recompute_granularity": Carried(
        "recompute", lambda row: (_is_full(row) and "full") or (_is_selective(row) and "selective")
    ),
    "recompute_modules": Carried(
        "recompute_modules",
        lambda row: (
            _is_selective(row)
            and row["recompute_modules"]
            and RECOMPUTED[row["recompute_modules"]].split("+")
        ),
    ),
    "recompute_method": Carried(
        "recompute",
        lambda row: _is_full(row) and ("block" if row["recompute_layers"] else "uniform"),
    ),
    "recompute_num_layers": Carried(
        "recompute", lambda row: _is_full(row) and (row["recompute_layers"] or 1)
    ),
    # 0 is the default of a knob, which is on of these two.
    "overlap_grad_reduce": _switch(
        "overlap_grad_reduce", lambda row: not row["overlap_grad_reduce"]
    ),
    "use_distributed_optimizer": _switch("distributed_optimizer"),
    "overlap_param_gather": _switch(
        "overlap_param_gather",
        lambda row: row["distributed_optimizer"] > 0 and not row["overlap_param_gather"],
    ),
    "moe_token_dispatcher_type": Carried(
        "dispatcher",
        lambda row: (
            row["n_experts"] > 1 and ("flex" if _flex(row) else DISPATCHERS[row["dispatcher"]])
        ),
    ),
    "moe_router_dtype": Carried("", lambda row: _flex(row) and "fp32"),
    # Every release has this flag; the backend's came with 0.16.
    "moe_enable_deepep": Carried("dispatcher", lambda row: _flex(row) == "deepep"),
    "moe_flex_dispatcher_backend": Carried(
        "dispatcher", lambda row: _flex(row) != "deepep" and _flex(row)
    ),
    "overlap_moe_expert_parallel_comm": _switch("overlap_experts"),
    "delay_wgrad_compute": _switch("delay_weight_grads"),
    "moe_shared_expert_overlap": _switch("overlap_shared_experts"),
    "use_transformer_engine_op_fuser": _is_on("fused_experts"),
    # The kernel wants gates and linear units in turn, blocks of so many.
    "moe_mlp_glu_interleave_size": Carried("fused_experts", lambda row: 32 * row["fused_experts"]),
    "decoder_first_pipeline_num_layers": _number("first_stage_layers"),
    "decoder_last_pipeline_num_layers": _number("last_stage_layers"),
    "expert_tensor_parallel_size": _number("etp"),
    "use_tp_pp_dp_mapping": _switch("order"),
    "no_overlap_p2p_communication": _switch("overlap_p2p"),
    "tp_comm_overlap": _switch("tp_comm_overlap"),
    "grad_reduce_in_bf16": _switch("main_grads"),
    "use_nccl_ub": _switch("nccl_ub"),
    "cp_comm_type": _part("cp_kind", CP_KINDS),
    "cuda_graph_impl": Carried(
        "cuda_graphs", lambda row: row["cuda_graphs"] and "transformer_engine"
    ),
    "cuda_graph_scope": _part("cuda_graphs", GRAPHS, joined=True),
    # The default tracker of random states cannot be captured.
    "te_rng_tracker": _is_on("cuda_graphs"),
    "fsdp_double_buffer": _switch("fsdp_double_buffer"),
    "use_megatron_fsdp": _is_on("fsdp"),
    "data_parallel_sharding_strategy": _part("fsdp", FSDP),
    # What Megatron asks for beside it, whether or not anything is saved.
    "ckpt_format": Carried("", lambda row: row["fsdp"] and "fsdp_dtensor"),
    "optimizer_cpu_offload": _is_on("optimizer_offload"),
    "optimizer_offload_fraction": Carried(
        "optimizer_offload",
        lambda row: value_of(KNOBS["optimizer_offload"], row["optimizer_offload"]),
    ),
    "use_precision_aware_optimizer": Carried(
        "optimizer_offload", lambda row: row["optimizer_offload"] + row["adam_moments"] > 0
    ),
    "exp_avg_dtype": _part("adam_moments", MOMENTS),
    "exp_avg_sq_dtype": _part("adam_moments", MOMENTS),
    "overlap_cpu_optimizer_d2h_h2d": _switch("optimizer_offload_overlap"),
    "cpu_offloading_num_layers": _number("activation_offload"),
    "fine_grained_activation_offloading": _is_on("offload_modules"),
    "offload_modules": _part("offload_modules", OFFLOADED, joined=True),
    "fp4_format": Carried("fp4", lambda row: row["fp4"] and "e2m1"),
    "fp8_format": Carried("fp8", lambda row: not row["fp4"] and row["fp8"] and FP8[row["fp8"]]),
    "fp8_recipe": Carried(
        "fp8_recipe", lambda row: not row["fp4"] and row["fp8"] and FP8_RECIPES[row["fp8_recipe"]]
    ),
    "fp8_param_gather": _switch("fp8_param_gather"),
}
"""Argument -> how it follows from a layout, in the order in which they are written; a layout of
stages follows from the model besides."""
KNOBS_OF = {
    "pipeline_model_parallel_layout": "stages",
    **{argument: carried.knob for argument, carried in CARRIED.items() if carried.knob},
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
    of_model = {**row, "n_experts": shape.n_experts}
    values = {argument: carried.value(of_model) for argument, carried in CARRIED.items()}
    found: Arguments = {argument: values.pop(argument) for argument in _DEGREES}
    found |= {"global_batch_size": job.global_batch, "seq_length": job.seq_len}
    if row["stages"]:
        found["pipeline_model_parallel_layout"] = _placement(row, shape, job.seq_len)
    found |= {argument: value for argument, value in values.items() if value}
    if job.precision != "fp32":
        found[job.precision] = True
    return found


_DEGREES = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    *("expert_model_parallel_size", "micro_batch_size"),
)
"""Arguments that are written before those of the job."""


def _placement(row: Mapping[str, int], shape: ModelShape, seq_len: int) -> str:
    """Which layers a stage has, in Megatron's words; a reduced model's are balanced."""
    text = LAYOUTS.text(row["stages"])
    stages = stages_of(text) if row["stages"] != BALANCED else None
    if stages is not None and sum(layers_in(stages)) == shape.n_layers:
        return text
    counts = balanced_layers(work_of(shape, seq_len), row["pp"], row["vp"])
    return written(counts, shape.n_mtp_layers)


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
