"""The dialect of a user's own command: their configuration and their command line, edited."""

from pathlib import Path

from autotune.base.templates import Templates
from autotune.export.base import Handout, Launch
from autotune.export.command_files import CommandDialect
from autotune.export.command_training import CommandFiles, CommandTraining, config_of_command
from autotune.export.dialects.accelerate import AccelerateFiles
from autotune.job.observed import FRAMEWORKS


class OwnCommand(CommandDialect):
    """`launch.sh` starts the training as the user does, with the edits that were measured."""

    engines = ("deepspeed",)
    script = "launch.sh"
    frameworks = tuple(FRAMEWORKS)

    def files(self, handout: Handout, launch: Launch, templates: Templates) -> dict[str, str]:
        return self.files_of_command(handout, templates, Path())

    def of_command(self, training: CommandTraining) -> CommandFiles:
        if training.is_set_up_by_accelerate and any(training.in_file()):
            return AccelerateFiles().of_command(training)
        where = training.script.description.get("config_file") or ""
        whose = f"your `{where}`" if where else "your configuration"
        text = f'{whose} with the edits, every "auto" kept'
        if training.files_read:
            text = "what DeepSpeed gets by them, for you to read"
        return config_of_command(training, training.config, text)
