"""When DeepSpeed takes its BF16_Optimizer: knobs and rules ask alike."""


def is_bf16_optimizer(
    *, stage: int, precision: str, grad_accum_dtype: str, optimizer_offload: str
) -> bool:
    """Whether DeepSpeed takes its BF16_Optimizer, which is given none of ZeRO's settings.

    Of the offloaded optimizers it asks for `cpu` alone.

    Source: engine.py: _do_optimizer_sanity_check, _configure_bf16_optimizer.
    """
    is_mixed = precision == "bf16" and grad_accum_dtype == "fp32"
    return stage == 1 and is_mixed and optimizer_offload != "cpu"
