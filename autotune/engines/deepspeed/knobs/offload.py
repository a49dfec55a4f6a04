"""Knobs of offload: optimizer states and parameters on the host or on a disk."""

from collections.abc import Callable, Mapping
from typing import Any

from autotune.base.nested import look_up
from autotune.contract import KnobValue
from autotune.engines.deepspeed.knobs.base import DeepSpeedKnob
from autotune.engines.deepspeed.knobs.situation import (
    at_stages,
    elements_in_partition,
    has_adam,
    has_pipeline,
)
from autotune.space.knob import Context, Knobs

_OPTIMIZER = "zero_optimization.offload_optimizer"
_PARAM = "zero_optimization.offload_param"
ZENFLOW = "zero_optimization.zenflow"
_HAS_ZENFLOW = {"zenflow": ("sequential", "overlap")}


def _fold_optimizer(value: KnobValue, values: Knobs, _: Context) -> KnobValue:
    # Below stage 3 nothing swaps: the states stay on the host (stage_1_and_2.py: __init__).
    return "cpu" if value == "nvme" and values.get("zero.stage") != 3 else value


def _splits_states(values: Knobs, context: Context) -> bool:
    # Whole sub-groups go to one side or the other (stage3.py: _create_fp32_partitions), and on a
    # CPU both sides are the host.
    group = int(values.get("stage3.sub_group_size", 1))
    return (
        values.get("offload.optimizer") == "cpu"
        and context.accelerator != "cpu"
        and has_adam(context)
        and group < elements_in_partition(values, context)
    )


def _fold_kept(value: KnobValue, values: Knobs, context: Context) -> KnobValue:
    return min(int(value), elements_in_partition(values, context))


def _is_on_host(values: Knobs, context: Context) -> bool:
    return values.get("offload.optimizer") == "cpu" and has_adam(context)


def _may_select(values: Knobs, context: Context) -> bool:
    # Its updates hang on the engine's step(), which a pipeline does not call (pipe/engine.py).
    return _is_on_host(values, context) and not has_pipeline(values)


def _device(section: str) -> Callable[[Mapping[str, Any]], Any]:
    def read(config: Mapping[str, Any]) -> Any:
        found = look_up(config, section)
        return found.get("device", "none") if isinstance(found, Mapping) else found

    return read


_PIPELINES = {
    (True, True): "both",
    (True, False): "read",
    (False, True): "write",
    (False, False): "none",
}


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


ENTRIES = (
    DeepSpeedKnob(
        # At stage 0 it would swap the optimizer's kernel and offload nothing
        # (engine.py: _configure_basic_optimizer).
        name="offload.optimizer",
        key=_OPTIMIZER,
        reader=_device(_OPTIMIZER),
        read_back="offload_optimizer",
        default="none",
        choices=("none", "cpu", "nvme"),
        scope="at stages 1 to 3; nvme at stage 3, and below it means cpu",
        when=at_stages(1, 2, 3),
        fold=_fold_optimizer,
        help="where optimizer states live and are updated; nvme: on the job's `nvme_path`",
        source="runtime/zero/offload_config.py",
    ),
    DeepSpeedKnob(
        # Nothing but the stage 3 branch hands it on (engine.py: _configure_zero_optimizer).
        name="offload.param",
        key=_PARAM,
        reader=_device(_PARAM),
        read_back="offload_param",
        default="none",
        choices=("none", "cpu", "nvme"),
        scope="at stage 3",
        when=at_stages(3),
        help="where sharded parameters live between uses; nvme: on the job's `nvme_path`",
        source="runtime/engine.py: _configure_zero_optimizer",
    ),
)
"""Other knobs look at these two, so they come early in the registry."""

DETAILS = (
    DeepSpeedKnob(
        name="offload.ratio",
        key=f"{_OPTIMIZER}.ratio",
        read_back="offload_ratio",
        default=1.0,
        maximum=1.0,
        scope="on a GPU at stage 3 with the optimizer on the host and several sub-groups",
        when=at_stages(3) | {"offload.optimizer": ("cpu", "nvme")},
        acts=_splits_states,
        help="share of the optimizer states that is offloaded; the rest stays on the device",
        source="runtime/zero/stage3.py: _create_fp32_partitions, _optimizer_step",
    ),
    DeepSpeedKnob(
        name="offload.pipeline",
        key=f"{_OPTIMIZER}.pipeline_read",
        more_keys=(f"{_OPTIMIZER}.pipeline_write", f"{_OPTIMIZER}.buffer_count"),
        reader=_read_pipeline,
        read_back="offload_pipeline",
        default="none",
        choices=("none", "read", "write", "both"),
        scope="at stage 3 with the optimizer on nvme",
        when=at_stages(3) | {"offload.optimizer": ("nvme",)},
        help="overlap reading the next sub-group's states, or writing the last one's, with the "
        "update; each takes four more buffers of a sub-group on the host",
        source="runtime/swap_tensor/pipelined_optimizer_swapper.py",
    ),
    DeepSpeedKnob(
        name="offload.param_buffer_count",
        key=f"{_PARAM}.buffer_count",
        more_keys=(f"{_PARAM}.buffer_size",),
        read_back="offload_param_buffer_count",
        default=5,
        minimum=1,
        scope="at stage 3 with parameters on nvme",
        when=at_stages(3) | {"offload.param": ("nvme",)},
        help="buffers of the largest parameter's size that hold partitions on their way",
        source="runtime/swap_tensor/partitioned_param_swapper.py",
    ),
    DeepSpeedKnob(
        # stage3.py: _create_param_groups_fp16_flat_cpu_memory
        name="offload.param_max_in_cpu",
        key=f"{_PARAM}.max_in_cpu",
        read_back="offload_param_max_in_cpu",
        default=1_000_000_000,
        scope="at stage 3 with parameters on nvme",
        when=at_stages(3) | {"offload.param": ("nvme",)},
        fold=_fold_kept,
        help="elements of a rank's parameters that stay on the host all the same; 0 swaps all",
        source="runtime/zero/stage3.py: _create_param_groups_fp16_flat_cpu_memory",
    ),
    DeepSpeedKnob(
        name="offload.super",
        key=f"{_OPTIMIZER}.super_offload",
        by_template=True,
        read_back="super_offload",
        default=False,
        scope="at stage 3 with the optimizer on the host",
        when=at_stages(3),
        acts=_is_on_host,
        needs_cuda=(True,),
        help="SuperOffload: the host's update runs in a process of its own beside backward; for "
        "hosts with a fast link (GH200, GB200)",
        source="runtime/superoffload/superoffload_stage3.py",
    ),
    DeepSpeedKnob(
        name="zenflow",
        key=ZENFLOW,
        reader=_read_zenflow,
        read_back="zenflow",
        default="none",
        choices=("none", "sequential", "overlap"),
        scope="at stages 1 and 2, and on a GPU at stage 3, with Adam on the host and no pipeline",
        when=at_stages(1, 2, 3),
        acts=_may_select,
        help="ZenFlow: the columns with the largest gradients are updated on the device, the rest "
        "on the host; overlap: the host's update runs beside the next step",
        changes_training="selected columns are updated apart, after every micro-batch, and with "
        "overlap the rest comes a step late; at stages 1 and 2 DeepSpeed 0.19.8 also begins with "
        "wrong weights: every matrix holds the numbers of its transpose, in its own shape",
        source="runtime/zenflow/engine.py",
    ),
    DeepSpeedKnob(
        name="zenflow.topk_ratio",
        key=f"{ZENFLOW}.topk_ratio",
        read_back="zenflow_topk_ratio",
        default=0.1,
        minimum=0.001,
        maximum=0.999,
        scope="with zenflow",
        when=_HAS_ZENFLOW,
        help="share of the columns that are selected",
        changes_training="more columns are updated at once",
        source="runtime/zenflow/zenflow_config.py",
    ),
    DeepSpeedKnob(
        name="zenflow.select_interval",
        key=f"{ZENFLOW}.select_interval",
        reader=_read_interval,
        read_back="zenflow_select_interval",
        default=1,
        minimum=1,
        scope="with zenflow",
        when=_HAS_ZENFLOW,
        help="optimizer steps after which columns are selected anew",
        changes_training="columns are selected by older gradients",
        source="runtime/zenflow/engine.py: configure_zenflow",
    ),
)
