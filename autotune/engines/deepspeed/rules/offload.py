"""Offload: where optimizer states and parameters live, and which stage can do it."""

from autotune.engines.deepspeed.rules.adam import (
    adam_in_words,
    cpu_adam_by,
    uses_cpu_adam,
)
from autotune.engines.deepspeed.rules.base import Setup, offload, zero
from autotune.space.rule import Choice, Finding, Patch, rule


def _removal(setup: Setup, *names: str) -> Patch:
    return zero(**{name: None for name in names if name in setup.zero})


def _ratio(setup: Setup) -> float:
    return float(setup.zero_section("offload_optimizer").get("ratio", 1))


def _is_super(setup: Setup) -> bool:
    return setup.zero_section("offload_optimizer").get("super_offload") is True


@rule(
    "runtime/engine.py: _configure_zero_optimizer passes it to stage 3 only", consequence="ignored"
)
def _param_needs_stage_3(setup: Setup) -> Finding | None:
    if setup.param_offload == "none" or setup.stage == 3:
        return None
    return Finding(
        message=f"zero_optimization.offload_param to {setup.param_offload} at stage "
        f"{setup.stage}: only stage 3 shards parameters, the others ignore it",
        changes=_removal(setup, "offload_param", "cpu_offload_param"),
        advice="or set zero_optimization.stage to 3",
    )


@rule(
    "runtime/engine.py:2384: zero_use_cpu_optimizer does not ask for the stage",
    consequence="differs",
)
def _optimizer_at_stage_0(setup: Setup) -> Finding | None:
    if setup.optimizer_offload == "none" or setup.stage > 0:
        return None
    return Finding(
        message=f"zero_optimization.offload_optimizer to {setup.optimizer_offload} at stage 0: "
        "nothing is offloaded, and the optimizer becomes DeepSpeed's CPU one",
        changes=_removal(setup, "offload_optimizer", "cpu_offload"),
        advice="or set zero_optimization.stage to 1",
    )


@rule("runtime/engine.py: _configure_optimizer")
def _script_optimizer(setup: Setup) -> Finding | None:
    """A note: which optimizer the script has is not known here."""
    if setup.optimizer_offload == "none" or setup.stage == 0 or setup.optimizer:
        return None
    forces = setup.ds_config.get("zero_force_ds_cpu_optimizer") is not False
    if not forces or setup.brings_cpu_adam or setup.section("optimizer"):
        return None
    return Finding(
        message="zero_optimization.offload_optimizer without a section optimizer: DeepSpeed takes "
        "DeepSpeedCPUAdam and DeepSpeedCPULion from the script, and refuses torch's AdamW",
        at=("zero_optimization.offload_optimizer",),
        choices=(
            Choice(changes={"optimizer": {"type": "AdamW"}}),
            Choice(changes={"zero_force_ds_cpu_optimizer": False}),
        ),
        advice="make deepspeed.ops.adam.DeepSpeedCPUAdam in the script, or set optimizer.type to "
        "AdamW, or zero_force_ds_cpu_optimizer to false",
        is_note=True,
    )


@rule("runtime/zero/partition_parameters.py:1225-1230")
def _nvme_without_path(setup: Setup) -> Finding | None:
    if setup.stage != 3:
        return None
    found = [
        f"zero_optimization.{name}"
        for name in ("offload_optimizer", "offload_param")
        for section in [setup.zero_section(name)]
        if section.get("device") == "nvme" and section.get("nvme_path") is None
    ]
    if not found:
        return None
    return Finding(
        message=" and ".join(f"{name}.device=nvme" for name in found) + " without a nvme_path",
        advice=f"set {' and '.join(f'{name}.nvme_path' for name in found)} to a folder on a "
        "local disk",
    )


@rule("runtime/zero/stage_1_and_2.py:220", consequence="differs")
def _nvme_needs_stage_3(setup: Setup) -> Finding | None:
    if setup.optimizer_offload != "nvme" or setup.stage not in (1, 2):
        return None
    return Finding(
        message=f"zero_optimization.offload_optimizer.device=nvme at stage {setup.stage}: only "
        "stage 3 swaps to a disk, the states stay in the host's memory",
        changes=offload(),
    )


@rule("runtime/zero/config.py:396-400")
def _ratio_needs_stage_3(setup: Setup) -> Finding | None:
    if _ratio(setup) >= 1 or setup.stage == 3:
        return None
    return Finding(
        message=f"zero_optimization.offload_optimizer.ratio={_ratio(setup):g} at stage "
        f"{setup.stage}: partial offload needs stage 3",
        changes=zero(offload_optimizer={"ratio": 1.0}),
    )


@rule("runtime/zero/stage3.py:313-316")
def _ratio_needs_cpu_adam(setup: Setup) -> Finding | None:
    if _ratio(setup) >= 1 or setup.stage != 3:
        return None
    if setup.optimizer_offload == "none" or uses_cpu_adam(setup):
        return None
    is_adam = setup.optimizer in ("adam", "adamw")
    return Finding(
        message=f"zero_optimization.offload_optimizer.ratio={_ratio(setup):g} needs DeepSpeed's "
        f"CPU Adam, which this is not: {adam_in_words(setup)}",
        changes=cpu_adam_by(setup) or zero(offload_optimizer={"ratio": 1.0}),
        advice="" if is_adam else "or set optimizer.type to AdamW",
    )


@rule("runtime/engine.py: super_offload is asked at stage 3 only", consequence="ignored")
def _super_needs_stage_3(setup: Setup) -> Finding | None:
    if not _is_super(setup) or setup.stage == 3:
        return None
    return Finding(
        message=f"zero_optimization.offload_optimizer.super_offload=true at stage {setup.stage} "
        "is ignored: it acts at stage 3",
        changes=zero(offload_optimizer={"super_offload": None}),
    )


@rule("runtime/superoffload/superoffload_stage3.py:20-24")
def _super_needs_cuda(setup: Setup) -> Finding | None:
    if not _is_super(setup) or setup.stage != 3 or setup.accelerator == "cuda":
        return None
    return Finding(
        message="zero_optimization.offload_optimizer.super_offload=true needs CUDA, the "
        f"accelerator is {setup.accelerator}",
        changes=zero(offload_optimizer={"super_offload": None}),
    )
