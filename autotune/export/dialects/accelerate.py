"""The dialect of accelerate: a YAML for `accelerate launch`, and the ds_config that it names."""

from typing import Any

from autotune.base.nested import look_up
from autotune.base.templates import Templates
from autotune.export.base import Handout
from autotune.export.dialects.hf import FamilyDialect, Written
from autotune.export.trainer import family_config, is_open, with_autos
from autotune.export.trainer_keys import untuned


class AccelerateFiles(FamilyDialect):
    """For `Accelerator.prepare`: concrete numbers, since a script's own loader is not asked.

    The YAML is written by the launcher of the same name, which alone reads it.
    """

    launcher = "accelerate"
    only_launcher = "accelerate.yaml is read by `accelerate launch` alone"
    consumer = "accelerate"
    templates = "accelerate"

    def written(self, handout: Handout, templates: Templates) -> Written:
        config = family_config(handout)
        config["train_micro_batch_size_per_gpu"] = handout.candidate.micro_batch
        config, optimizer = _split_by_script(handout, config)
        more = {
            "is_sharded": look_up(config, "zero_optimization.stage") == 3,
            "recompute": handout.workload.settings.get("recompute", "none"),
            "untuned": untuned(config),
        }
        variables = {"dummy_optimizer": optimizer}
        return Written(config=config, files={}, more=more, variables=variables)


def _split_by_script(
    handout: Handout, config: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration with "auto" for what `DummyOptim` brings, and what the run's has."""
    keys = {name: f"optimizer.params.{name}" for name in ("lr", "weight_decay")}
    keys = {name: key for name, key in keys.items() if is_open(handout, key)}
    has = {name: look_up(config, key) for name, key in keys.items()}
    return with_autos(config, keys.values()), {n: v for n, v in has.items() if v is not None}
