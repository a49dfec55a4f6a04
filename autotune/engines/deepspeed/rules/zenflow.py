"""ZenFlow: it changes when gradients are applied, and with that the batch."""

from collections.abc import Mapping
from typing import Any

from autotune.engines.deepspeed.rules.adam import CPU_ADAM
from autotune.engines.deepspeed.rules.base import Case, Setup, Witness, as_section, raised
from autotune.space.rule import Finding, rule

STEP = {"select_strategy": "step", "select_interval": 2, "update_interval": 2}


def _section(setup: Setup) -> Mapping[str, Any]:
    """The section of ZenFlow; empty where it has no effect."""
    return as_section(setup.zero.get("zenflow")) if setup.stage > 0 else {}


def zenflow_config(stage: int, section: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A configuration for witnesses: a ZenFlow section, and the offload that it needs."""
    offload = {"offload_optimizer": {"device": "cpu"}, **more}
    return {
        **CPU_ADAM,
        "zero_optimization": {"stage": stage, "zenflow": dict(section)} | offload,
    }


def _set(**keys: Any) -> dict[str, Any]:
    return {"zero_optimization": {"zenflow": keys}}


@rule(
    "zenflow.needs_offload",
    "runtime/zenflow/zenflow_stage_1_and_2.py: _configure_zenflow",
    raised(
        "ValueError: Zenflow must be used with cpu offload",
        zenflow_config(2, STEP, offload_optimizer=None),
        {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
    ),
)
def _offload(setup: Setup) -> Finding | None:
    if not _section(setup) or setup.stage == 3 or setup.optimizer_offload != "none":
        return None
    return Finding(
        message="zero_optimization.zenflow without zero_optimization.offload_optimizer",
        changes={"zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
        advice="or remove zenflow",
    )


@rule(
    "zenflow.stage_3_needs_cuda",
    "runtime/zenflow/engine_stage3.py: device='cuda'",
    raised(".", zenflow_config(3, STEP), {"zero_optimization": {"stage": 2}}),
)
def _stage_3(setup: Setup) -> Finding | None:
    if not _section(setup) or setup.stage != 3 or setup.environment.accelerator == "cuda":
        return None
    return Finding(
        message="zero_optimization.zenflow at stage 3 needs a CUDA device, the accelerator is "
        f"{setup.environment.accelerator}",
        changes={"zero_optimization": {"stage": 2}},
    )


@rule(
    "zenflow.batch",
    "runtime/zenflow/engine.py:69",
    Witness(
        broken=Case(ds_config=zenflow_config(2, STEP | {"update_interval": 1})),
        repaired=Case(ds_config=zenflow_config(2, STEP)),
        consequence="differs",
        reads={"grad_accum": 1},
    ),
)
def _batch(setup: Setup) -> Finding | None:
    section = _section(setup)
    accum = setup.ds_config.get("gradient_accumulation_steps") or 1
    if not section or (setup.stage == 3 and setup.environment.accelerator != "cuda"):
        return None
    every = section.get("update_interval", "auto")
    if every == accum:
        return None
    return Finding(
        message=f"zero_optimization.zenflow.update_interval={every} overwrites "
        f"gradient_accumulation_steps={accum}: the batch is another",
        changes=_set(update_interval=accum),
    )


@rule(
    "zenflow.selection",
    "runtime/zenflow/engine.py: configure_zenflow",
    raised(
        "Warning: If use auto select strategy",
        zenflow_config(2, STEP | {"select_strategy": "auto"}),
        _set(select_strategy="step"),
    ),
    raised(
        "ValueError: If don't use auto select strategy",
        zenflow_config(2, STEP | {"select_interval": "auto"}),
        _set(select_interval=2),
    ),
    raised(
        "ValueError: Select interval must be greater",
        zenflow_config(2, STEP | {"select_interval": 1}),
        _set(select_interval=2),
    ),
)
def _select(setup: Setup) -> Finding | None:
    section = _section(setup)
    every, select = (section.get(f"{what}_interval", "auto") for what in ("update", "select"))
    strategy = section.get("select_strategy", "auto")
    if not section or (setup.stage == 3 and setup.environment.accelerator != "cuda"):
        return None
    if strategy == "auto" and select != "auto":
        return Finding(
            message=f"zero_optimization.zenflow.select_interval={select} with "
            "select_strategy=auto, which chooses it",
            changes=_set(select_strategy="step"),
        )
    if strategy != "auto" and type(select) is not int:
        return Finding(
            message=f"zero_optimization.zenflow.select_interval={select} with "
            f"select_strategy={strategy}",
            changes=_set(select_interval=every) if type(every) is int else {},
            advice="" if type(every) is int else "set select_interval to a number",
        )
    if strategy == "step" and type(every) is int and select < every:
        return Finding(
            message=f"zero_optimization.zenflow.select_interval={select} is below "
            f"update_interval={every}",
            changes=_set(select_interval=every),
        )
    return None
