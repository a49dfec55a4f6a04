"""The dialect of a user's own command: their configuration and their command line, edited."""

from pathlib import Path

from autotune.base.templates import Templates
from autotune.export.base import Dialect, Handout, Launch
from autotune.export.command_files import files_of_command
from autotune.export.dialects.accelerate import AccelerateFiles
from autotune.export.own import OwnFiles, OwnTraining, config_of_command
from autotune.job.observed import FRAMEWORKS


class OwnCommand(Dialect):
    """`launch.sh` starts the training as the user does, with the edits that were measured."""

    engines = ("deepspeed",)
    frameworks = tuple(FRAMEWORKS)

    def files(
        self, handout: Handout, launch: Launch | None, templates: Templates
    ) -> dict[str, str]:
        """See `Dialect.files`."""
        return files_of_command(self, handout, templates, Path())

    def of_command(self, own: OwnTraining) -> OwnFiles:
        """See `Dialect.of_command`."""
        if own.is_set_up_by_accelerate and any(own.in_file()):
            return AccelerateFiles().of_command(own)
        where = own.script.description.get("config_file") or ""
        theirs = f"your `{where}`" if where else "your configuration"
        text = f'{theirs} with the edits, every "auto" kept'
        if own.own_files:
            text = "what DeepSpeed gets by them, for you to read"
        return config_of_command(own, own.config, text)
