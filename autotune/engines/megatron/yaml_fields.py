"""Fields of a YAML as Megatron-LM's `--yaml-cfg` takes it: which it reads, and which it must have.

Source: NVIDIA/Megatron-LM, from Megatron Core 0.14 to 0.20: `validate_yaml` of
megatron/training/yaml_arguments.py, which reads fields of the YAML alone: no parser's default
stands in for one that is missing; and the fields of `TransformerConfig`, `MLATransformerConfig`
and `ModelParallelConfig`, into which both sections are put.
"""

from collections.abc import Collection, Iterator
from difflib import get_close_matches

from autotune.engines.megatron.flags import MISTYPED, flags, releases

REQUIRED = (
    *("data_path", "micro_batch_size", "global_batch_size", "seq_length", "encoder_seq_length"),
    *("decoder_seq_length", "max_position_embeddings", "encoder_num_layers", "lr", "save"),
    *("account_for_embedding_in_pipeline_split", "num_layers_per_virtual_pipeline_stage"),
    *("overlap_param_gather", "dataloader_type", "train_iters", "train_samples"),
    *("fp16_lm_cross_entropy", "weight_decay_incr_style", "start_weight_decay"),
    "end_weight_decay",
    *(
        f"language_model.{name}"
        for name in (
            *("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size"),
            *("kv_channels", "num_moe_experts", "moe_grouped_gemm", "fp32_residual_connection"),
            *("recompute_granularity", "distribute_saved_activations"),
        )
    ),
    *(
        f"model_parallel.{name}"
        for name in (
            *("tensor_model_parallel_size", "pipeline_model_parallel_size"),
            *("context_parallel_size", "expert_model_parallel_size", "tp_comm_overlap"),
            *("fp16", "bf16"),
        )
    ),
)
"""Fields that every training reads, whatever the others say; there are more."""
_STEP_SCHEDULE = "step_batch_size_schedule"
"""Read so from the first release on that has its flag: 0.18."""
_WITHOUT_FLAG = frozenset(
    {
        *("_cpu_offloading_context", "activation_func", "activation_func_fp8_input_store"),
        *("autocast_dtype", "batch_p2p_comm", "batch_p2p_sync", "beta_fast", "beta_slow"),
        *("bias_activation_fusion", "cpu_offloading", "cpu_offloading_activations"),
        *("cpu_offloading_double_buffering", "cpu_offloading_weights"),
        *("cuda_graph_retain_backward_graph", "cuda_graph_use_single_mempool"),
        *("deallocate_pipeline_outputs", "disable_parameter_transpose_cache"),
        *("embedding_init_method", "enable_autocast", "finalize_model_grads_func"),
        *("experimental_attention_variant_loss_scale_func", "expert_gtp_weight_remat_size"),
        *("fp8_dot_product_attention", "fp8_multi_head_attention", "fp8_param"),
        *("fused_single_qkv_rope", "gated_linear_unit", "grad_scale_func", "grad_sync_func"),
        *("gtp_weight_remat_size", "hetereogenous_dist_checkpoint", "heterogeneous_block_specs"),
        *("inference_sampling_seed", "init_method", "layernorm_epsilon"),
        *("memory_efficient_layer_norm", "moe_grad_scale_func"),
        *("moe_router_topk_limited_devices", "moe_token_dropping", "mtp_grad_scale_func"),
        *("no_sync_func", "num_layers_in_first_pipeline_stage"),
        *("num_layers_in_last_pipeline_stage", "original_max_position_embeddings"),
        *("num_microbatches_with_partial_activation_checkpoints", "num_moe_experts"),
        *("output_layer_init_method", "param_sync_func", "params_dtype", "persist_layer_norm"),
        *("pipeline_dtype", "quant_recipe", "softmax_scale", "timers", "tp_comm_atomic_ag"),
        *("tp_comm_atomic_rs", "tp_comm_overlap_disable_fc1", "tp_comm_overlap_disable_qkv"),
        *("tp_only_amax_red", "use_inference_optimized_layers", "use_kitchen"),
        *("use_te_rng_tracker", "variable_seq_lengths", "virtual_pipeline_model_parallel_size"),
    }
)
"""Fields of the configurations that no flag sets."""

_SECTIONS = {
    "model_parallel": (
        *("tensor_model_", "pipeline_model_", "virtual_pipeline_", "context_parallel_"),
        *("sequence_parallel", "expert_model_", "expert_tensor_", "fp16", "bf16", "tp_comm_"),
        *("overlap_p2p_", "overlap_moe_", "batch_p2p_", "gradient_accumulation_fusion"),
        *("cpu_offloading", "defer_embedding_", "delay_wgrad_", "cross_entropy_"),
    ),
    "language_model": (
        *("recompute_", "distribute_saved_", "moe_", "num_moe_", "fp8", "fp32_residual_"),
        *("attention_", "num_query_", "num_attention_", "hidden_", "ffn_", "kv_", "bias_"),
        *("masked_softmax_", "persist_", "apply_", "normalization"),
    ),
}
"""Section -> beginnings of the fields that `validate_yaml` or the configurations read there."""


def home_of(field: str) -> str:
    """Where a field stands, dotted: in a section, or in none."""
    for name in REQUIRED:
        if name.rpartition(".")[2] == field:
            return name
    for section, beginnings in _SECTIONS.items():
        if field.startswith(beginnings):
            return f"{section}.{field}"
    return field


def missing(given: Collection[str], release: str) -> list[str]:
    """Fields that a YAML has to have in a release, and lacks; `given` are its fields, dotted."""
    needed = list(REQUIRED)
    if any(flag.argument == _STEP_SCHEDULE for flag in flags(release).values()):
        needed.append(_STEP_SCHEDULE)
    return [name for name in needed if name not in given]


def meant_by(field: str, given: Collection[str]) -> str:
    """The field that an unknown one must mean; empty: it is known, or none is near."""
    known = set(_known())
    if field in known:
        return ""
    near = get_close_matches(field, sorted(known - set(given)), n=1, cutoff=MISTYPED)
    return near[0] if near else ""


def _known() -> Iterator[str]:
    yield from _WITHOUT_FLAG
    for release in releases():
        yield from (flag.argument for flag in flags(release).values())
