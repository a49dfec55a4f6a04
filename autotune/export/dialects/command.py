"""The dialect of a user's own command: their configuration and their command line, edited."""

from collections.abc import Sequence
from pathlib import Path

from autotune.base.templates import Templates
from autotune.engines.base import Engine
from autotune.export.base import Dialect, Handout, Launch, Patched
from autotune.export.command_files import files_of_command, training_of
from autotune.export.patch import Wanted, patched_all


class OwnCommand(Dialect):
    """`launch.sh` starts the training as the user does, with the edits that were measured."""

    engines = ("deepspeed",)
    script = "launch.sh"

    def files(self, handout: Handout, launch: Launch, templates: Templates) -> dict[str, str]:
        return files_of_command(handout, templates, Path())

    def files_of_command(
        self, handout: Handout, templates: Templates, folder: Path
    ) -> dict[str, str]:
        return files_of_command(handout, templates, folder)

    def patched(self, paths: Sequence[Path], handout: Handout, engine: Engine) -> list[Patched]:
        return patched_all(paths, Wanted(handout, engine, training_of(handout, Path())))
