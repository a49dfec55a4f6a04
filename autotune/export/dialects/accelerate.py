"""The dialect of accelerate: a YAML for `accelerate launch`, and the ds_config that it names."""

from typing import Any

from autotune.base.nested import look_up
from autotune.base.templates import canonical_json
from autotune.base.yaml_file import dump_yaml
from autotune.export.accelerate_launch import LOW_PRECISIONS, launched, settings_of
from autotune.export.base import Handout
from autotune.export.command_training import CommandFiles, CommandTraining
from autotune.export.dialects.hf import FamilyDialect
from autotune.export.launchers.accelerate import YAML_FILE
from autotune.export.trainer import config_in_numbers, is_open, with_autos
from autotune.trial.engines.deepspeed import CONFIG_FILE


class AccelerateFiles(FamilyDialect):
    """For `Accelerator.prepare`: concrete numbers, since a script's own loader is not asked.

    The YAML is written by the launcher of the same name, which alone reads it.
    """

    frameworks = ("accelerate", "trainer", "trl")
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

    def of_command(self, training: CommandTraining) -> CommandFiles:
        script, is_trainer = training.script, training.script.is_trainer
        config = training.config_for_trainer if is_trainer else dict(training.config)
        config.pop("train_batch_size", None)  # see `trainer.family_config`
        if not is_trainer and script.precision in LOW_PRECISIONS:
            # Its own file may not say.
            config.setdefault(script.precision, {"enabled": True})
        notes = []
        names_file = is_trainer and script.arguments.get("deepspeed")
        if names_file and not training.is_flag("deepspeed"):
            notes.append("take `deepspeed=` out of your TrainingArguments: it beats accelerate")
        return CommandFiles(
            files={
                CONFIG_FILE: canonical_json(config),
                YAML_FILE: dump_yaml(settings_of(training, config)),
            },
            command=launched(
                training, training.command(), drops=("deepspeed",) if is_trainer else ()
            ),
            about={
                CONFIG_FILE: "your configuration with the edits",
                YAML_FILE: "the ranks, and the `ds_config.json` that DeepSpeed gets",
            },
            notes=notes,
            in_code={} if training.takes_arguments else _in_code(training),
        )


def _in_code(training: CommandTraining) -> dict[str, Any]:
    """What the command does not take; the configuration reaches it by the files, in most."""
    if training.script.description.get("brings_plugin"):
        return dict(training.in_code())  # it is made in the script's own code
    return dict(training.arguments_in_code())
