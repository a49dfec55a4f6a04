"""Offload: where optimizer states and parameters live, and which stage can do it."""

from collections.abc import Mapping
from typing import Any

from autotune.engines.deepspeed.rules.adam import (
    CPU_ADAM,
    adam_in_words,
    cpu_adam_by,
    uses_cpu_adam,
)
from autotune.engines.deepspeed.rules.base import (
    Case,
    Setup,
    Witness,
    as_section,
    ignored,
    patch,
    raised,
)
from autotune.space.rule import Finding, Patch, rule


def _section(setup: Setup, name: str) -> Mapping[str, Any]:
    return as_section(setup.zero.get(name))


def _removal(setup: Setup, name: str, deprecated: str) -> Patch:
    return {"zero_optimization": dict.fromkeys({name, deprecated} & setup.zero.keys())}


def _optimizer(stage: int, **keys: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, "offload_optimizer": {"device": "cpu"} | keys}}


def _without(name: str, key: str | None = None) -> dict[str, Any]:
    return {"zero_optimization": {name: None if key is None else {key: None}}}


@rule(
    "offload.param_needs_stage_3",
    "runtime/engine.py: _configure_zero_optimizer passes it to stage 3 only",
    *(
        ignored(
            {"zero_optimization": {"stage": stage, "offload_param": {"device": "cpu"}}},
            _without("offload_param"),
            acts_with={"zero_optimization": {"stage": 3}},
        )
        for stage in (0, 2)
    ),
)
def _param_stage(setup: Setup) -> Finding | None:
    if setup.param_offload == "none" or setup.stage == 3:
        return None
    return Finding(
        message=f"zero_optimization.offload_param to {setup.param_offload} at stage "
        f"{setup.stage}: only stage 3 shards parameters, the others ignore it",
        changes=_removal(setup, "offload_param", "cpu_offload_param"),
        advice="or set zero_optimization.stage to 3",
    )


@rule(
    "offload.optimizer_at_stage_0",
    "runtime/engine.py:2384: zero_use_cpu_optimizer does not ask for the stage",
    Witness(
        broken=Case(ds_config=CPU_ADAM | _optimizer(0)),
        repaired=Case(ds_config=CPU_ADAM | _optimizer(1)),
        consequence="differs",
        reads={"optimizer": "DeepSpeedCPUAdam", "optimizer_offload": False},
    ),
)
def _optimizer_stage(setup: Setup) -> Finding | None:
    if setup.optimizer_offload == "none" or setup.stage > 0:
        return None
    return Finding(
        message=f"zero_optimization.offload_optimizer to {setup.optimizer_offload} at stage 0: "
        "nothing is offloaded, and the optimizer becomes DeepSpeed's CPU one",
        changes=_removal(setup, "offload_optimizer", "cpu_offload"),
        advice="or set zero_optimization.stage to 1",
    )


@rule(
    "offload.nvme_without_path",
    "runtime/zero/partition_parameters.py:1225-1230",
    raised(
        "TypeError: expected str, bytes or os.PathLike object",
        _optimizer(3, device="nvme"),
        _optimizer(3, device="cpu"),
    ),
    raised(
        'AssertionError: "nvme_path" in DeepSpeed Config cannot be None',
        {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
        {"zero_optimization": {"offload_param": {"device": "cpu"}}},
    ),
)
def _nvme_path(setup: Setup) -> Finding | None:
    if setup.stage != 3:
        return None
    found = [
        f"zero_optimization.{name}"
        for name in ("offload_optimizer", "offload_param")
        if _section(setup, name).get("device") == "nvme"
        and _section(setup, name).get("nvme_path") is None
    ]
    if not found:
        return None
    return Finding(
        message=" and ".join(f"{name}.device=nvme" for name in found) + " without a nvme_path",
        advice=f"set {' and '.join(f'{name}.nvme_path' for name in found)} to a folder on a "
        "local disk",
    )


@rule(
    "offload.nvme_needs_stage_3",
    "runtime/zero/stage_1_and_2.py:220",
    Witness(
        broken=Case(ds_config=CPU_ADAM | _optimizer(2, device="nvme")),
        repaired=Case(ds_config=CPU_ADAM | _optimizer(2)),
        consequence="differs",
        reads={"optimizer_offload": True, "optimizer_swap": False},
        takes_back=True,
    ),
)
def _nvme_stage(setup: Setup) -> Finding | None:
    if setup.optimizer_offload != "nvme" or setup.stage not in (1, 2):
        return None
    return Finding(
        message=f"zero_optimization.offload_optimizer.device=nvme at stage {setup.stage}: only "
        "stage 3 swaps to a disk, the states stay in the host's memory",
        changes=_offload_optimizer(device="cpu"),
    )


@rule(
    "offload.ratio_needs_stage_3",
    "runtime/zero/config.py:396-400",
    raised(
        "Partial offloading only supported for ZeRO Stage 3",
        _optimizer(2, ratio=0.5) | CPU_ADAM,
        _optimizer(3),
    ),
)
def _ratio_stage(setup: Setup) -> Finding | None:
    ratio = _section(setup, "offload_optimizer").get("ratio", 1.0)
    if ratio >= 1 or setup.stage == 3:
        return None
    return Finding(
        message=f"zero_optimization.offload_optimizer.ratio={ratio:g} at stage {setup.stage}: "
        "partial offload needs stage 3",
        changes=_offload_optimizer(ratio=1.0),
    )


@rule(
    "offload.ratio_needs_cpu_adam",
    "runtime/zero/stage3.py:313-316",
    raised(
        "AssertionError: Hybrid Optimizer Only Supports DeepSpeedCPUAdam",
        _optimizer(3, ratio=0.5),
        CPU_ADAM,
    ),
)
def _ratio_optimizer(setup: Setup) -> Finding | None:
    ratio = _section(setup, "offload_optimizer").get("ratio", 1.0)
    if ratio >= 1 or setup.stage != 3 or setup.optimizer_offload == "none":
        return None
    if uses_cpu_adam(setup):
        return None
    cpu_adam = cpu_adam_by(setup)
    is_adam = setup.optimizer in ("adam", "adamw")
    return Finding(
        message=f"zero_optimization.offload_optimizer.ratio={ratio:g} needs DeepSpeed's CPU Adam, "
        f"which this is not: {adam_in_words(setup)}",
        changes=cpu_adam or _offload_optimizer(ratio=1.0),
        advice="" if is_adam else "or set optimizer.type to AdamW",
    )


@rule(
    "offload.super_needs_stage_3",
    "runtime/engine.py: super_offload is asked at stage 3 only",
    ignored(
        _optimizer(2, super_offload=True) | CPU_ADAM,
        _without("offload_optimizer", "super_offload"),
    ),
)
def _super_stage(setup: Setup) -> Finding | None:
    if _section(setup, "offload_optimizer").get("super_offload") is not True:
        return None
    if setup.stage == 3:
        return None
    return Finding(
        message=f"zero_optimization.offload_optimizer.super_offload=true at stage {setup.stage} "
        "is ignored: it acts at stage 3",
        changes=_offload_optimizer(super_offload=None),
    )


@rule(
    "offload.super_needs_cuda",
    "runtime/superoffload/superoffload_stage3.py:20-24",
    raised(
        "AssertionError: SuperOffload only supports NVIDIA CUDA GPUs",
        _optimizer(3, super_offload=True) | CPU_ADAM,
        _without("offload_optimizer", "super_offload"),
    ),
)
def _super_cuda(setup: Setup) -> Finding | None:
    if _section(setup, "offload_optimizer").get("super_offload") is not True:
        return None
    if setup.stage != 3 or setup.environment.accelerator == "cuda":
        return None
    return Finding(
        message="zero_optimization.offload_optimizer.super_offload=true needs CUDA, the "
        f"accelerator is {setup.environment.accelerator}",
        changes=_offload_optimizer(super_offload=None),
    )


def _offload_optimizer(**keys: Any) -> dict[str, Any]:
    return patch("zero_optimization.offload_optimizer", keys)
