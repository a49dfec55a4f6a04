"""The dialect of Lightning: the arguments of its Trainer, and a ds_config for its strategy.

Source: lightning/pytorch/strategies/deepspeed.py (_format_batch_size_and_grad_accum_config).
"""

from typing import Any

from autotune.base.templates import Templates
from autotune.base.yaml_file import dump_yaml
from autotune.export.base import Handout
from autotune.export.dialects.hf import FamilyDialect, Written
from autotune.export.trainer import family_config, is_open
from autotune.export.trainer_keys import untuned
from autotune.trial.engines.deepspeed import CONFIG_FILE

YAML_FILE = "trainer.yaml"
STRATEGY = "lightning.pytorch.strategies.DeepSpeedStrategy"
_PRECISIONS = {"bf16": "bf16-true", "fp16": "16-true", "fp32": "32-true"}
"""Those that leave the casting to DeepSpeed, as a trial does; `-mixed` adds autocast."""


class Lightning(FamilyDialect):
    """For `DeepSpeedStrategy(config=...)`: Lightning owns the accumulation."""

    consumer = "Lightning"
    templates = "lightning"

    def written(self, handout: Handout, templates: Templates) -> Written:
        config = family_config(handout)
        config.pop("gradient_accumulation_steps", None)  # Lightning raises on it
        config["train_micro_batch_size_per_gpu"] = handout.candidate.micro_batch
        name = "gradient_clipping"
        clipping = config.pop(name, None) if is_open(handout, name) else None
        text = dump_yaml({"trainer": trainer_fields(handout)})
        more = {
            "fields": text.splitlines(),
            "recompute": _recompute(handout),
            "untuned": untuned(config),
            "clips": clipping is not None,
        }
        variables = {"gradient_clip_val": clipping}
        return Written(config=config, files={YAML_FILE: text}, more=more, variables=variables)


def trainer_fields(handout: Handout) -> dict[str, Any]:
    """Arguments of `Trainer`, as LightningCLI reads them."""
    return {
        "accelerator": "cpu" if handout.environment.accelerator == "cpu" else "gpu",
        "devices": handout.per_node,
        "num_nodes": handout.n_nodes,
        "precision": _PRECISIONS[handout.workload.precision],
        "accumulate_grad_batches": handout.candidate.grad_accum,
        "strategy": {"class_path": STRATEGY, "init_args": {"config": CONFIG_FILE}},
    }


def _recompute(handout: Handout) -> str:
    return str(handout.workload.settings.get("recompute", "none"))
