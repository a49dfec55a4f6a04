"""Fields that a YAML as Megatron-LM's `--yaml-cfg` takes it must have.

Source: NVIDIA/Megatron-LM, from Megatron Core 0.14 to 0.20: `validate_yaml` of
megatron/training/yaml_arguments.py, which reads fields of the YAML alone: no parser's default
stands in for one that is missing.
"""

from collections.abc import Collection

from autotune.engines.megatron.flags import flags

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


def missing(given: Collection[str], release: str) -> list[str]:
    """Fields that a YAML has to have in a release, and lacks; `given` are its fields, dotted."""
    needed = list(REQUIRED)
    if any(flag.argument == _STEP_SCHEDULE for flag in flags(release).values()):
        needed.append(_STEP_SCHEDULE)
    return [name for name in needed if name not in given]
