"""Keys of DeepSpeed's configuration that Hugging Face's Trainer fills in from its arguments.

Source: transformers/integrations/deepspeed.py (trainer_config_process).
"""

from collections.abc import Mapping
from typing import Any

from autotune.base.nested import look_up
from autotune.engines.deepspeed.rules.base import BATCH_KEYS
from autotune.engines.deepspeed.rules.sections import AUTO

OWNED: Mapping[str, tuple[str, ...]] = {
    "train_micro_batch_size_per_gpu": ("per_device_train_batch_size",),
    "gradient_accumulation_steps": ("gradient_accumulation_steps",),
    "gradient_clipping": ("max_grad_norm",),
    "optimizer.params.lr": ("learning_rate",),
    "optimizer.params.betas": ("adam_beta1", "adam_beta2"),
    "optimizer.params.eps": ("adam_epsilon",),
    "optimizer.params.weight_decay": ("weight_decay",),
    "scheduler.params.warmup_num_steps": ("warmup_steps",),
    "bf16.enabled": ("bf16",),
    "fp16.enabled": ("fp16",),
}
"""Key that Trainer compares with its arguments -> those arguments."""
SIZES = {key: OWNED[key][0] for key in BATCH_KEYS[:2]}
"""Key of the batch -> the argument for it."""
TUNED = (
    *("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
    *("bf16.enabled", "fp16.enabled"),
)
"""Those that a candidate decides; the others are the user's."""
ADAMS = tuple(f"optimizer.params.{name}" for name in ("lr", "betas", "eps", "weight_decay"))
"""Keys that Trainer fills in for Adam, and passes over where the file lacks them."""
FOLLOWING = (
    *("scheduler.params.warmup_max_lr", "scheduler.params.warmup_min_lr"),
    "scheduler.params.total_num_steps",
)
"""Keys that Trainer works out from its other arguments."""


def untuned(config: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Keys of a configuration that no trial chose, with the values that they have in numbers."""
    found = ((key, look_up(config, key)) for key in OWNED if key not in TUNED)
    return [(key, value) for key, value in found if value not in (None, AUTO)]
