"""Which keys of a ds_config.json a knob governs, and how its value is read back from them."""

from collections.abc import Callable, Mapping
from typing import Any

from autotune.base.nested import look_up
from autotune.contract import KnobValue
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.engines.deepspeed.knobs.situation import optimizer_implementation

_OFFLOAD = "zero_optimization.offload_optimizer"
_PARAM = "zero_optimization.offload_param"

PATHS: dict[str, str] = {
    "zero.stage": "zero_optimization.stage",
    "tp": "tensor_parallel.autotp_size",
    "sp": "sequence_parallel_size",
    "ep": "expert_parallel.autoep_size",
    "micro_batch": "train_micro_batch_size_per_gpu",
    "offload.optimizer": _OFFLOAD,
    "offload.param": _PARAM,
    "grad_accum_dtype": "data_types.grad_accum_dtype",
    "master_dtype": "bf16.bf16_master_weights_and_grads",
    "optimizer_states_dtype": "bf16.bf16_optimizer_states",
    "contiguous_gradients": "zero_optimization.contiguous_gradients",
    "reduce_scatter": "zero_optimization.reduce_scatter",
    "round_robin_gradients": "zero_optimization.round_robin_gradients",
    "reduce_bucket_size": "zero_optimization.reduce_bucket_size",
    "allgather_bucket_size": "zero_optimization.allgather_bucket_size",
    "overlap_comm": "zero_optimization.overlap_comm",
    "stage3.prefetch_bucket_size": "zero_optimization.stage3_prefetch_bucket_size",
    "stage3.param_persistence_threshold": "zero_optimization.stage3_param_persistence_threshold",
    "stage3.max_live_parameters": "zero_optimization.stage3_max_live_parameters",
    "stage3.max_reuse_distance": "zero_optimization.stage3_max_reuse_distance",
    "stage3.sub_group_size": "zero_optimization.sub_group_size",
    "communication_dtype": "communication_data_type",
    "zeropp.hpz_partition_size": "zero_optimization.zero_hpz_partition_size",
    "zeropp.quantized_weights": "zero_optimization.zero_quantized_weights",
    "zeropp.quantized_gradients": "zero_optimization.zero_quantized_gradients",
    "offload.ratio": f"{_OFFLOAD}.ratio",
    "offload.pipeline": f"{_OFFLOAD}.pipeline_read",
    "offload.param_buffer_count": f"{_PARAM}.buffer_count",
    "offload.param_max_in_cpu": f"{_PARAM}.max_in_cpu",
    "offload.super": f"{_OFFLOAD}.super_offload",
    "zenflow": "zero_optimization.zenflow",
    "zenflow.topk_ratio": "zero_optimization.zenflow.topk_ratio",
    "zenflow.select_interval": "zero_optimization.zenflow.select_interval",
    "compile": "compile.deepcompile",
    "optimizer.implementation": "optimizer.params.torch_adam",
}
"""Knob -> the key of ds_config.json that it governs, dotted; the first one of several."""

_MORE_KEYS: dict[str, tuple[str, ...]] = {
    "sp": ("data_parallel_size",),
    "ep": ("expert_parallel.enabled",),
    "master_dtype": ("fp16.fp16_master_weights_and_grads",),
    "offload.pipeline": (f"{_OFFLOAD}.pipeline_write", f"{_OFFLOAD}.buffer_count"),
    "offload.param_buffer_count": (f"{_PARAM}.buffer_size",),
    "optimizer.implementation": ("optimizer.params.fused",),
}

SECTIONS = ("offload.optimizer", "offload.param")
"""Knobs whose key is a section that other knobs, and the user's own options, stand in."""

_DTYPES = {
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
}


def governed_keys(knob: str) -> tuple[str, ...]:
    """Every key that a knob governs, dotted."""
    return (PATHS[knob], *_MORE_KEYS.get(knob, ()))


def read_knob(config: Mapping[str, Any], knob: str, *, where: str = "") -> KnobValue | None:
    """The value that a configuration chooses for a knob.

    Args:
        config: A whole ds_config.
        knob: One of `PATHS`.
        where: The file, for the error; empty for a configuration that was rendered, which is
            taken as it is.

    Returns:
        None where it says nothing.

    Raises:
        JobError: The value is not one of the knob's.
    """
    reader = _READERS.get(knob)
    value: KnobValue | None = look_up(config, PATHS[knob]) if reader is None else reader(config)
    if value is None or not where:
        return value
    return KNOBS[knob].check(value, where=f"{where}: {PATHS[knob]}")


def _device(path: str) -> Callable[[Mapping[str, Any]], Any]:
    def read(config: Mapping[str, Any]) -> Any:
        section = look_up(config, path)
        if isinstance(section, Mapping):
            return section.get("device", "none")
        return section

    return read


def _accumulation(config: Mapping[str, Any]) -> Any:
    value = look_up(config, PATHS["grad_accum_dtype"])
    return _DTYPES.get(str(value).removeprefix("torch."), value) if value is not None else None


def _masters(config: Mapping[str, Any]) -> Any:
    keys = governed_keys("master_dtype")
    return _either([look_up(config, key) for key in keys])


def _states(config: Mapping[str, Any]) -> Any:
    return _either([look_up(config, PATHS["optimizer_states_dtype"])])


def _either(switches: list[Any]) -> str | None:
    """`model` where a switch is on, `fp32` where one is off and none is on."""
    if any(switch is True for switch in switches):
        return "model"
    return "fp32" if any(switch is False for switch in switches) else None


def _pipeline(config: Mapping[str, Any]) -> Any:
    reads, writes = (look_up(config, f"{_OFFLOAD}.pipeline_{way}") for way in ("read", "write"))
    if reads is None and writes is None:
        return None
    return {
        (True, True): "both",
        (True, False): "read",
        (False, True): "write",
        (False, False): "none",
    }[(reads is True, writes is True)]


def _zenflow(config: Mapping[str, Any]) -> Any:
    section = look_up(config, PATHS["zenflow"])
    if not isinstance(section, Mapping):
        return None
    return "overlap" if section.get("overlap_step") is True else "sequential"


def _selection(config: Mapping[str, Any]) -> Any:
    """The interval in optimizer steps, where the file counts micro-batches; None: none is set."""
    select = look_up(config, PATHS["zenflow.select_interval"])
    update = look_up(config, f"{PATHS['zenflow']}.update_interval")
    if type(select) is not int or type(update) is not int or select < update or update < 1:
        return None
    return select // update


def _deepcompile(config: Mapping[str, Any]) -> Any:
    # Without it a script may call engine.compile() or not: the file does not say.
    return "deepcompile" if look_up(config, PATHS["compile"]) is True else None


def _experts(config: Mapping[str, Any]) -> Any:
    return look_up(config, PATHS["ep"]) if look_up(config, "expert_parallel.enabled") else None


def _sequence(config: Mapping[str, Any]) -> Any:
    # With the pass it is the compiler's degree: the script must not split once more.
    passes = look_up(config, "compile.passes")
    has_auto_sp = isinstance(passes, list) and "autosp" in passes
    return None if has_auto_sp else look_up(config, PATHS["sp"])


def _implementation(config: Mapping[str, Any]) -> Any:
    return optimizer_implementation(look_up(config, "optimizer.params"))


_READERS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "offload.optimizer": _device(_OFFLOAD),
    "offload.param": _device(_PARAM),
    "grad_accum_dtype": _accumulation,
    "master_dtype": _masters,
    "optimizer_states_dtype": _states,
    "offload.pipeline": _pipeline,
    "zenflow": _zenflow,
    "zenflow.select_interval": _selection,
    "compile": _deepcompile,
    "ep": _experts,
    "sp": _sequence,
    "optimizer.implementation": _implementation,
}
