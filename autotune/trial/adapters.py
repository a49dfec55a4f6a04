"""LoRA adapters on a model that is built already; everything else is frozen."""

from collections.abc import Mapping
from typing import Any

import torch


def add_adapters(model: torch.nn.Module, lora: Mapping[str, Any]) -> None:
    """Freeze a model and give its target modules low-rank adapters to train.

    They are put into the model, which stays what it was to everybody else (AutoTP, recomputation,
    a chunked loss), where peft's `get_peft_model` would wrap it; the arithmetic is the same. Each
    takes the precision and the device of the weight beside it. Call it outside of `zero.Init`:
    inside, peft would set the empty placeholders of sharded weights, so that B starts at random
    instead of zero (seen with DeepSpeed 0.19.8: another first loss). `deepspeed.initialize` shards
    them with the rest.

    Args:
        model: Changed in place.
        lora: `TrialSpec.model["lora"]`.

    Raises:
        ImportError: peft is not installed.
        ValueError: The model has none of the target modules, or cannot have adapters there.
    """
    from peft import LoraConfig, inject_adapter_in_model  # optional: pip install 'autotune[lora]'

    config = LoraConfig(
        r=lora["rank"],
        lora_alpha=lora["alpha"],
        lora_dropout=lora["dropout"],
        target_modules=lora["target_modules"],
    )
    inject_adapter_in_model(config, model)
