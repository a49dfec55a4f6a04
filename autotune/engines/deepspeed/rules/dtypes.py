"""Formats of master weights and states: where DeepSpeed takes no notice of them."""

from autotune.engines.deepspeed.knobs.situation import is_bf16_optimizer
from autotune.engines.deepspeed.rules.adam import CPU_ADAM, uses_cpu_adam
from autotune.engines.deepspeed.rules.base import Case, Setup, Witness, ignored
from autotune.engines.deepspeed.rules.releases import is_at_least
from autotune.space.rule import Finding, rule

CANONICAL = {
    name: short
    for short, names in {
        "fp16": ("fp16", "float16", "half", "torch.float16"),
        "bf16": ("bf16", "bfloat16", "torch.bfloat16"),
        "fp32": ("fp32", "float32", "float", "torch.float32"),
    }.items()
    for name in names
}
"""DeepSpeed's words for a format (runtime/config.py: DtypeEnum) -> ours."""

_LOW = {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}
OFFLOADED_STATES_SINCE = "0.19.1"  # DeepSpeed's pull request 8010
_STATES = {"bf16": {"bf16_optimizer_states": True}}


def uses_bf16_optimizer(setup: Setup) -> bool:
    """Whether DeepSpeed takes its BF16_Optimizer, and with it none of ZeRO's settings."""
    accumulates = setup.section("data_types").get("grad_accum_dtype")
    return is_bf16_optimizer(
        stage=setup.stage,
        precision=setup.dtype,
        grad_accum_dtype=CANONICAL.get(str(accumulates), setup.dtype),
        optimizer_offload=setup.optimizer_offload,
    )


_OFFLOADED = {"stage": 2, "offload_optimizer": {"device": "cpu"}}


@rule(
    "dtypes.masters_of_bf16_optimizer",
    "runtime/engine.py: _configure_bf16_optimizer",
    ignored(
        {
            "zero_optimization": {"stage": 1},
            "data_types": {"grad_accum_dtype": "fp32"},
            "bf16": _LOW["bf16"] | _STATES["bf16"],
        },
        {"bf16": {"bf16_master_weights_and_grads": None, "bf16_optimizer_states": None}},
        acts_with={"zero_optimization": {"stage": 2}},
        precision="bf16",
    ),
)
def _bf16_optimizer(setup: Setup) -> Finding | None:
    if setup.bf16.get("bf16_master_weights_and_grads") is not True:
        return None
    if not uses_bf16_optimizer(setup):
        return None
    return Finding(
        message=f"{setup.bf16_name}.bf16_master_weights_and_grads=true at stage 1 with "
        "data_types.grad_accum_dtype="
        "fp32: DeepSpeed takes its BF16_Optimizer, whose master weights are fp32",
        changes={
            setup.bf16_name: {
                "bf16_master_weights_and_grads": None,
                "bf16_optimizer_states": None,
            }
        },
    )


@rule(
    "dtypes.offloaded_states",
    "runtime/base_optimizer.py of 0.18.6 and 0.19.4: bf16_optimizer_states",
    Witness(
        broken=Case(
            ds_config=CPU_ADAM
            | {"zero_optimization": _OFFLOADED, "bf16": _LOW["bf16"] | _STATES["bf16"]},
            precision="bf16",
        ),
        repaired=Case(
            ds_config=CPU_ADAM | {"zero_optimization": _OFFLOADED} | _LOW,
            precision="bf16",
        ),
        consequence="differs",
        reads={"states_dtype": "float32"},
        takes_back=True,
        deepspeed="0.18.6",
    ),
)
def _offloaded_states(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    if setup.bf16.get("bf16_optimizer_states") is not True or not setup.stage:
        return None
    if setup.optimizer_offload == "none" or not uses_cpu_adam(setup):
        return None
    if is_at_least(version, OFFLOADED_STATES_SINCE):
        return None
    return Finding(
        message=f"{setup.bf16_name}.bf16_optimizer_states=true with "
        f"zero_optimization.offload_optimizer: in DeepSpeed {version} the CPU Adam keeps fp32 "
        f"states ({OFFLOADED_STATES_SINCE} and later do not)",
        changes={setup.bf16_name: {"bf16_optimizer_states": None}},
        advice=f"or install deepspeed>={OFFLOADED_STATES_SINCE}",
    )
