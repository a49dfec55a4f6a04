"""Knobs of number formats: of accumulated gradients, master weights and optimizer states."""

from collections.abc import Mapping
from typing import Any

from autotune.base.nested import look_up
from autotune.contract import KnobValue
from autotune.engines.deepspeed.knobs.base import DeepSpeedKnob
from autotune.engines.deepspeed.knobs.situation import (
    at_stages,
    shards_gradients,
    training_precision,
)
from autotune.space.knob import Context, Knobs

_DTYPES = {
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
}
"""DeepSpeed's other names of data types."""


def _is_another(values: Knobs, context: Context) -> bool:
    return values["precision"] not in ("default", context.precision)


def _fold_accumulation(value: KnobValue, values: Knobs, context: Context) -> KnobValue:
    # engine.py: get_data_types answers the training precision where none is set.
    return "model" if value == training_precision(values, context) else value


def _has_low_precision(values: Knobs, context: Context) -> bool:
    # BF16_Optimizer is not given it (engine.py: _configure_bf16_optimizer).
    return training_precision(values, context) != "fp32" and shards_gradients(values, context)


def _has_low_masters(values: Knobs, context: Context) -> bool:
    low = values.get("master_dtype", "fp32") == "model"
    is_bf16 = training_precision(values, context) == "bf16"
    return low and is_bf16 and _has_low_precision(values, context)


def _read_precision(config: Mapping[str, Any]) -> Any:
    on = [name for name in ("bf16", "fp16") if look_up(config, f"{name}.enabled") is True]
    return on[0] if on else "fp32"


def _read_accumulation(config: Mapping[str, Any]) -> Any:
    value = look_up(config, "data_types.grad_accum_dtype")
    return None if value is None else _DTYPES.get(str(value).removeprefix("torch."), value)


def _read_masters(config: Mapping[str, Any]) -> Any:
    key = "master_weights_and_grads"
    return _either(config, f"bf16.bf16_{key}", f"fp16.fp16_{key}")


def _read_states(config: Mapping[str, Any]) -> Any:
    return _either(config, "bf16.bf16_optimizer_states")


def _either(config: Mapping[str, Any], *keys: str) -> str | None:
    """`model` where a switch is on, `fp32` where one is off and none is on."""
    switches = [look_up(config, key) for key in keys]
    if any(switch is True for switch in switches):
        return "model"
    return "fp32" if any(switch is False for switch in switches) else None


ENTRIES = (
    DeepSpeedKnob(
        name="precision",
        key="bf16.enabled",
        more_keys=("fp16.enabled",),
        reader=_read_precision,
        default="default",
        choices=("default", "bf16", "fp16", "fp32"),
        scope="where it is another one than the job's",
        acts=_is_another,
        help="precision of the training; default: the job's. fp16 scales its loss as DeepSpeed "
        "does by itself, and skips the steps that overflow",
        changes_training="numbers are rounded otherwise; fp16 also ends sooner, at 65504",
        source="runtime/engine.py: _configure_distributed_model, get_data_types",
    ),
    DeepSpeedKnob(
        # Stage 0 takes no other than the training precision (engine.py:
        # _do_optimizer_sanity_check).
        name="grad_accum_dtype",
        key="data_types.grad_accum_dtype",
        reader=_read_accumulation,
        default="model",
        choices=("model", "fp32", "fp16", "bf16"),
        scope="at stages 1 to 3",
        when=at_stages(1, 2, 3),
        fold=_fold_accumulation,
        help="data type in which gradients are added up; model: the training precision. fp32 with "
        "bf16 at stage 1 is another optimizer of DeepSpeed's, without buckets",
        changes_training="fp32 sums are more exact, and cost two bytes more per gradient",
        source="runtime/engine.py: get_data_types, _do_optimizer_sanity_check",
    ),
    DeepSpeedKnob(
        name="master_dtype",
        key="bf16.bf16_master_weights_and_grads",
        more_keys=("fp16.fp16_master_weights_and_grads",),
        reader=_read_masters,
        default="fp32",
        choices=("fp32", "model"),
        scope="at stages 1 to 3 in bf16 and fp16; with fp32 states only with Adam on the host",
        when=at_stages(1, 2, 3),
        acts=_has_low_precision,
        help="data type of the master weights and their gradients; model: the training precision",
        changes_training="small updates are lost: master weights have 16 bits",
        source="runtime/base_optimizer.py: _configure_master_weights",
    ),
    DeepSpeedKnob(
        name="optimizer_states_dtype",
        key="bf16.bf16_optimizer_states",
        reader=_read_states,
        default="fp32",
        choices=("fp32", "model"),
        scope="in bf16 at stages 1 to 3 with master_dtype model",
        when=at_stages(1, 2, 3),
        acts=_has_low_masters,
        help="data type of the optimizer's moments; model: bf16",
        changes_training="the moments have 16 bits",
        source="runtime/config.py: bf16_optimizer_states",
    ),
)
