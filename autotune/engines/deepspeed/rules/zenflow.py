"""ZenFlow: it changes when gradients are applied, and with that the batch."""

from collections.abc import Mapping
from typing import Any

from autotune.engines.deepspeed.rules.base import Setup, offload, zero
from autotune.space.rule import Finding, rule

_TRANSPOSES_SINCE = "0.19.7"
"""First release whose `_update_model_bit16_weights` no longer calls ZenFlow's own `unflatten`."""


def _section(setup: Setup) -> Mapping[str, Any]:
    """The section of ZenFlow; empty where it has no effect."""
    return setup.zero_section("zenflow") if setup.stage > 0 else {}


def _loses_weights(setup: Setup) -> bool:
    """Whether ZenFlow begins with other weights than the model had, at stages 1 and 2."""
    return setup.is_at_least(_TRANSPOSES_SINCE)


@rule(
    "runtime/zenflow/zenflow_utils.py: _flatten_dense_tensors; runtime/zero/stage_1_and_2.py: "
    "_update_model_bit16_weights",
    consequence="differs",
)
def _weights(setup: Setup) -> Finding | None:
    # Without offload it is not reached.
    is_reached = _section(setup) and setup.stage < 3 and setup.optimizer_offload != "none"
    if not is_reached or not _loses_weights(setup):
        return None
    return Finding(
        message=f"zero_optimization.zenflow at stage {setup.stage}: DeepSpeed {setup.version} "
        "lays every matrix into its flat buffer transposed and takes it out as it lies: training "
        "begins with other weights, and a pretrained model is lost",
        changes=zero(zenflow=None),
        advice=f"or install deepspeed<{_TRANSPOSES_SINCE}",
    )


@rule("runtime/zenflow/zenflow_stage_1_and_2.py: _configure_zenflow")
def _needs_offload(setup: Setup) -> Finding | None:
    if not _section(setup) or setup.stage == 3 or setup.optimizer_offload != "none":
        return None
    return Finding(
        message="zero_optimization.zenflow without zero_optimization.offload_optimizer",
        changes=zero(zenflow=None) if _loses_weights(setup) else offload(),
        advice="" if _loses_weights(setup) else "or remove zenflow",
    )


@rule("runtime/zenflow/engine_stage3.py: device='cuda'")
def _stage_3_needs_cuda(setup: Setup) -> Finding | None:
    if not _section(setup) or setup.stage != 3 or setup.accelerator == "cuda":
        return None
    return Finding(
        message="zero_optimization.zenflow at stage 3 needs a CUDA device, the accelerator is "
        f"{setup.accelerator}",
        changes=zero(zenflow=None) if _loses_weights(setup) else zero(2),
    )


@rule("runtime/zenflow/engine.py:69", consequence="differs")
def _batch(setup: Setup) -> Finding | None:
    section = _section(setup)
    accum = setup.ds_config.get("gradient_accumulation_steps") or 1
    if not section or (setup.stage == 3 and setup.accelerator != "cuda"):
        return None
    every = section.get("update_interval", "auto")
    if every == accum:
        return None
    return Finding(
        message=f"zero_optimization.zenflow.update_interval={every} overwrites "
        f"gradient_accumulation_steps={accum}: the batch is another",
        changes=zero(zenflow={"update_interval": accum}),
    )


@rule("runtime/zenflow/engine.py: configure_zenflow")
def _selection(setup: Setup) -> Finding | None:
    section = _section(setup)
    every, select = (section.get(f"{what}_interval", "auto") for what in ("update", "select"))
    strategy = section.get("select_strategy", "auto")
    if not section or (setup.stage == 3 and setup.accelerator != "cuda"):
        return None
    given = f"zero_optimization.zenflow.select_interval={select}"
    if strategy == "auto" and select != "auto":
        return Finding(
            message=f"{given} with select_strategy=auto, which chooses it",
            changes=zero(zenflow={"select_strategy": "step"}),
        )
    is_number = type(every) is int
    after = zero(zenflow={"select_interval": every}) if is_number else {}
    if strategy != "auto" and type(select) is not int:
        return Finding(
            message=f"{given} with select_strategy={strategy}",
            changes=after,
            advice="" if is_number else "set select_interval to a number",
        )
    if strategy == "step" and is_number and select < every:
        return Finding(message=f"{given} is below update_interval={every}", changes=after)
    return None
