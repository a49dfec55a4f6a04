"""Configurations that DeepSpeed runs, and changes of them as people make them by mistake.

Seeded: the same seed makes the same mutants. A mutant is the files that a consumer reads, and how
it is started; `check_truth.py` asks the live engine about it, and tests ask `check` alone.
"""

import copy
import json
import re
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import yaml

HERE = Path(__file__).resolve().parents[1]
CONFIG_FILE = "ds_config.json"
ACCELERATE_FILE = "accelerate.yaml"
TRAINER_FILE = "train.yaml"
SCRIPT_FILE = "train.py"

Config = dict[str, Any]
Path_ = tuple[str, ...]

_ADAMW = {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8}}
_WARMUP = {
    "type": "WarmupLR",
    "params": {"warmup_min_lr": 0, "warmup_max_lr": 3e-4, "warmup_num_steps": 100},
}
_FP16 = {
    "enabled": True,
    "loss_scale": 0,
    "loss_scale_window": 1000,
    "initial_scale_power": 16,
    "hysteresis": 2,
    "min_loss_scale": 1,
}

DEEPSPEED_BASES: Mapping[str, Config] = {
    "plain": {
        "train_batch_size": 8,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
        "steps_per_print": 10,
    },
    "zero1 bf16": {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
        "optimizer": _ADAMW,
        "scheduler": _WARMUP,
    },
    "zero2 fp16": {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5,
        "fp16": _FP16,
        "zero_optimization": {
            "stage": 2,
            "allgather_bucket_size": 200000,
            "overlap_comm": True,
            "reduce_scatter": True,
            "reduce_bucket_size": 200000,
            "contiguous_gradients": True,
            "round_robin_gradients": True,
        },
        "optimizer": _ADAMW,
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {
                "total_num_steps": 1000,
                "warmup_min_lr": 0,
                "warmup_max_lr": 3e-4,
                "warmup_num_steps": 100,
                "warmup_type": "linear",
            },
        },
        "wall_clock_breakdown": False,
    },
    "zero2 offload": {
        "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 2,
            "offload_optimizer": {"device": "cpu", "pin_memory": False},
            "reduce_bucket_size": 500000,
        },
        "optimizer": _ADAMW,
        "tensorboard": {"enabled": False, "output_path": "logs", "job_name": "one"},
        "csv_monitor": {"enabled": True, "output_path": "logs", "job_name": "one"},
    },
    "zero3": {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "contiguous_gradients": True,
            "overlap_comm": True,
            "stage3_prefetch_bucket_size": 10000,
            "stage3_param_persistence_threshold": 1000,
            "stage3_max_live_parameters": 1000000,
            "stage3_max_reuse_distance": 1000000,
            "stage3_gather_16bit_weights_on_model_save": True,
            "sub_group_size": 1000000,
        },
        "optimizer": _ADAMW,
        "comms_logger": {
            "enabled": False,
            "verbose": False,
            "prof_all": True,
            "debug": False,
            "prof_ops": [],
        },
    },
    "zero3 offload": {
        "train_batch_size": 4,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu", "pin_memory": False, "ratio": 1.0},
            "offload_param": {"device": "cpu", "pin_memory": False},
        },
        "optimizer": _ADAMW,
        "scheduler": _WARMUP,
        "activation_checkpointing": {
            "partition_activations": False,
            "cpu_checkpointing": False,
            "number_checkpoints": None,
            "synchronize_checkpoint_boundary": False,
            "profile": False,
        },
    },
    "torch optimizer": {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {
            "type": "SGD",
            "params": {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "nesterov": True},
        },
        "scheduler": {"type": "StepLR", "params": {"step_size": 1, "gamma": 0.5}},
        "flops_profiler": {
            "enabled": False,
            "profile_step": 5,
            "module_depth": -1,
            "top_modules": 1,
            "detailed": True,
            "output_file": None,
        },
    },
    "adagrad": {
        "train_batch_size": 4,
        "optimizer": {"type": "Adagrad", "params": {"lr": 0.01}},
        "scheduler": {
            "type": "OneCycle",
            "params": {
                "cycle_min_lr": 1e-4,
                "cycle_max_lr": 1e-3,
                "cycle_first_step_size": 10,
            },
        },
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 1},
    },
    "lion": {
        "train_batch_size": 4,
        "bf16": {"enabled": True},
        "optimizer": {
            "type": "Lion",
            "params": {"lr": 1e-4, "betas": [0.9, 0.99], "weight_decay": 0.1},
        },
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    },
    "own optimizer": {
        "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
    },
    "cosine": {
        "train_batch_size": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "scheduler": {
            "type": "WarmupCosineLR",
            "params": {"total_num_steps": 100, "warmup_num_steps": 10, "cos_min_ratio": 0.1},
        },
        "prescale_gradients": False,
        "gradient_predivide_factor": 1.0,
        "data_efficiency": {
            "enabled": False,
            "seed": 1234,
            "data_sampling": {"enabled": False, "num_workers": 0},
        },
    },
    "range test": {
        "train_batch_size": 4,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "weight_decay": 0.01}},
        "scheduler": {
            "type": "LRRangeTest",
            "params": {
                "lr_range_test_min_lr": 1e-4,
                "lr_range_test_step_size": 10,
                "lr_range_test_step_rate": 5,
                "lr_range_test_staircase": False,
            },
        },
        "aio": {
            "block_size": 1048576,
            "queue_depth": 8,
            "single_submit": False,
            "overlap_events": True,
        },
        "hybrid_engine": {
            "enabled": False,
            "max_out_tokens": 512,
            "inference_tp_size": 1,
            "release_inference_cache": False,
        },
        "wandb": {"enabled": False, "project": "one"},
    },
    "autocast": {
        "train_batch_size": 4,
        "torch_autocast": {"enabled": True, "dtype": "bfloat16"},
        "zero_optimization": {"stage": 1},
        "optimizer": _ADAMW,
        "checkpoint": {"tag_validation": "Warn", "load_universal": False},
        "timers": {"throughput": {"enabled": True, "synchronized": True}},
        "dump_state": False,
    },
}
"""What a script hands to `deepspeed.initialize`."""

_AUTOS = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
}
TRAINER_BASES: Mapping[str, Config] = {
    "zero2": {
        **_AUTOS,
        "fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 16},
        "bf16": {"enabled": "auto"},
        "zero_optimization": {
            "stage": 2,
            "overlap_comm": True,
            "allgather_bucket_size": 5e5,
            "reduce_bucket_size": "auto",
            "contiguous_gradients": True,
        },
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
        },
        "scheduler": {
            "type": "WarmupLR",
            "params": {
                "warmup_min_lr": "auto",
                "warmup_max_lr": "auto",
                "warmup_num_steps": "auto",
            },
        },
    },
    "zero3": {
        **_AUTOS,
        "bf16": {"enabled": "auto"},
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "contiguous_gradients": True,
            "sub_group_size": 1e9,
            "reduce_bucket_size": "auto",
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            "stage3_max_live_parameters": 1e9,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "wall_clock_breakdown": False,
    },
    "zero3 offload": {
        **_AUTOS,
        "bf16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {
                "total_num_steps": "auto",
                "warmup_min_lr": "auto",
                "warmup_max_lr": "auto",
                "warmup_num_steps": "auto",
            },
        },
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu", "pin_memory": False},
            "offload_param": {"device": "cpu", "pin_memory": False},
        },
    },
    "zero1": {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
    },
}
TRAINER_SCRIPT = """\
from transformers import HfArgumentParser, Trainer, TrainingArguments

(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
"""
"""How the script that `live_engine.py` is begins; `check` looks there for its defaults."""
TRAINER_ARGUMENTS: Mapping[str, Any] = {
    "output_dir": "out",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "learning_rate": 3e-4,
    "max_grad_norm": 1.0,
    "weight_decay": 0.1,
    "warmup_steps": 2,
    "max_steps": 2,
    "bf16": True,
    "save_strategy": "no",
    "report_to": "none",
}
ACCELERATE_BASE: Config = {
    "compute_environment": "LOCAL_MACHINE",
    "debug": False,
    "deepspeed_config": {},
    "distributed_type": "DEEPSPEED",
    "machine_rank": 0,
    "main_training_function": "main",
    "num_machines": 1,
    "num_processes": 1,
    "use_cpu": False,
}
ACCELERATE_SECTIONS: Mapping[str, Config] = {
    "zero1": {"gradient_accumulation_steps": 2, "zero3_init_flag": False, "zero_stage": 1},
    "zero2": {
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "offload_optimizer_device": "none",
        "offload_param_device": "none",
        "zero3_init_flag": False,
        "zero_stage": 2,
    },
    "zero3": {
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.5,
        "offload_optimizer_device": "none",
        "offload_param_device": "none",
        "zero3_init_flag": True,
        "zero3_save_16bit_model": True,
        "zero_stage": 3,
    },
    "file": {"deepspeed_config_file": CONFIG_FILE, "zero3_init_flag": False},
}


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """The files of one run, and how it is started."""

    name: str
    kind: str
    """How it was changed; `as it is`: not at all."""
    base: str
    consumer: str
    world: int
    files: Mapping[str, str]
    named: str
    """The file that `check` is asked about, and the consumer is given."""
    arguments: tuple[str, ...] = field(default=())
    """Of Trainer's script."""

    @property
    def launch(self) -> str | None:
        """The line that starts it, where it has arguments."""
        if not self.arguments:
            return None
        words = " ".join(self.arguments)
        return f"torchrun --nproc_per_node {self.world} {SCRIPT_FILE} {words}"


Mutator = Callable[[Random, Config], Config | str | None]
_MUTATORS: dict[str, Mutator] = {}


def mutator(kind: str) -> Callable[[Mutator], Mutator]:
    """Add a way to break a configuration; None of it: not possible with this one."""

    def add(change: Mutator) -> Mutator:
        _MUTATORS[kind] = change
        return change

    return add


def leaves(config: Mapping[str, Any], path: Path_ = ()) -> list[Path_]:
    """Where values stand that are no sections."""
    found: list[Path_] = []
    for name, value in config.items():
        inner = isinstance(value, dict) and value
        found += leaves(value, (*path, name)) if inner else [(*path, name)]
    return found


def places(config: Mapping[str, Any], path: Path_ = ()) -> list[Path_]:
    """The configuration itself and its sections."""
    found = [path]
    for name, value in config.items():
        if isinstance(value, dict):
            found += places(value, (*path, name))
    return found


def at(config: Config, path: Path_) -> Any:
    """What stands there."""
    value: Any = config
    for name in path:
        value = value[name]
    return value


def put(config: Config, path: Path_, value: Any) -> Config:
    """A value at a place, whose sections are made where there are none."""
    inner = config
    for name in path[:-1]:
        if not isinstance(inner.get(name), dict):
            inner[name] = {}
        inner = inner[name]
    inner[path[-1]] = value
    return config


_KEYS = {
    "": (
        "activation_checkpointing aio amp autotuning bf16 bfloat16 checkpoint comet "
        "comms_logger communication_data_type compile compression_training csv_monitor "
        "curriculum_learning data_efficiency data_parallel_size data_types "
        "dataloader_drop_last datastates_ckpt disable_allgather disable_python_gc "
        "dump_state eigenvalue elasticity expert_parallel flops_profiler fp16 "
        "gradient_accumulation_steps gradient_allreduce_op gradient_clipping "
        "gradient_predivide_factor graph_harvesting hybrid_engine log_level "
        "managed_gradient_accumulation memory_breakdown nebula optimizer pipeline "
        "prescale_gradients progressive_layer_drop quantize_training scheduler "
        "seq_parallel_communication_data_type sequence_parallel_size sparse_attention "
        "sparse_gradients steps_per_print tensor_parallel tensorboard timers "
        "torch_autocast train_batch_size train_micro_batch_size_per_gpu "
        "use_data_before_expert_parallelism vocabulary_size wall_clock_breakdown wandb "
        "weight_quantization zero_allow_untested_optimizer zero_force_ds_cpu_optimizer "
        "zero_optimization"
    ),
    "zero_optimization": (
        "allgather_bucket_size allgather_partitions allgather_sequential "
        "compute_grad_norm contiguous_gradients cpu_offload cpu_offload_param "
        "cpu_offload_use_pin_memory elastic_checkpoint enable_sanity_checks "
        "gather_16bit_weights_on_model_save ignore_unused_parameters leaf_module "
        "legacy_stage1 load_from_fp32_weights log_trace_cache_warnings "
        "max_live_parameters max_reuse_distance memory_efficient_linear "
        "mics_hierarchical_params_gather mics_shard_size model_persistence_threshold "
        "module_granularity_threshold offload_optimizer offload_param overlap_comm "
        "override_module_apply param_persistence_threshold parameter_alignment "
        "pipeline_loading_checkpoint prefetch_bucket_size reduce_bucket_size "
        "reduce_scatter round_robin_gradients save_muon_momentum_buffer_in_memory stage "
        "stage3_allgather_sequential stage3_gather_16bit_weights_on_model_save "
        "stage3_gather_fp16_weights_on_model_save stage3_max_live_parameters "
        "stage3_max_reuse_distance stage3_model_persistence_threshold "
        "stage3_module_granularity_threshold stage3_param_persistence_threshold "
        "stage3_prefetch_bucket_size stage3_use_all_reduce_for_fetch_params "
        "sub_group_size use_all_reduce_for_fetch_params use_multi_rank_bucket_allreduce "
        "zenflow zero_hpz_partition_size zero_quantized_gradients "
        "zero_quantized_nontrainable_weights zero_quantized_weights zeropp_loco_param"
    ),
    "zero_optimization.offload_optimizer": (
        "buffer_count cpuadam_cores_perc device fast_init nvme_path pin_memory "
        "pipeline_read pipeline_write ratio super_offload"
    ),
    "zero_optimization.offload_param": (
        "buffer_count buffer_size device max_in_cpu nvme_path pin_memory"
    ),
    "zero_optimization.zenflow": (
        "auto_ratio full_warm_up_rounds offload overlap_step pt_reserved_cores_perc "
        "select_interval select_strategy steps_per_epoch topk_ratio update_interval"
    ),
    "zero_optimization.leaf_module": "classes name_suffixes names",
    "fp16": (
        "auto_cast consecutive_hysteresis enabled fp16_master_weights_and_grads "
        "hysteresis initial_scale_power loss_scale loss_scale_window min_loss_scale"
    ),
    "bf16": (
        "bf16_master_weights_and_grads bf16_optimizer_states check_grad_overflow enabled "
        "immediate_grad_update"
    ),
    "tensor_parallel": (
        "autotp_size dtype injection_policy_tuple keep_module_on_host kernel_inject "
        "partition_config preset_model replace_with_kernel_inject tensor_parallel tp "
        "tp_overlap_comm vocab_parallel_ce_backend vocab_parallel_lm_head"
    ),
    "tensor_parallel.tp": "tp_grain_size tp_size",
    "compile": (
        "autoep_non_moe debug_log deepcompile double_buffer free_activation "
        "free_activation_threshold keep_all_input_tensors keep_int_input_tensors "
        "offload_activation offload_activation_pin_memory offload_opt_states "
        "offload_parameters passes symmetric_memory sync_after_allgather "
        "sync_after_reduce sync_before_allgather sync_before_reduce"
    ),
    "optimizer": "legacy_fusion params type",
    "scheduler": "params type",
    "data_types": "buffer_dtype grad_accum_dtype keep_in_fp32_modules param_dtype",
    "torch_autocast": "dtype enabled lower_precision_safe_modules",
    "activation_checkpointing": (
        "contiguous_memory_optimization cpu_checkpointing number_checkpoints "
        "partition_activations profile synchronize_checkpoint_boundary"
    ),
    "tensorboard": "enabled output_path job_name",
    "csv_monitor": "enabled output_path job_name",
    "wandb": "enabled group team project",
    "comet": "enabled project samples_log_interval",
    "comms_logger": "enabled verbose prof_all debug prof_ops",
    "flops_profiler": (
        "enabled profile_step module_depth top_modules detailed output_file recompute_fwd_factor"
    ),
    "aio": "block_size queue_depth intra_op_parallelism single_submit overlap_events use_gds",
    "checkpoint": "tag_validation load_universal use_node_local_storage parallel_write",
    "data_efficiency": "enabled seed data_sampling data_routing",
    "hybrid_engine": "enabled max_out_tokens inference_tp_size release_inference_cache",
    "timers": "throughput",
    "timers.throughput": "enabled synchronized",
    "pipeline": "stages partition seed_layers activation_checkpoint_interval",
    "weight_quantization": "quantized_initialization post_init_quant",
    "expert_parallel": "enabled autoep_size preset_model",
}
"""Section -> keys that DeepSpeed knows, or knew; not taken from the table that is tried."""


def known_key(rng: Random) -> Path_:
    """Any key that DeepSpeed knows, often one of ZeRO's."""
    path = rng.choice(["zero_optimization", "zero_optimization", "", *_KEYS])
    return (*filter(None, path.split(".")), rng.choice(_KEYS[path].split()))


_WRONG: tuple[Any, ...] = (
    *("", "yes", "true", "12", "1e-4", "none", "some text", "0.5", "False"),
    *(None, True, False, 0, 1, -1, -0.5, 0.5, 2, 3, 7, 16.0, 1e30, 5e8, 2**40, 2**70),
    *([], [1, 2], ["a"], {}, {"enabled": True}, {"device": "cpu"}),
)


@mutator("a value of another type")
def _another_type(rng: Random, config: Config) -> Config | None:
    return put(config, rng.choice(leaves(config)), copy.deepcopy(rng.choice(_WRONG)))


@mutator("a section that is none")
def _no_section(rng: Random, config: Config) -> Config | None:
    found = [path for path in places(config) if path]
    return put(config, rng.choice(found), copy.deepcopy(rng.choice(_WRONG))) if found else None


@mutator("another known key")
def _known_key(rng: Random, config: Config) -> Config | None:
    return put(config, known_key(rng), copy.deepcopy(rng.choice(_WRONG)))


_LIKELY = (
    *(True, False, True, False, 0, 1, 2, 4, 1000, 500000, 5e5, 1e-3, 0.5, None),
    *("cpu", "none", "fp16", "bf16", "fp32", "mean", "sum", "auto", "Warn"),
)


@mutator("a likely value of a known key")
def _likely(rng: Random, config: Config) -> Config | None:
    return put(config, known_key(rng), rng.choice(_LIKELY))


def misspelled(rng: Random, name: str) -> str:
    """One slip of the fingers."""
    where = rng.randrange(len(name))
    slip = rng.randrange(5)
    if slip == 0 and len(name) > 1:
        return name[:where] + name[where + 1 :]
    if slip == 1:
        return name[:where] + name[where] + name[where:]
    if slip == 2 and where + 1 < len(name):
        return name[:where] + name[where + 1] + name[where] + name[where + 2 :]
    if slip == 3:
        return name[:where] + rng.choice(string.ascii_lowercase) + name[where + 1 :]
    return name.replace("_", "-", 1) if "_" in name else name.upper()


def renamed(config: Config, path: Path_, name: str) -> Config:
    """Another name for a key, at its place in the order."""
    section = at(config, path[:-1])
    items = [(name if key == path[-1] else key, value) for key, value in section.items()]
    section.clear()
    section.update(items)
    return config


@mutator("a misspelled key")
def _typo(rng: Random, config: Config) -> Config | None:
    path = rng.choice(leaves(config) + [one for one in places(config) if one])
    return renamed(config, path, misspelled(rng, path[-1]))


@mutator("a misspelled type or word")
def _wrong_word(rng: Random, config: Config) -> Config | None:
    found = [p for p in leaves(config) if isinstance(at(config, p), str) and at(config, p)]
    if not found:
        return None
    path = rng.choice(found)
    word = at(config, path)
    slips = [misspelled(rng, word), word.upper(), word.lower(), word.capitalize(), f"{word} "]
    return put(config, path, rng.choice(slips))


@mutator("a key at another level")
def _moved(rng: Random, config: Config) -> Config | None:
    path = rng.choice(leaves(config) + [one for one in places(config) if one])
    value = at(config, path)
    targets = [p for p in places(config) if p != path[:-1] and p[: len(path)] != path]
    if not targets:
        return None
    del at(config, path[:-1])[path[-1]]
    return put(config, (*rng.choice(targets), path[-1]), value)


@mutator("an unknown key")
def _unknown(rng: Random, config: Config) -> Config | None:
    names = ("max_norm", "learning_rate", "enabled", "device", "comment", "type", "foo", "_note")
    place = rng.choice(places(config))
    return put(config, (*place, rng.choice(names)), copy.deepcopy(rng.choice(_WRONG)))


@mutator("a key removed")
def _removed(rng: Random, config: Config) -> Config | None:
    path = rng.choice(leaves(config) + [one for one in places(config) if one])
    del at(config, path[:-1])[path[-1]]
    return config


@mutator("two keys removed")
def _two_removed(rng: Random, config: Config) -> Config | None:
    first = _removed(rng, config)
    return _removed(rng, first) if isinstance(first, dict) and first else None


@mutator("auto in an odd place")
def _auto(rng: Random, config: Config) -> Config | None:
    path = rng.choice(leaves(config)) if rng.random() < 0.7 else known_key(rng)
    return put(config, path, rng.choice(["auto", "auto", "auto", "Auto"]))


@mutator("batch sizes")
def _batch(rng: Random, config: Config) -> Config | None:
    names = (
        *("train_batch_size", "train_micro_batch_size_per_gpu"),
        "gradient_accumulation_steps",
    )
    for name in names:
        value = rng.choice([None, 1, 2, 3, 4, 6, 8, 16, 0, -1, 2.0, 2.5, "4", True])
        if rng.random() < 0.3:
            config.pop(name, None)
        elif rng.random() < 0.6:
            config[name] = rng.choice([1, 2, 4, 8])
        else:
            config[name] = value
    return config


@mutator("stage, offload, optimizer, precision")
def _combination(rng: Random, config: Config) -> Config | None:
    zero: Config = {"stage": rng.randrange(4)}
    for name in ("offload_optimizer", "offload_param"):
        if rng.random() < 0.4:
            zero[name] = {"device": rng.choice(["cpu", "cpu", "none"])}
    config["zero_optimization"] = zero
    for name in ("fp16", "bf16", "bfloat16", "torch_autocast"):
        config.pop(name, None)
    precision = rng.choice(["fp16", "bf16", "bfloat16", "fp32", "both"])
    if precision in ("fp16", "both"):
        config["fp16"] = {"enabled": True}
    if precision in ("bf16", "bfloat16", "both"):
        config["bf16" if precision == "both" else precision] = {"enabled": True}
    if rng.random() < 0.9:
        kinds = ("Adam", "AdamW", "Lamb", "Lion", "Adagrad", "SGD", "Muon", "RMSprop")
        params: Config = {"lr": 1e-3}
        if rng.random() < 0.3:
            params["torch_adam"] = True
        config["optimizer"] = {"type": rng.choice(kinds), "params": params}
    if rng.random() < 0.3:
        config["zero_allow_untested_optimizer"] = rng.random() < 0.5
    if rng.random() < 0.3:
        config["zero_force_ds_cpu_optimizer"] = rng.random() < 0.5
    config.pop("data_types", None)
    return config


_OPTIMIZERS: Mapping[str, tuple[str, ...]] = {
    "Adam": ("lr", "betas", "eps", "weight_decay", "amsgrad", "bias_correction", "adam_w_mode"),
    "AdamW": ("lr", "betas", "eps", "weight_decay", "amsgrad", "torch_adam", "fused"),
    "Lion": ("lr", "betas", "weight_decay"),
    "Adagrad": ("lr", "eps", "weight_decay", "amsgrad"),
    "SGD": ("lr", "momentum", "weight_decay", "nesterov", "dampening", "maximize"),
    "RMSprop": ("lr", "alpha", "eps", "momentum", "centered"),
    "Adamax": ("lr", "betas", "eps", "weight_decay"),
    "NAdam": ("lr", "betas", "momentum_decay"),
    "Lamb": ("lr", "betas", "eps", "max_coeff", "min_coeff"),
    "Muon": ("lr", "momentum", "weight_decay", "nesterov", "ns_steps"),
}
_FITTING: Mapping[str, tuple[Any, ...]] = {
    "lr": (1e-3, 0.1, 1, 0, "1e-3", -1.0, None),
    "betas": ([0.9, 0.999], [0.9], [0.9, 0.95, 0.99], 0.9, [1.5, 0.9], ["0.9", "0.99"], []),
    "eps": (1e-8, 0, "1e-8", -1, None),
    "weight_decay": (0.01, 0, "0.01", -0.1, None),
    "momentum": (0.9, 0, -1, "0.9"),
}


@mutator("an optimizer's parameters")
def _optimizer(rng: Random, config: Config) -> Config | None:
    kind = rng.choice(sorted(_OPTIMIZERS))
    names = rng.sample(_OPTIMIZERS[kind], rng.randrange(1, 4))
    values = (True, False, 0.5, 1, None, "0.5", [0.1])
    params: Config = {} if rng.random() < 0.2 else {"lr": 1e-3}
    params |= {name: rng.choice(_FITTING.get(name, values)) for name in names}
    if rng.random() < 0.3:
        odd = ("learning_rate", "beta1", "max_grad_norm", "foo", "beta", "decay", "lr_")
        params[rng.choice(odd)] = 0.5
    section: Config = {"type": kind, "params": params}
    if rng.random() < 0.05:
        del section[rng.choice(["type", "params"])]
    config["optimizer"] = section
    if rng.random() < 0.7:
        config["zero_allow_untested_optimizer"] = True
    return config


_SCHEDULERS: Mapping[str, Config] = {
    "WarmupLR": _WARMUP["params"] | {"warmup_type": "log", "last_batch_iteration": -1},
    "WarmupDecayLR": {
        "total_num_steps": 100,
        "warmup_min_lr": 0.0,
        "warmup_max_lr": 1e-3,
        "warmup_num_steps": 10,
        "warmup_type": "linear",
    },
    "WarmupCosineLR": {
        "total_num_steps": 100,
        "warmup_num_steps": 10,
        "warmup_min_ratio": 0.0,
        "cos_min_ratio": 0.1,
    },
    "OneCycle": {
        "cycle_min_lr": 1e-4,
        "cycle_max_lr": 1e-3,
        "decay_lr_rate": 0.0,
        "cycle_first_step_size": 10,
        "cycle_second_step_size": 10,
        "cycle_momentum": True,
        "cycle_min_mom": 0.8,
        "cycle_max_mom": 0.9,
    },
    "LRRangeTest": {
        "lr_range_test_min_lr": 1e-4,
        "lr_range_test_step_size": 10,
        "lr_range_test_step_rate": 5,
        "lr_range_test_staircase": False,
    },
    "StepLR": {"step_size": 1, "gamma": 0.1},
    "MultiStepLR": {"milestones": [1, 2], "gamma": 0.1},
    "ExponentialLR": {"gamma": 0.9},
    "CosineAnnealingLR": {"T_max": 100, "eta_min": 0.0},
    "LinearLR": {"start_factor": 0.5, "total_iters": 10},
    "OneCycleLR": {"max_lr": 0.1, "total_steps": 100},
    "ConstantLR": {"factor": 0.5, "total_iters": 4},
}


@mutator("a scheduler's parameters")
def _scheduler(rng: Random, config: Config) -> Config | None:
    kind = rng.choice(sorted(_SCHEDULERS))
    params = copy.deepcopy(_SCHEDULERS[kind])
    for _ in range(rng.randrange(3)):
        if not params:
            break
        name = rng.choice(sorted(params))
        if rng.random() < 0.5:
            del params[name]
        else:
            params[name] = copy.deepcopy(rng.choice(_WRONG))
    if rng.random() < 0.2:
        odd = ("warmup_steps", "max_lr", "foo", "num_training_steps", "total_steps", "lr")
        params[rng.choice(odd)] = 10
    section: Config = {"type": kind, "params": params}
    if rng.random() < 0.05:
        del section[rng.choice(["type", "params"])]
    config["scheduler"] = section
    return config


@mutator("a key written twice")
def _twice(rng: Random, config: Config) -> str | None:
    path = rng.choice(leaves(config))
    name, value = json.dumps(path[-1]), at(config, path)
    text = json.dumps(config, indent=2)
    found = [one.start() for one in re.finditer(re.escape(name) + ":", text)]
    if len(found) != 1:
        return None
    other = rng.choice([value, value, 1, True])
    return f"{text[: found[0]]}{name}: {json.dumps(other)}, {text[found[0] :]}"


@mutator("two changes")
def _two(rng: Random, config: Config) -> Config | str | None:
    kinds = [one for one in sorted(_MUTATORS) if not one.startswith(("two", "a key written"))]
    changed: Any = config
    for kind in rng.sample(kinds, 2):
        changed = _MUTATORS[kind](rng, changed)
        if not isinstance(changed, dict) or not changed:
            return None
    return changed


@mutator("as it is")
def _same(rng: Random, config: Config) -> Config | None:
    return config


@mutator("a section from another file")
def _from_another(rng: Random, config: Config) -> Config | None:
    other = DEEPSPEED_BASES[rng.choice(sorted(DEEPSPEED_BASES))]
    name = rng.choice(sorted(other))
    config[name] = copy.deepcopy(other[name])
    return config


def mutants(
    n: int, seed: int, *, consumers: tuple[str, ...], folder: Path | None = None
) -> Iterator[Mutant]:
    """Mutants of what the project ships, and of a folder's files where one is given.

    Args:
        n: How many.
        seed: Same seed, same mutants.
        consumers: `deepspeed`, `trainer`, `accelerate`.
        folder: owner/repository/commit/path of files that others ship.
    """
    bases = shipped_bases()
    if folder is not None:
        bases |= folder_bases(folder)
    weights = [{"deepspeed": 6, "trainer": 2, "accelerate": 2}[name] for name in consumers]
    made, number = 0, 0
    while made < n:
        # Each has dice of its own: one that is made otherwise leaves the others as they were.
        rng, name = Random(f"{seed}-{number}"), f"{seed}-{number}"
        number += 1
        consumer = rng.choices(consumers, weights)[0]
        told = _MAKERS[consumer](rng, bases)
        if told is not None:
            yield Mutant(name=name, consumer=consumer, **told)
            made += 1


def shipped_bases() -> dict[str, Config]:
    """Files that a script hands to DeepSpeed: own ones, rendered ones, those of the manual."""
    found = {name: copy.deepcopy(config) for name, config in DEEPSPEED_BASES.items()}
    for path in sorted((HERE / "tests/golden/render").glob("stage*.json")):
        found[f"rendered {path.stem}"] = json.loads(path.read_text())
    return found


def folder_bases(folder: Path) -> dict[str, Config]:
    """Every file of a folder that is a ds_config in JSON, without "auto" or with it."""
    found = {}
    for path in sorted(folder.rglob("*.json")):
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            continue
        told = {"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu"}
        if isinstance(config, dict) and told & config.keys():
            found[str(path.relative_to(folder))] = config
    return found


def has_auto(config: Config) -> bool:
    return any(at(config, path) == "auto" for path in leaves(config))


def _mutated(rng: Random, config: Config, kind: str) -> str | None:
    """The text of a configuration after a change; None where that is not possible."""
    changed = _MUTATORS[kind](rng, copy.deepcopy(config))
    if changed is None or isinstance(changed, str):
        return changed
    text = json.dumps(changed, indent=2)
    # JSON knows no infinity, and nothing that others read knows it.
    return None if "Infinity" in text or "NaN" in text else text + "\n"


def _for_deepspeed(rng: Random, bases: Mapping[str, Config]) -> dict[str, Any] | None:
    base = rng.choice(sorted(name for name in bases if not has_auto(bases[name])))
    world = 2 if rng.random() < 0.15 else 1
    config = sized(bases[base], world)
    kind = rng.choice(sorted(_MUTATORS))
    text = _mutated(rng, config, kind)
    if text is None:
        return None
    return {
        "kind": kind,
        "base": base,
        "world": world,
        "files": {CONFIG_FILE: text},
        "named": CONFIG_FILE,
    }


def sized(config: Config, world: int) -> Config:
    """The same with batch sizes that multiply for a world, as its owner would write them."""
    config = copy.deepcopy(config)
    micro, accum = (
        config.get("train_micro_batch_size_per_gpu"),
        config.get("gradient_accumulation_steps"),
    )
    total = config.get("train_batch_size")
    if type(total) is int and type(micro) is int:
        # Large batches of others need another world.
        most = micro * world * (accum if type(accum) is int else 1)
        config["train_batch_size"] = most
    elif type(total) is int and type(accum) is int:
        config["train_batch_size"] = accum * world
    return config


_ARGUMENT_CHANGES: tuple[tuple[str, Any], ...] = (
    *(("per_device_train_batch_size", value) for value in (1, 4, 0, -1)),
    *(("gradient_accumulation_steps", value) for value in (1, 4, 0)),
    *(("learning_rate", value) for value in (1e-4, 0.0003, "1e-3", 5)),
    *(("max_grad_norm", value) for value in (0.5, 1, 0)),
    *(("weight_decay", value) for value in (0, 0.01, 1)),
    *(("warmup_steps", value) for value in (0, 1, 10, 0.1)),
    *(("max_steps", value) for value in (1, 3)),
    *(("bf16", value) for value in (False,)),
    *(("fp16", value) for value in (True,)),
    *(("adam_beta1", value) for value in (0.8,)),
    *(("adam_beta2", value) for value in (0.95,)),
    *(("adam_epsilon", value) for value in (1e-6,)),
)


def _for_trainer(rng: Random, bases: Mapping[str, Config]) -> dict[str, Any] | None:
    named = {name: config for name, config in TRAINER_BASES.items()}
    named |= {name: config for name, config in bases.items() if has_auto(config)}
    base = rng.choice(sorted(named))
    config = copy.deepcopy(named[base])
    arguments = dict(TRAINER_ARGUMENTS)
    draw = rng.random()
    if draw < 0.3:
        kind = "Trainer's arguments"
        for name, value in rng.sample(_ARGUMENT_CHANGES, rng.randrange(1, 3)):
            arguments[name] = value
        if arguments.get("fp16"):
            arguments.pop("bf16")
        if rng.random() < 0.3:
            arguments.pop(rng.choice(["max_grad_norm", "learning_rate", "weight_decay"]))
        if rng.random() < 0.5:
            path, value = rng.choice(
                [
                    (("gradient_clipping",), 0.5),
                    (("train_micro_batch_size_per_gpu",), 2),
                    (("gradient_accumulation_steps",), 2),
                    (("train_batch_size",), 4),
                    (("optimizer",), {"type": "AdamW", "params": {"lr": 3e-4}}),
                    (("bf16", "enabled"), True),
                ]
            )
            put(config, path, value)
        text: str | None = json.dumps(config, indent=2)
    else:
        kind = rng.choice(sorted(_MUTATORS))
        text = _mutated(rng, config, kind)
    if text is None:
        return None
    if draw > 0.85:
        return _yaml_trainer(rng, text, arguments, kind, base)
    arguments["deepspeed"] = CONFIG_FILE
    words = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    return {
        "kind": kind,
        "base": base,
        "world": 1,
        "files": {CONFIG_FILE: text},
        "named": CONFIG_FILE,
        "arguments": tuple(words),
    }


def _yaml_trainer(
    rng: Random, text: str, arguments: Config, kind: str, base: str
) -> dict[str, Any] | None:
    """Arguments in YAML, with the configuration as a section or as the name of a file."""
    files = {CONFIG_FILE: text}
    if rng.random() < 0.5:
        try:
            content: Any = json.loads(text)
        except ValueError:
            return None
        if kind == "a key written twice":
            return None
        files = {}
    else:
        content = CONFIG_FILE
    told = yaml.safe_dump(arguments | {"deepspeed": content}, sort_keys=False)
    # As people write it: YAML 1.1 reads 3e-4 as text.
    if rng.random() < 0.4:
        for number, short in (("0.0003", "3e-4"), ("1000000000.0", "1e9"), ("500000.0", "5e5")):
            told = told.replace(number, short)
        kind = "numbers of YAML"
    return {
        "kind": kind,
        "base": base,
        "world": 1,
        "files": files | {TRAINER_FILE: told},
        "named": TRAINER_FILE,
    }


_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "zero_stage": (0, 1, 2, 3, 4, -1, "2", "two", None, 2.0, True),
    "gradient_accumulation_steps": (1, 2, 4, 0, -1, "auto", "2", None, 2.5),
    "gradient_clipping": (1.0, 0.5, 0, "auto", "none", None, -1, 1, "1e0"),
    "offload_optimizer_device": ("none", "cpu", "gpu", None, True, "CPU"),
    "offload_param_device": ("none", "cpu", "gpu", None, True),
    "zero3_init_flag": (True, False, "yes", None, 1, "true"),
    "zero3_save_16bit_model": (True, False, "yes", None, "false"),
    "zero_sage": (2,),
    "deepspeed_hostfile": (None, "hosts"),
    "deepspeed_multinode_launcher": ("standard", "pdsh", "foo"),
    "deepspeed_config_file": (CONFIG_FILE, "none", "other.json", None),
}
_TOP: Mapping[str, tuple[Any, ...]] = {
    "mixed_precision": ("no", "fp16", "bf16", "fp8", "foo", True, None, "FP16", "'no'"),
    "num_processes": (1, 0, "one", None),
    "num_machines": (1, 0, "one"),
    "distributed_type": ("NO", "DEEPSPEED", "MULTI_GPU", "deepspeed", "FOO"),
    "debug": (True, "yes"),
    "downcast_bf16": ("no", "yes"),
    "rdzv_backend": ("static",),
    "unknown_field": (1,),
    "use_cpu": (True, False),
    "gradient_accumulation_steps": (4,),
}


def _for_accelerate(rng: Random, bases: Mapping[str, Config]) -> dict[str, Any] | None:
    name = rng.choice(sorted(ACCELERATE_SECTIONS))
    outer = copy.deepcopy(ACCELERATE_BASE)
    section = copy.deepcopy(ACCELERATE_SECTIONS[name])
    outer["deepspeed_config"] = section
    files: dict[str, str] = {}
    base, kind = name, "an accelerate file's fields"
    if name == "file":
        named = {key: config for key, config in (*TRAINER_BASES.items(), *bases.items())}
        base = rng.choice(sorted(named))
        config = sized(named[base], 1)
        if rng.random() < 0.7:
            kind = rng.choice(sorted(_MUTATORS))
            text = _mutated(rng, config, kind)
            if text is None:
                return None
        else:
            text = json.dumps(config, indent=2)
        files[CONFIG_FILE] = text
    elif rng.random() < 0.8:
        outer["mixed_precision"] = rng.choice(["no", "bf16", "fp16"])
    if kind == "an accelerate file's fields":
        for _ in range(rng.randrange(1, 3)):
            field_, values = rng.choice(sorted(_FIELDS.items()))
            section[field_] = rng.choice(values)
        if rng.random() < 0.4:
            field_, values = rng.choice(sorted(_TOP.items()))
            outer[field_] = rng.choice(values)
        if rng.random() < 0.15:
            section.pop(rng.choice(sorted(section)))
    return {
        "kind": kind,
        "base": base,
        "world": 1,
        "files": files | {ACCELERATE_FILE: yaml.safe_dump(outer)},
        "named": ACCELERATE_FILE,
    }


_MAKERS: Mapping[str, Callable[[Random, Mapping[str, Config]], dict[str, Any] | None]] = {
    "deepspeed": _for_deepspeed,
    "trainer": _for_trainer,
    "accelerate": _for_accelerate,
}
