"""The files of an export of a user's own command."""

import contextlib
import os
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

from autotune.base.errors import AutotuneError, RenderError
from autotune.base.templates import Templates
from autotune.base.user_text import read_text
from autotune.check.changes import changes_at
from autotune.check.edit import edit
from autotune.engines.base import Engine, bind_engine
from autotune.engines.deepspeed.script import ScriptEngine
from autotune.engines.deepspeed.sources.reading import parsed
from autotune.engines.launches.line import in_short
from autotune.export.accelerate_launch import accelerate_files, with_launch_file
from autotune.export.base import Handout
from autotune.export.command_training import (
    HERE,
    CommandFiles,
    CommandTraining,
    config_of_command,
    with_files_read,
)
from autotune.export.readme import choice_values
from autotune.job.observed import Observed
from autotune.space.candidate import format_value
from autotune.trial.guest.edits import Edits


def files_of_command(handout: Handout, templates: Templates, folder: Path) -> dict[str, str]:
    """The files of an export of a user's own command: path below the folder -> text.

    No `launch.sh` where the command and the files cannot carry all that was measured.

    Raises:
        RenderError: The job has no command, or the command cannot be told so.
    """
    training = training_of(handout, folder)
    made = with_launch_file(training, _of_command(training))
    made, script = with_files_read(training, made), training.script
    values = {
        "command": _quoted(made.command),
        "shown": in_short(script.command),
        "folder": shlex.quote(script.folder),
        "variables": sorted(handout.variables.items()),
        "configuration": sorted(training.edits.configuration.items()),
        "arguments": sorted(training.edits.arguments.items()),
        "trial": None if handout.figures is None else handout.figures.trial,
        "new_words": [
            (f"{{{name}={script.placeholders[name]}}}", str(value))
            for name, value in training.in_words.items()
        ],
        "in_code": sorted(made.in_code.items()),
        "brings": list(made.command) != script.filled({}),
        "about": list(made.about.items()),
        "notes": list(made.notes),
        **choice_values(handout),
        "knobs": [(n, format_value(training.values[n])) for n in handout.candidate.values],
        "overridden": [],  # they are the changes at the top
    }
    files = {**made.files, "README.md": templates.text("command/README.md.j2", values)}
    if not made.in_code:  # else it would start another training than was measured
        files["launch.sh"] = templates.text("command/launch.sh.j2", values)
    return files


def _of_command(training: CommandTraining) -> CommandFiles:
    """The configuration and the command with the edits; what they cannot carry."""
    if training.is_set_up_by_accelerate and any(training.in_file()):
        return accelerate_files(training)
    where = training.script.description.get("config_file") or ""
    whose = f"your `{where}`" if where else "your configuration"
    text = f'{whose} with the edits, every "auto" kept'
    if training.files_read:
        text = "what DeepSpeed gets by them, for you to read"
    return config_of_command(training, text)


def training_of(handout: Handout, folder: Path) -> CommandTraining:
    """A handout whose job has a command.

    Raises:
        RenderError: It has none.
    """
    script = handout.job.script
    if script is None:
        raise RenderError(
            "--to command: this study trains no command of your own", "leave --to out"
        )
    engine: Engine = bind_engine(handout.job, handout.environment)
    assert isinstance(engine, ScriptEngine), "the job has a command"
    edits = engine.edits(handout.candidate)
    return CommandTraining(
        script=script.here,
        edits=edits,
        values={
            **engine.as_written(handout.candidate),
            "grad_accum": handout.candidate.grad_accum,
        },
        folder=folder,
        carried=frozenset(handout.carried),
        files_read=_edited_files(script.here, edits, handout.carried),
    )


def _quoted(words: Sequence[str]) -> str:
    """The words for a shell, with the export's folder where it stands."""
    quoted = []
    for word in words:
        before, here, after = word.partition(HERE)
        text = shlex.quote(before) if before or not here else ""
        quoted.append(f'{text}"$here"{shlex.quote(after)}' if here else text)
    return " ".join(quoted)


def _edited_files(script: Observed, edits: Edits, carried: Collection[str]) -> dict[str, str]:
    """Path -> text of the files with the edits in them, and with their comments.

    A file that cannot be read, or edited with every comment kept, is left out. After them come the
    files that the script read from folders of theirs, as they are: it may look for those beside
    the others.
    """
    wanted = {key: value for key, value in edits.configuration.items() if key in carried}
    if script.framework != "deepspeed" and "train_micro_batch_size_per_gpu" in wanted:
        wanted["train_batch_size"] = None  # see `Edits.apply`
    found = {}
    for file, changes in script.in_files(wanted).items():
        path = Path(file)
        with contextlib.suppress(AutotuneError):
            text = read_text(path)
            after = edit(text, changes_at(changes), parsed(text, path).syntax)
            if after is not None:
                found[file] = after
    folders = tuple(f"{Path(file).parent}{os.sep}" for file in found)
    for file in script.description.get("settings_read") or ():
        if file not in found and str(file).startswith(folders):
            with contextlib.suppress(AutotuneError):
                found[file] = read_text(Path(file))
    return found
