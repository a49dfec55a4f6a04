"""The dialect of Lightning: the arguments of its Trainer, and a ds_config for its strategy.

Source: lightning/pytorch/strategies/deepspeed.py (_format_batch_size_and_grad_accum_config).
"""

from typing import Any

from autotune.export.base import Handout
from autotune.export.dialects.hf import FamilyDialect
from autotune.export.trainer import config_in_numbers, is_open

YAML_FILE = "trainer.yaml"


class Lightning(FamilyDialect):
    """For `DeepSpeedStrategy(config=...)`: Lightning owns the accumulation."""

    consumer = "Lightning"
    folder = "lightning"
    takes_numbers = True
    file = YAML_FILE
    section = "trainer"

    def configured(self, handout: Handout) -> tuple[dict[str, Any], dict[str, Any]]:
        config = config_in_numbers(handout)
        config.pop("gradient_accumulation_steps", None)  # Lightning raises on it
        name = "gradient_clipping"
        clipping = config.pop(name, None) if is_open(handout, name) else None
        return config, {"gradient_clip_val": clipping}
