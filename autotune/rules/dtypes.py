"""Formats of master weights and states: where DeepSpeed takes no notice of them."""

from autotune.rules.base import Finding, Rule, Setup, ignored

_LOW = {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}
_STATES = {"bf16": {"bf16_optimizer_states": True}}
_FP32 = ("fp32", "float32", "float", "torch.float32")


def _bf16_optimizer(setup: Setup) -> Finding | None:
    if setup.bf16.get("bf16_master_weights_and_grads") is not True:
        return None
    if setup.stage != 1 or setup.dtype != "bf16" or setup.optimizer_offload != "none":
        return None
    if setup.section("data_types").get("grad_accum_dtype") not in _FP32:
        return None
    return Finding(
        message="bf16.bf16_master_weights_and_grads=true at stage 1 with "
        "data_types.grad_accum_dtype="
        "fp32: DeepSpeed takes its BF16_Optimizer, whose master weights are fp32",
        changes={"bf16": {"bf16_master_weights_and_grads": None, "bf16_optimizer_states": None}},
    )


RULES = (
    Rule(
        name="dtypes.masters_of_bf16_optimizer",
        check=_bf16_optimizer,
        source="runtime/engine.py: _configure_bf16_optimizer",
        witnesses=(
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
        ),
    ),
)
