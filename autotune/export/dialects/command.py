"""The dialect of a user's own command: their configuration and their command line, edited."""

from pathlib import Path

from autotune.base.templates import Templates, canonical_json
from autotune.export.base import Dialect, Handout, Launch
from autotune.export.command_files import files_of_command
from autotune.export.own import OwnFiles, OwnTraining
from autotune.job.observed import FRAMEWORKS
from autotune.trial.engines.deepspeed import CONFIG_FILE


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
        where = own.script.description.get("config_file") or ""
        theirs = f"your `{where}`" if where else "your configuration"
        files = {CONFIG_FILE: canonical_json(own.config)}
        about = {CONFIG_FILE: f'{theirs} with the edits, every "auto" kept'}
        if not own.takes_arguments and own.argument_file is not None:
            name, text = own.edited_arguments()
            return OwnFiles(
                files={**files, name: text},
                command=own.command_with_file(name),
                about={**about, name: "your file of arguments with the edits"},
            )
        return OwnFiles(
            files=files, command=own.command(), about=about, in_code=dict(own.in_code())
        )
