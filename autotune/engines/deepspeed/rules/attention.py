"""The attention implementation that the training script builds the model with."""

from autotune.engines.deepspeed.rules.base import Setup
from autotune.space.rule import Finding, rule


@rule("transformers, modeling_utils.py: _check_and_adjust_attn_implementation")
def _flash(setup: Setup) -> Finding | None:
    if setup.attention != "flash_attention_2":
        return None
    if setup.accelerator != "cuda":
        return Finding(
            message=f"attention=flash_attention_2 on the accelerator "
            f"{setup.accelerator}: it needs a CUDA device",
            advice="set attention to sdpa",
        )
    if not setup.environment.has_flash_attention:
        return Finding(
            message="attention=flash_attention_2: the package flash_attn is not installed",
            advice="install flash-attn, or set attention to sdpa",
        )
    return None
