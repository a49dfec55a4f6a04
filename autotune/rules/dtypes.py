"""Formats of master weights and states: where DeepSpeed takes no notice of them."""

from autotune.catalogue.situation import is_bf16_optimizer
from autotune.rules.base import Finding, Rule, Setup, ignored

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
