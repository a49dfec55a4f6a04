"""Formats of master weights and states: where DeepSpeed takes no notice of them."""

from autotune.engines.deepspeed.bf16_optimizer import is_bf16_optimizer
from autotune.engines.deepspeed.rules.adam import uses_cpu_adam
from autotune.engines.deepspeed.rules.base import Setup
from autotune.engines.deepspeed.rules.values import CANONICAL
from autotune.space.rule import Finding, rule

OFFLOADED_STATES_SINCE = "0.19.1"  # DeepSpeed's pull request 8010
MASTERS, STATES = "bf16_master_weights_and_grads", "bf16_optimizer_states"


def uses_bf16_optimizer(setup: Setup) -> bool:
    """Whether DeepSpeed takes its BF16_Optimizer, and with it none of ZeRO's settings."""
    accumulates = setup.section("data_types").get("grad_accum_dtype")
    return is_bf16_optimizer(
        stage=setup.stage,
        precision=setup.dtype,
        grad_accum_dtype=CANONICAL.get(str(accumulates), setup.dtype),
        optimizer_offload=setup.optimizer_offload,
    )


@rule("runtime/engine.py: _configure_bf16_optimizer", consequence="ignored")
def _masters_of_bf16_optimizer(setup: Setup) -> Finding | None:
    if setup.bf16.get(MASTERS) is not True or not uses_bf16_optimizer(setup):
        return None
    return Finding(
        message=f"{setup.bf16_name}.{MASTERS}=true at stage 1 with data_types.grad_accum_dtype="
        "fp32: DeepSpeed takes its BF16_Optimizer, whose master weights are fp32",
        changes={setup.bf16_name: {MASTERS: None, STATES: None}},
    )


@rule(
    "runtime/base_optimizer.py of 0.18.6 and 0.19.4: bf16_optimizer_states", consequence="differs"
)
def _offloaded_states(setup: Setup) -> Finding | None:
    if setup.bf16.get(STATES) is not True or not setup.stage:
        return None
    if setup.optimizer_offload == "none" or not uses_cpu_adam(setup):
        return None
    if setup.is_at_least(OFFLOADED_STATES_SINCE):
        return None
    return Finding(
        message=f"{setup.bf16_name}.{STATES}=true with zero_optimization.offload_optimizer: in "
        f"DeepSpeed {setup.version} the CPU Adam keeps fp32 states ({OFFLOADED_STATES_SINCE} and "
        "later do not)",
        changes={setup.bf16_name: {STATES: None}},
        advice=f"or install deepspeed>={OFFLOADED_STATES_SINCE}",
    )
