"""The keys of a ds_config: what DeepSpeed reads, which values it takes, and since when.

Read off the releases in `releases.READ`; a test compares the table with the installed one, and
`make versions` with those in `releases.TRIED`. `absent_through` names the last release read that
lacks a key, so a release between two that were read is given the benefit of the doubt.
"""

from collections.abc import Mapping
from functools import lru_cache

from autotune.engines.deepspeed.rules.values import (
    ANY,
    BOOL,
    COMMUNICATION_DTYPE,
    DTYPE,
    ELEMENTS,
    INT,
    MAPPING,
    NAMES,
    STAGE,
    TEXT,
    Check,
    Key,
    Section,
    choice,
    integer,
    number,
    optional,
    or_auto,
    removed,
    since,
)

_PRECISION_CLASSES = "0.17.1"  # runtime/precision_config.py, new in it; 0.16.9 reads dicts
_MOQ = "Mixture-of-Quantization is gone"
_MICS = "MiCS sharding is gone: use stage 3, or zero_hpz_partition_size for a partition per node"

_OFFLOAD = {
    "device": choice("none", "cpu", "nvme"),
    "nvme_path": optional(TEXT),
    "buffer_count": ELEMENTS,
    "pin_memory": BOOL,
}
_BF16 = {
    "enabled": BOOL,
    "immediate_grad_update": BOOL,
    "check_grad_overflow": since("0.16.9", BOOL),
    "bf16_master_weights_and_grads": since("0.17.6", BOOL),
    "bf16_optimizer_states": since("0.17.6", BOOL),
}
_ZERO = {
    "stage": STAGE,
    "contiguous_gradients": BOOL,
    "reduce_scatter": BOOL,
    "reduce_bucket_size": integer(1),
    "use_multi_rank_bucket_allreduce": BOOL,
    "allgather_partitions": BOOL,
    "allgather_bucket_size": ELEMENTS,
    "overlap_comm": optional(BOOL),
    "compute_grad_norm": since("0.19.6", BOOL),
    "load_from_fp32_weights": BOOL,
    "elastic_checkpoint": BOOL,
    "offload_param": optional(MAPPING),
    "offload_optimizer": optional(MAPPING),
    "zenflow": since("0.16.9", optional(MAPPING)),
    "sub_group_size": ELEMENTS,
    "cpu_offload": optional(BOOL),
    "cpu_offload_param": optional(BOOL),
    "cpu_offload_use_pin_memory": optional(BOOL),
    "stage3_prefetch_bucket_size": ELEMENTS,
    "stage3_param_persistence_threshold": ELEMENTS,
    "stage3_model_persistence_threshold": ELEMENTS,
    "stage3_max_live_parameters": ELEMENTS,
    "stage3_max_reuse_distance": ELEMENTS,
    "stage3_gather_16bit_weights_on_model_save": BOOL,
    "stage3_module_granularity_threshold": ELEMENTS,
    "stage3_use_all_reduce_for_fetch_params": BOOL,
    "stage3_allgather_sequential": since("0.17.6", BOOL),
    "stage3_gather_fp16_weights_on_model_save": BOOL,
    "ignore_unused_parameters": BOOL,
    "legacy_stage1": BOOL,
    "round_robin_gradients": BOOL,
    "parameter_alignment": since("0.19.6", BOOL),
    "zero_hpz_partition_size": ELEMENTS,
    "zero_quantized_weights": BOOL,
    "zero_quantized_nontrainable_weights": BOOL,
    "zero_quantized_gradients": BOOL,
    "memory_efficient_linear": BOOL,
    "pipeline_loading_checkpoint": BOOL,
    "override_module_apply": BOOL,
    "log_trace_cache_warnings": since("0.16.0", BOOL),
    "enable_sanity_checks": since("0.16.9", BOOL),
    "save_muon_momentum_buffer_in_memory": since("0.18.6", BOOL),
    "leaf_module": since("0.17.6", optional(MAPPING)),
    "mics_shard_size": removed("0.19.7", _MICS),
    "mics_hierarchical_params_gather": removed("0.19.7", _MICS),
    "zeropp_loco_param": removed("0.19.8", "LoCo is gone: leave it out for plain ZeRO++"),
}

_COMPILE_SWITCHES = (
    *("deepcompile", "free_activation", "offload_activation", "offload_opt_states"),
    *("double_buffer", "symmetric_memory", "debug_log", "offload_parameters"),
    *("sync_before_reduce", "sync_after_reduce", "sync_before_allgather", "sync_after_allgather"),
)
_PASSES = Key(
    wants="a list of z1, z3, autosp and autotp",
    accepts=lambda v: type(v) is list and all(p in ("z1", "z3", "autosp", "autotp") for p in v),
)
_COMPILE = {
    **dict.fromkeys(_COMPILE_SWITCHES, BOOL),
    "keep_int_input_tensors": since("0.16.9", BOOL),
    "keep_all_input_tensors": since("0.16.9", BOOL),
    "free_activation_threshold": since("0.17.6", ELEMENTS),
    "passes": since("0.18.7", optional(_PASSES)),
    "offload_activation_pin_memory": since("0.19.0", BOOL),
    "autoep_non_moe": since("0.19.7", BOOL),
}

SPELLINGS: Mapping[str, str] = {
    "prefetch_bucket_size": "stage3_prefetch_bucket_size",
    "param_persistence_threshold": "stage3_param_persistence_threshold",
    "model_persistence_threshold": "stage3_model_persistence_threshold",
    "max_live_parameters": "stage3_max_live_parameters",
    "max_reuse_distance": "stage3_max_reuse_distance",
    "gather_16bit_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
    "module_granularity_threshold": "stage3_module_granularity_threshold",
    "use_all_reduce_for_fetch_params": "stage3_use_all_reduce_for_fetch_params",
    "allgather_sequential": "stage3_allgather_sequential",
}
"""Second spelling of a `zero_optimization` key -> the first: pydantic's field name and alias."""

DEPRECATED: Mapping[str, str] = {
    "cpu_offload": "offload_optimizer",
    "cpu_offload_param": "offload_param",
    "stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
}
"""Deprecated key of `zero_optimization` -> the one that replaces it."""

SECTIONS: Mapping[str, Section] = {
    "": Section(
        strict=False,
        keys={
            "train_batch_size": optional(INT),
            "train_micro_batch_size_per_gpu": optional(INT),
            "gradient_accumulation_steps": optional(INT),
            "managed_gradient_accumulation": since("0.19.0", BOOL),
            "optimizer": MAPPING,
            "scheduler": MAPPING,
            "gradient_clipping": number(),
            "communication_data_type": COMMUNICATION_DTYPE,
            "seq_parallel_communication_data_type": COMMUNICATION_DTYPE,
            "prescale_gradients": BOOL,
            "gradient_predivide_factor": number(),
            "gradient_allreduce_op": since("0.19.0", choice("mean", "sum", any_case=True)),
            "disable_allgather": BOOL,
            "disable_python_gc": since("0.19.7", BOOL),
            "zero_allow_untested_optimizer": BOOL,
            "zero_force_ds_cpu_optimizer": BOOL,
            "zero_optimization": MAPPING,
            "fp16": MAPPING,
            "bf16": MAPPING,
            "bfloat16": MAPPING,
            "data_types": MAPPING,
            "torch_autocast": since("0.16.9", MAPPING),
            "tensor_parallel": since("0.16.0", MAPPING),
            "compile": since("0.16.0", MAPPING),
            "sequence_parallel_size": integer(1, loose=False),
            "data_parallel_size": integer(1, loose=False),
            "expert_parallel": since("0.19.1", MAPPING),
            "steps_per_print": optional(integer(1, loose=False)),
            "wall_clock_breakdown": BOOL,
            "memory_breakdown": BOOL,
            "dump_state": BOOL,
            "dataloader_drop_last": BOOL,
            "use_data_before_expert_parallelism": BOOL,
            "vocabulary_size": optional(INT),
            "log_level": since("0.19.0", ANY),
            **dict.fromkeys(
                (
                    *("activation_checkpointing", "aio", "autotuning", "checkpoint", "comet"),
                    *("comms_logger", "csv_monitor", "data_efficiency"),
                    *("datastates_ckpt", "flops_profiler", "hybrid_engine"),
                    *("pipeline", "tensorboard", "timers", "wandb", "weight_quantization"),
                ),
                MAPPING,
            ),
            "nebula": removed("0.19.7", "Nebula is gone: checkpoints are saved by torch"),
            "compression_training": removed("0.19.7", "the compression library is gone"),
            "quantize_training": removed("0.19.7", _MOQ),
            "sparse_attention": removed("0.19.7", "sparse attention is gone"),
            "amp": removed("0.19.8", "Apex AMP is gone: use fp16, bf16 or torch_autocast"),
            "sparse_gradients": removed("0.19.8", "sparse embedding gradients are gone"),
            "eigenvalue": removed("0.19.8", _MOQ),
            "elasticity": removed("0.19.8", "elastic training is gone: state the batch sizes"),
            "graph_harvesting": removed("0.19.8", "graph harvesting is gone"),
            "curriculum_learning": removed(
                "0.19.8", "it moved to data_efficiency.data_sampling.curriculum_learning"
            ),
            "progressive_layer_drop": removed("0.19.8", "progressive layer drop is gone"),
        },
    ),
    "zero_optimization": Section(
        strict=True, keys=_ZERO | {second: _ZERO[first] for second, first in SPELLINGS.items()}
    ),
    "zero_optimization.offload_optimizer": Section(
        strict=True,
        keys={
            **_OFFLOAD,
            "pipeline_read": BOOL,
            "pipeline_write": BOOL,
            "fast_init": BOOL,
            "ratio": number(0, 1),
            "super_offload": since("0.17.6", BOOL),
            "cpuadam_cores_perc": since("0.17.6", number(0, 1)),
        },
    ),
    "zero_optimization.offload_param": Section(
        strict=True, keys={**_OFFLOAD, "buffer_size": ELEMENTS, "max_in_cpu": ELEMENTS}
    ),
    "zero_optimization.zenflow": Section(
        strict=True,
        strict_from="0.17.6",
        keys={
            "topk_ratio": Key(
                wants="a number between 0 and 1",
                accepts=lambda v: type(v) in (int, float) and 0 < v < 1,
            ),
            "select_strategy": choice("auto", "step", "epoch"),
            "select_interval": or_auto(INT),
            "update_interval": or_auto(integer(1)),
            "overlap_step": BOOL,
            "offload": BOOL,
            "auto_ratio": number(0, 1),
            "full_warm_up_rounds": INT,
            "pt_reserved_cores_perc": number(0, 1),
            "steps_per_epoch": optional(INT),
        },
    ),
    "zero_optimization.leaf_module": Section(
        strict=True,
        strict_from="0.18.6",
        keys=dict.fromkeys(("classes", "names", "name_suffixes"), NAMES),
    ),
    "fp16": Section(
        strict=True,
        strict_from=_PRECISION_CLASSES,
        keys={
            "enabled": BOOL,
            "auto_cast": BOOL,
            "loss_scale": number(0),
            "initial_scale_power": integer(0),
            "loss_scale_window": INT,
            "hysteresis": INT,
            "consecutive_hysteresis": BOOL,
            "min_loss_scale": INT,
            "fp16_master_weights_and_grads": BOOL,
        },
    ),
    "bf16": Section(strict=True, strict_from=_PRECISION_CLASSES, keys=_BF16),
    "bfloat16": Section(strict=True, strict_from=_PRECISION_CLASSES, keys=_BF16),
    "tensor_parallel": Section(
        strict=True,
        keys={
            "dtype": ANY,
            "autotp_size": ELEMENTS,
            "tp_overlap_comm": BOOL,
            "vocab_parallel_lm_head": since("0.19.7", optional(BOOL)),
            "vocab_parallel_ce_backend": since("0.19.7", choice("torch", "liger")),
            "tp": MAPPING,
            "tensor_parallel": MAPPING,
            "injection_policy_tuple": ANY,
            "partition_config": since("0.17.6", optional(MAPPING)),
            "preset_model": since(
                "0.17.6",
                optional(
                    choice(
                        *("llama", "bloom", "chatglm", "mixtral", "deepseek_v2", "qwen2", "phi3")
                    )
                ),
            ),
            "keep_module_on_host": BOOL,
            "kernel_inject": BOOL,
            "replace_with_kernel_inject": BOOL,
        },
    ),
    "tensor_parallel.tp": Section(
        strict=True,
        keys={"tp_size": integer(1), "tp_grain_size": integer(1), "mpu": ANY, "tp_group": ANY},
    ),
    "compile": Section(strict=True, keys=_COMPILE),
    "optimizer": Section(
        strict=False, keys={"type": TEXT, "params": MAPPING, "legacy_fusion": BOOL}
    ),
    "scheduler": Section(strict=False, keys={"type": optional(TEXT), "params": optional(MAPPING)}),
    "data_types": Section(
        strict=False,
        keys={
            "grad_accum_dtype": optional(DTYPE),
            "param_dtype": since("0.19.0", optional(DTYPE)),
            "buffer_dtype": since("0.19.0", optional(DTYPE)),
            "keep_in_fp32_modules": since("0.19.7", ANY),
        },
    ),
    "torch_autocast": Section(
        strict=False, keys={"enabled": BOOL, "dtype": DTYPE, "lower_precision_safe_modules": ANY}
    ),
    "activation_checkpointing": Section(
        strict=False,
        keys={
            "partition_activations": BOOL,
            "number_checkpoints": optional(INT),
            "contiguous_memory_optimization": BOOL,
            "cpu_checkpointing": BOOL,
            "synchronize_checkpoint_boundary": BOOL,
            "profile": BOOL,
        },
    ),
}
"""Dotted path of a section -> its keys; the empty path is the whole file. Sections that are not
here (monitors, checkpointing, compilation, ...) are not looked into."""


@lru_cache(maxsize=64)
def plain_keys(version: str) -> Mapping[str, Mapping[str, Check]]:
    """Section -> key -> check, of the keys that a release reads under this name alone.

    Left out are keys that it lacks or refuses, deprecated ones, and second spellings.
    """
    odd = {*DEPRECATED, *SPELLINGS}
    return {
        path: {
            name: key.accepts
            for name, key in section.keys.items()
            if name not in odd and not key.is_removed(version) and not key.is_missing(version)
        }
        for path, section in SECTIONS.items()
    }
