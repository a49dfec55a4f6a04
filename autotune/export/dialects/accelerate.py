"""The dialect of accelerate: a YAML for `accelerate launch`, and the ds_config that it names."""

from typing import Any

from autotune.base.nested import look_up
from autotune.export.base import Handout
from autotune.export.dialects.hf import FamilyDialect
from autotune.export.trainer import config_in_numbers, is_open, with_autos


class AccelerateFiles(FamilyDialect):
    """For `Accelerator.prepare`: concrete numbers, since a script's own loader is not asked.

    The YAML is written by the launcher of the same name, which alone reads it.
    """

    launcher = "accelerate"
    only_launcher = "accelerate.yaml is read by `accelerate launch` alone"
    consumer = "accelerate"
    folder = "accelerate"
    takes_numbers = True

    def configured(self, handout: Handout) -> tuple[dict[str, Any], dict[str, Any]]:
        """The configuration with "auto" for what `DummyOptim` brings, and what the run's has."""
        config = config_in_numbers(handout)
        keys = {name: f"optimizer.params.{name}" for name in ("lr", "weight_decay")}
        keys = {name: key for name, key in keys.items() if is_open(handout, key)}
        has = {name: look_up(config, key) for name, key in keys.items()}
        found = {name: value for name, value in has.items() if value is not None}
        return with_autos(config, keys.values()), {"dummy_optimizer": found}
