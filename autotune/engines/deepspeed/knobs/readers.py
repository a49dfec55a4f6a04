"""Values of knobs as a whole ds_config chooses them; None: it says nothing."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from autotune.base.nested import look_up
from autotune.engines.deepspeed.knobs.situation import optimizer_implementation

ZENFLOW = "zero_optimization.zenflow"
_OPTIMIZER = "zero_optimization.offload_optimizer"
_PIPELINES = {
    (True, True): "both",
    (True, False): "read",
    (False, True): "write",
    (False, False): "none",
}
_DTYPES = {
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
}
"""DeepSpeed's other names of data types."""
PASSES = {
    "activations": "offload_activation",
    "optimizer": "offload_opt_states",
    "params": "offload_parameters",
}
"""Value of compile.offload -> the key that switches its pass on."""


def _read_sequence(config: Mapping[str, Any]) -> Any:
    # With the pass it is the compiler's degree: the script must not split once more.
    passes = look_up(config, "compile.passes")
    has_auto_sp = isinstance(passes, list) and "autosp" in passes
    return None if has_auto_sp else look_up(config, "sequence_parallel_size")


def _read_experts(config: Mapping[str, Any]) -> Any:
    section = look_up(config, "expert_parallel")
    is_on = isinstance(section, Mapping) and section.get("enabled")
    return section.get("autoep_size") if is_on else None


def _device(section: str, config: Mapping[str, Any]) -> Any:
    found = look_up(config, section)
    return found.get("device", "none") if isinstance(found, Mapping) else found


_read_optimizer_device = partial(_device, _OPTIMIZER)
_read_param_device = partial(_device, "zero_optimization.offload_param")


def _read_pipeline(config: Mapping[str, Any]) -> Any:
    ways = [look_up(config, f"{_OPTIMIZER}.pipeline_{way}") for way in ("read", "write")]
    return None if ways == [None, None] else _PIPELINES[ways[0] is True, ways[1] is True]


def _read_zenflow(config: Mapping[str, Any]) -> Any:
    section = look_up(config, ZENFLOW)
    if not isinstance(section, Mapping):
        return None
    return "overlap" if section.get("overlap_step") is True else "sequential"


def _read_interval(config: Mapping[str, Any]) -> Any:
    """The interval in optimizer steps, where the file counts micro-batches; None: none is set."""
    select, update = (look_up(config, f"{ZENFLOW}.{of}_interval") for of in ("select", "update"))
    if type(select) is not int or type(update) is not int or select < update or update < 1:
        return None
    return select // update


def _read_precision(config: Mapping[str, Any]) -> Any:
    on = [name for name in ("bf16", "fp16") if look_up(config, f"{name}.enabled") is True]
    return on[0] if on else "fp32"


def _read_accumulation(config: Mapping[str, Any]) -> Any:
    value = look_up(config, "data_types.grad_accum_dtype")
    return None if value is None else _DTYPES.get(str(value).removeprefix("torch."), value)


def _read_passes(config: Mapping[str, Any]) -> Any:
    section = look_up(config, "compile")
    if not isinstance(section, Mapping) or section.get("deepcompile") is not True:
        return None
    return next((name for name, key in PASSES.items() if section.get(key) is True), "none")


def _read_implementation(config: Mapping[str, Any]) -> Any:
    return optimizer_implementation(look_up(config, "optimizer.params"))
