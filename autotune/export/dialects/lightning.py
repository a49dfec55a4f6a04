"""The dialect of Lightning: the arguments of its Trainer, and a ds_config for its strategy.

Source: lightning/pytorch/strategies/deepspeed.py (_format_batch_size_and_grad_accum_config).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.base.errors import AutotuneError
from autotune.base.templates import canonical_json
from autotune.base.user_text import read_text
from autotune.base.yaml_file import dump_yaml
from autotune.engines.deepspeed.sources.reading import parsed
from autotune.export.base import Handout
from autotune.export.command_training import HERE, CommandFiles, CommandTraining
from autotune.export.dialects.hf import FamilyDialect
from autotune.export.trainer import config_in_numbers, is_open
from autotune.trial.engines.deepspeed import CONFIG_FILE

YAML_FILE = "trainer.yaml"
STRATEGY = "lightning.pytorch.strategies.DeepSpeedStrategy"
_FIT = "fit"
"""Command of LightningCLI that trains."""


class Lightning(FamilyDialect):
    """For `DeepSpeedStrategy(config=...)`: Lightning owns the accumulation."""

    frameworks = ("lightning",)
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

    def of_command(self, training: CommandTraining) -> CommandFiles:
        """The accumulation is the Trainer's, which raises on two."""
        config = training.config_in_numbers
        steps = config.pop("gradient_accumulation_steps", 1)
        trainer = _trainer_in(training)
        strategy = trainer.get("strategy")
        kind = strategy.get("class_path") if isinstance(strategy, Mapping) else None
        # A path from the folder where the command runs, which is the user's.
        path = str(training.folder.resolve() / CONFIG_FILE)
        fields = {
            "accumulate_grad_batches": steps,
            "strategy": {"class_path": kind or STRATEGY, "init_args": {"config": path}},
        }
        command, in_code = training.command(), dict(training.in_code())
        about = "what your `Trainer(...)` says of it in code"
        if trainer or _FIT in training.words:
            # Of several files the last one decides.
            command, in_code = [*command, "--config", f"{HERE}/{YAML_FILE}"], {}
            about = "what LightningCLI reads after your own files"
        return CommandFiles(
            files={
                CONFIG_FILE: canonical_json(config),
                YAML_FILE: dump_yaml({"trainer": fields}),
            },
            command=command,
            about={
                CONFIG_FILE: "your configuration with the edits, without the accumulation",
                YAML_FILE: about,
            },
            notes=[f"{YAML_FILE} names this folder: export again where that moves"],
            in_code=in_code,
        )


def _trainer_in(training: CommandTraining) -> Mapping[str, Any]:
    """The `trainer` section of a file of LightningCLI's that the command names; empty: none."""
    for word in training.words:
        path = Path(training.script.folder, word.rpartition("=")[2])
        if path.suffix not in (".yaml", ".yml"):
            continue
        try:
            section = parsed(read_text(path), path).data.get("trainer")
        except AutotuneError:
            continue
        if isinstance(section, Mapping):
            return section
    return {}
