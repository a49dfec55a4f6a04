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
    FILLED_TEXT,
    FRACTION,
    INT,
    LIST,
    LISTED_BOOL,
    LOSS_SCALE_INT,
    MAPPING,
    NAMES,
    NONZERO,
    PLAIN_INT,
    PLAIN_NUMBER,
    STAGE,
    STEPS,
    SWITCHED_SECTION,
    TEXT,
    TEXTS,
    TIMERS,
    TRUTH,
    WIDE_BOOL,
    Check,
    Key,
    Section,
    choice,
    count,
    integer,
    no_bool,
    number,
    optional,
    or_auto,
    raw,
    removed,
    since,
    unwritable,
    words,
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
    "stage3_module_granularity_threshold": integer(),
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
_PASSES = words("z1", "z3", "autosp", "autotp")
_COMPILE = {
    **dict.fromkeys(_COMPILE_SWITCHES, BOOL),
    "keep_int_input_tensors": since("0.16.9", BOOL),
    "keep_all_input_tensors": since("0.16.9", BOOL),
    "free_activation_threshold": since("0.17.6", integer()),
    "passes": since("0.18.7", optional(_PASSES)),
    "offload_activation_pin_memory": since("0.19.0", BOOL),
    "autoep_non_moe": since("0.19.7", BOOL),
}

_MONITORS: Mapping[str, Section] = {
    "tensorboard": Section(
        strict=True, keys={"enabled": BOOL, "output_path": TEXT, "job_name": TEXT}
    ),
    "csv_monitor": Section(
        strict=True, keys={"enabled": BOOL, "output_path": TEXT, "job_name": TEXT}
    ),
    "wandb": Section(
        strict=True,
        keys={
            "enabled": BOOL,
            "group": optional(TEXT),
            "team": optional(TEXT),
            "project": TEXT,
        },
    ),
    "comet": Section(
        strict=True,
        keys={
            "enabled": BOOL,
            "samples_log_interval": INT,
            **dict.fromkeys(
                (
                    *("project", "workspace", "api_key", "experiment_name", "experiment_key"),
                    "mode",
                ),
                optional(TEXT),
            ),
            "online": optional(BOOL),
        },
    ),
}

_STRICT_TOOLS: Mapping[str, Section] = {
    "comms_logger": Section(
        strict=True,
        keys={
            "enabled": BOOL,
            "prof_all": BOOL,
            "prof_ops": LIST,
            "verbose": BOOL,
            "debug": BOOL,
        },
    ),
    "hybrid_engine": Section(
        strict=True,
        keys={
            "enabled": BOOL,
            "max_out_tokens": integer(1),
            "inference_tp_size": INT,
            "release_inference_cache": BOOL,
            "pin_parameters": BOOL,
            "tp_gather_partition_size": INT,
            "enable_cuda_graph": since("0.19.5", BOOL),
        },
    ),
    "timers.throughput": Section(strict=True, keys={"enabled": BOOL, "synchronized": BOOL}),
    "weight_quantization": Section(
        strict=True,
        keys={
            "enabled": BOOL,
            "num_bits": INT,
            "q_type": choice("asymmetric", "symmetric"),
            "q_groups": INT,
            "quantized_initialization": MAPPING,
            "post_init_quant": MAPPING,
        },
    ),
}

_CHECKPOINT_UNITS = choice("replica", "socket", "machine", any_case=True)
_PLAIN_TOOLS: Mapping[str, Section] = {
    "timers": Section(strict=False, keys={"throughput": MAPPING}),
    "flops_profiler": Section(
        strict=False,
        keys={
            "enabled": WIDE_BOOL,
            "recompute_fwd_factor": PLAIN_NUMBER,
            "profile_step": PLAIN_INT,
            "module_depth": PLAIN_INT,
            "top_modules": PLAIN_INT,
            "detailed": TRUTH,
            "output_file": optional(TEXT),
        },
    ),
    "aio": Section(
        strict=False,
        keys={
            "block_size": count(1),
            "queue_depth": count(1),
            "intra_op_parallelism": since("0.16.0", count(1)),
            "single_submit": TRUTH,
            "overlap_events": TRUTH,
            "use_gds": TRUTH,
        },
    ),
    "checkpoint": Section(
        strict=False,
        keys={
            "tag_validation": choice("warn", "ignore", "fail", any_case=True),
            "load_universal": TRUTH,
            "use_node_local_storage": TRUTH,
            "parallel_write": MAPPING,
            "checkpoint_serialization": since("0.16.9", TRUTH),
            "writer": since("0.16.9", optional(MAPPING)),
        },
    ),
    "checkpoint.parallel_write": Section(strict=False, keys={"pipeline_stage": LISTED_BOOL}),
    "checkpoint.writer": Section(
        strict=False,
        keys={
            "type": optional(choice("mock", "python", "fast", any_case=True)),
            "decoupled": TRUTH,
            "io_buffer_size": PLAIN_NUMBER,
            "io_buffer_double": TRUTH,
            "show_statistics": TRUTH,
            "data_parallel": optional(_CHECKPOINT_UNITS),
            "io_multiplier": PLAIN_NUMBER,
        },
    ),
    "data_efficiency": Section(
        strict=False,
        keys={"enabled": TRUTH, "seed": ANY, "data_sampling": MAPPING, "data_routing": MAPPING},
    ),
    "data_efficiency.data_sampling": Section(
        strict=False,
        keys={
            "enabled": TRUTH,
            "num_epochs": ANY,
            "num_workers": ANY,
            "pin_memory": since("0.16.0", TRUTH),
            "curriculum_learning": MAPPING,
            "dynamic_batching": since("0.16.0", MAPPING),
        },
    ),
    "data_efficiency.data_routing": Section(
        strict=False, keys={"enabled": TRUTH, "random_ltd": MAPPING}
    ),
    "autotuning": Section(
        strict=False,
        keys={
            **dict.fromkeys(("enabled", "fast", "overwrite"), TRUTH),
            "start_profile_step": PLAIN_INT,
            "end_profile_step": PLAIN_INT,
            "results_dir": FILLED_TEXT,
            "exps_dir": FILLED_TEXT,
            "arg_mappings": optional(MAPPING),
            "model_info": optional(MAPPING),
            **dict.fromkeys(
                (
                    *("start_profile_step", "end_profile_step"),
                    *("metric", "metric_path", "tuner_type", "tuner_early_stopping"),
                    *("tuner_num_trials", "model_info_path", "mp_size", "max_train_batch_size"),
                    *("min_train_batch_size", "max_train_micro_batch_size_per_gpu"),
                    *("min_train_micro_batch_size_per_gpu", "num_tuning_micro_batch_sizes"),
                ),
                ANY,
            ),
        },
    ),
    "expert_parallel": Section(
        strict=False,
        keys={
            "enabled": TRUTH,
            "load_balance_coeff": Key(
                wants="null: experts are not balanced so", accepts=lambda v: v is None
            ),
            **dict.fromkeys(
                (
                    *("autoep_size", "preset_model", "moe_layer_pattern", "expert_pattern"),
                    *("router_pattern", "use_grouped_mm", "route_norm", "route_scale"),
                    *("score_apply", "combine_impl", "num_expert_groups", "num_limited_groups"),
                    *("score_func", "top_k", "routed_scaling_factor", "expert_w1", "expert_w2"),
                    *("expert_w3", "num_experts_attr", "top_k_attr", "has_shared_experts"),
                    *("shared_experts_pattern", "shared_experts_gate_pattern"),
                    "expert_tensor_parallel_size",
                    *("validate_folding_routing", "disable_triton_grouped_mm"),
                    *("async_split_plan", "row_weighting_impl", "gate_up_impl", "comm_backend"),
                    *("comm_num_sm", "comm_qp_margin", "comm_max_tokens_per_rank"),
                    "expert_activation",
                ),
                ANY,
            ),
        },
    ),
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

_RULED = ("data_efficiency", "datastates_ckpt", "checkpoint", "hybrid_engine")
_OLD_NAMES = ("cpu_offload_use_pin_memory", "bfloat16")

SECTIONS: Mapping[str, Section] = {
    "": Section(
        strict=False,
        keys={
            "train_batch_size": optional(PLAIN_INT),
            "train_micro_batch_size_per_gpu": optional(PLAIN_INT),
            "gradient_accumulation_steps": optional(PLAIN_INT),
            "managed_gradient_accumulation": since("0.19.0", TRUTH),
            "optimizer": MAPPING,
            "scheduler": MAPPING,
            "gradient_clipping": PLAIN_NUMBER,
            "communication_data_type": COMMUNICATION_DTYPE,
            "seq_parallel_communication_data_type": COMMUNICATION_DTYPE,
            "prescale_gradients": TRUTH,
            "gradient_predivide_factor": NONZERO,
            "gradient_allreduce_op": since("0.19.0", choice("mean", "sum", any_case=True)),
            "disable_allgather": TRUTH,
            "disable_python_gc": since("0.19.7", TRUTH),
            "zero_allow_untested_optimizer": TRUTH,
            "zero_force_ds_cpu_optimizer": TRUTH,
            "zero_optimization": SWITCHED_SECTION,
            "fp16": MAPPING,
            "bf16": optional(MAPPING),
            "bfloat16": MAPPING,
            "data_types": MAPPING,
            "torch_autocast": since("0.16.9", MAPPING),
            "tensor_parallel": since("0.16.0", MAPPING),
            "compile": since("0.16.0", MAPPING),
            "timers": TIMERS,
            "sequence_parallel_size": count(1),
            "data_parallel_size": count(1),
            "expert_parallel": since("0.19.1", MAPPING),
            "steps_per_print": optional(STEPS),
            "wall_clock_breakdown": WIDE_BOOL,
            "memory_breakdown": TRUTH,
            "dump_state": TRUTH,
            "dataloader_drop_last": TRUTH,
            "use_data_before_expert_parallelism": TRUTH,
            "vocabulary_size": optional(PLAIN_NUMBER),
            "log_level": since(
                "0.19.0",
                optional(choice("debug", "info", "warning", "error", "critical", any_case=True)),
            ),
            **dict.fromkeys(
                (
                    *("activation_checkpointing", "autotuning", "checkpoint", "comet"),
                    *("comms_logger", "csv_monitor", "data_efficiency"),
                    *("flops_profiler", "hybrid_engine"),
                    *("pipeline", "tensorboard", "wandb", "weight_quantization"),
                ),
                MAPPING,
            ),
            "aio": optional(MAPPING),
            "datastates_ckpt": since("0.17.6", ANY),
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
                "0.19.8",
                "data_efficiency.data_sampling.curriculum_learning is another form of it, with "
                "an index of the samples for each of its curriculum_metrics",
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
            "topk_ratio": FRACTION,
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
            "loss_scale": no_bool(number(0)),
            "initial_scale_power": INT,
            "loss_scale_window": LOSS_SCALE_INT,
            "hysteresis": INT,
            "consecutive_hysteresis": BOOL,
            "min_loss_scale": LOSS_SCALE_INT,
            "fp16_master_weights_and_grads": BOOL,
        },
    ),
    "bf16": Section(strict=True, strict_from=_PRECISION_CLASSES, keys=_BF16),
    "bfloat16": Section(strict=True, strict_from=_PRECISION_CLASSES, keys=_BF16),
    "tensor_parallel": Section(
        strict=True,
        keys={
            "dtype": unwritable("torch.dtype"),
            "autotp_size": raw(integer()),
            "tp_overlap_comm": BOOL,
            "vocab_parallel_lm_head": since("0.19.7", optional(BOOL)),
            "vocab_parallel_ce_backend": since("0.19.7", choice("torch", "liger")),
            "tp": MAPPING,
            "tensor_parallel": MAPPING,
            "injection_policy_tuple": optional(LIST),
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
        keys={"tp_size": integer(), "tp_grain_size": integer(), "mpu": ANY, "tp_group": ANY},
    ),
    "compile": Section(strict=True, keys=_COMPILE),
    "optimizer": Section(
        strict=False,
        keys={"type": optional(TEXT), "params": optional(MAPPING), "legacy_fusion": TRUTH},
    ),
    "scheduler": Section(strict=False, keys={"type": optional(TEXT), "params": optional(MAPPING)}),
    "data_types": Section(
        strict=False,
        keys={
            "grad_accum_dtype": optional(DTYPE),
            "param_dtype": since("0.19.0", optional(DTYPE)),
            "buffer_dtype": since("0.19.0", optional(DTYPE)),
            "keep_in_fp32_modules": since("0.19.7", or_auto(TEXTS)),
        },
    ),
    "torch_autocast": Section(
        strict=False,
        keys={"enabled": TRUTH, "dtype": DTYPE, "lower_precision_safe_modules": TEXTS},
    ),
    "activation_checkpointing": Section(
        strict=False,
        keys={
            "partition_activations": TRUTH,
            "number_checkpoints": ANY,
            "contiguous_memory_optimization": TRUTH,
            "cpu_checkpointing": TRUTH,
            "synchronize_checkpoint_boundary": TRUTH,
            "profile": TRUTH,
        },
    ),
    **_MONITORS,
    **_STRICT_TOOLS,
    **_PLAIN_TOOLS,
}
"""Dotted path of a section -> its keys; the empty path is the whole file. Sections that are not
here (`pipeline`, `datastates_ckpt`, what a curriculum holds, ...) are not looked into."""


@lru_cache(maxsize=64)
def plain_keys(version: str) -> Mapping[str, Mapping[str, Check]]:
    """Section -> key -> check, of the keys that a release reads under this name alone.

    Left out are keys that it lacks or refuses, deprecated ones, second spellings, and sections
    that rules look into which the search need not ask.
    """
    odd = {*DEPRECATED, *SPELLINGS, *_OLD_NAMES, *_MONITORS, *_RULED}
    return {
        path: {
            name: key.accepts
            for name, key in section.keys.items()
            if name not in odd and not key.is_removed(version) and not key.is_missing(version)
        }
        for path, section in SECTIONS.items()
    }
