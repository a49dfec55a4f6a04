"""The dialect of a user's own command: their configuration and their command line, edited."""

import contextlib
import dataclasses
import os
import shlex
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.base.errors import AutotuneError, RenderError
from autotune.base.nested import look_up, nested
from autotune.base.templates import Templates, canonical_json
from autotune.base.user_text import read_text
from autotune.base.yaml_file import dump_yaml, parse_yaml
from autotune.check.changes import with_changes
from autotune.check.edit import edit
from autotune.engines.base import Engine, bind_engine
from autotune.engines.deepspeed.script import ScriptEngine
from autotune.engines.deepspeed.sources.accelerate import FLAGS
from autotune.engines.deepspeed.sources.reading import parsed
from autotune.engines.launches.line import flags_of, in_short, text_or_none
from autotune.export.base import Dialect, Handout, Launch, Patched
from autotune.export.command_training import HERE, CommandFiles, CommandTraining, with_flags
from autotune.export.launchers import ACCELERATE_FILE
from autotune.export.patch import Wanted, patched_all
from autotune.export.readme import choice_values
from autotune.space.candidate import format_value
from autotune.space.script import IMPLEMENTATION, reach_of
from autotune.trial.engines.deepspeed import CONFIG_FILE
from autotune.trial.guest.edits import toml_of

_LOW_PRECISIONS = ("bf16", "fp16")
_PRECISION = "mixed_precision"
_WRITTEN = (
    *("deepspeed", "config_file", "deepspeed_config_file", "use_deepspeed"),
    *(_PRECISION, *FLAGS),
)
"""Flags that the export's files replace."""


class OwnCommand(Dialect):
    """`launch.sh` starts the training as the user does, with the edits that were measured."""

    engines = ("deepspeed",)
    script = "launch.sh"
    launcher = ""
    only_launcher = "your command starts its ranks by itself"

    def files(self, handout: Handout, launch: Launch, templates: Templates) -> dict[str, str]:
        """Its files; no `launch.sh` where they and the command cannot carry all that changes."""
        training = training_of(handout)
        made = _with_launch_file(training, _of_command(training))
        made, script = _with_files_read(training, made), training.script
        left_out = reach_of(script).left_out
        values = {
            "command": _quoted(made.command),
            "shown": in_short(script.command, Path(script.folder)),
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
            "in_place": sorted(made.in_place.items()),
            "brings": list(made.command) != script.filled({}),
            "about": list(made.about.items()),
            **choice_values(handout),
            "knobs": [
                (name, format_value(training.values[name]))
                for name in handout.candidate.values
                if name != IMPLEMENTATION or name not in left_out  # the script's own optimizer
            ],
            **dict.fromkeys(("change", "overridden", "rank_variables"), ""),  # stand at the top
        }
        files = {**made.files, "README.md": templates.text("command/README.md.j2", values)}
        if not made.in_code:  # else it would start another training than was measured
            files["launch.sh"] = templates.text("command/launch.sh.j2", values)
        return files

    def patched(self, paths: Sequence[Path], handout: Handout, engine: Engine) -> list[Patched]:
        return patched_all(paths, Wanted(handout, engine, training_of(handout)))


def _of_command(training: CommandTraining) -> CommandFiles:
    """The configuration and the command with the edits; what they cannot carry.

    The ds_config is in the file of arguments where nothing else takes it.
    """
    if training.is_set_up_by_accelerate and any(training.in_file()):
        return _accelerate_files(training)
    config = training.config_text
    if not training.edits.configuration and not training.edits.arguments:
        made = CommandFiles(command=training.words)
        return made.with_file(CONFIG_FILE, config, "your configuration, for you to read")
    where = training.script.description.get("config_file") or ""
    whose = f"your `{where}`" if where else "your configuration"
    text = f'{whose} with the edits, every "auto" kept'
    if training.is_config_written_anew:
        text += ", written anew: its comments are not in it"
    if training.files_read and not training.names_config_in_arguments:
        text = "what DeepSpeed gets by them, for you to read"
    brought = {"in_code": dict(training.in_code()), "in_place": training.in_place()}
    made = CommandFiles(command=training.command(), **brought)
    return made.with_file(CONFIG_FILE, config, text)


def _with_files_read(training: CommandTraining, made: CommandFiles) -> CommandFiles:
    """The files, and beside them those that the script itself reads, edited."""
    for path, name in training.names_of_files.items():
        whose = f"your `{os.path.relpath(path, training.script.folder)}`"
        is_edited = training.files_read[path] != read_text(Path(path))
        about = f"{whose} with the edits" if is_edited else f"{whose}, as it is"
        about += ", but for its comments" * (is_edited and name.endswith(".toml"))
        made = made.with_file(name, training.files_read[path], about)
    return made


def _with_launch_file(training: CommandTraining, made: CommandFiles) -> CommandFiles:
    """The files with accelerate's own settings out of the way of their ds_config.

    accelerate refuses a DeepSpeed file, also one that Trainer is given, beside settings of its own
    that say the same: those of its file, and the precision in it.
    """
    gives_file = any(HERE in word for word in made.command)
    is_by_settings = (
        training.parts.kind == "accelerate" and training.script.is_set_up_by_accelerate
    )
    if not gives_file or not is_by_settings or ACCELERATE_FILE in made.files:
        return made
    text = dump_yaml(_accelerate_settings(training, training.config))
    made = dataclasses.replace(made, command=_launched(training, made.command))
    about = "yours, with `ds_config.json` in place of its own settings"
    return made.with_file(ACCELERATE_FILE, text, about)


def _accelerate_files(training: CommandTraining) -> CommandFiles:
    """The files of a script that calls accelerate, which its launcher set up by settings."""
    config, precision = dict(training.config), training.script.precision
    config.pop("train_batch_size", None)  # it follows, and is refused at stage 3
    if precision in _LOW_PRECISIONS:
        config.setdefault(precision, {"enabled": True})  # accelerate's own file may not say
    words, in_code = _launched(training, training.command()), dict(training.arguments_in_code())
    made = CommandFiles(command=words, in_code=in_code)
    made = made.with_file(CONFIG_FILE, canonical_json(config), "your configuration with the edits")
    settings = dump_yaml(_accelerate_settings(training, config))
    about = "the ranks, and the `ds_config.json` that DeepSpeed gets"
    return made.with_file(ACCELERATE_FILE, settings, about)


def _accelerate_settings(training: CommandTraining, config: dict[str, Any]) -> dict[str, Any]:
    """The user's accelerate file, or a new one, in which the `ds_config.json` is named."""
    launcher = dict(flags_of([training.words[at] for at in training.parts.launcher_flags]))
    config_file = text_or_none(launcher.get("config_file"))
    settings: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "machine_rank": 0,
        "num_machines": 1,
    }
    if config_file is not None:
        path = Path(training.script.folder, config_file)
        settings = dict(parse_yaml(read_text(path), path))
        settings.pop(_PRECISION, None)
    return {
        **settings,
        "deepspeed_config": {
            "deepspeed_config_file": CONFIG_FILE,
            "zero3_init_flag": look_up(config, "zero_optimization.stage") == 3,
        },
        "distributed_type": "DEEPSPEED",
        "num_processes": training.script.world,
        "use_cpu": False,
    }


def _launched(training: CommandTraining, words: Sequence[str]) -> list[str]:
    """The user's script under `accelerate launch`.

    Raises:
        RenderError: The command does not say which script it starts.
    """
    parts = training.parts
    if parts.script_at >= len(words):
        raise RenderError.of("export.script_unseen")
    is_module = list(words[parts.script_at - 1 : parts.script_at]) in (["-m"], ["--module"])
    flags = [words[at] for at in parts.launcher_flags if at > parts.launcher_at]
    left = with_flags(flags, dict.fromkeys(_WRITTEN))
    if is_module and "-m" not in left:
        left = [*left, "-m"]
    files = ["--config_file", f"{HERE}/{ACCELERATE_FILE}"]
    files += ["--deepspeed_config_file", f"{HERE}/{CONFIG_FILE}"]
    return ["accelerate", "launch", *files, *left, *words[parts.script_at :]]


def training_of(handout: Handout) -> CommandTraining:
    """A handout whose job has a command.

    Raises:
        RenderError: It has none.
    """
    script = handout.job.script
    if script is None:
        raise RenderError.of("export.no_command")
    engine: Engine = bind_engine(handout.job, handout.environment)
    assert isinstance(engine, ScriptEngine), "the job has a command"
    edits, candidate = engine.edits(handout.candidate), handout.candidate
    training = CommandTraining(
        script=script,
        edits=edits,
        values={**engine.as_written(candidate), "grad_accum": candidate.grad_accum},
        folder=handout.folder,
        carried=frozenset(handout.carried),
    )
    return dataclasses.replace(training, files_read=_edited_files(training))


def _quoted(words: Sequence[str]) -> str:
    """The words for a shell, with the export's folder where it stands."""
    quoted = []
    for word in words:
        before, here, after = word.partition(HERE)
        text = shlex.quote(before) if before or not here else ""
        quoted.append(f'{text}"$here"{shlex.quote(after)}' if here else text)
    return " ".join(quoted)


def _edited_files(training: CommandTraining) -> dict[str, str]:
    """Path -> text of the files with the edits in them, and with their comments.

    A file that cannot be read, or edited with every comment kept, is left out; TOML loses them.
    After them come the files that the script read from folders of theirs, as they are: it may look
    for those beside the others.
    """
    script = training.script
    wanted = {key: value for key, value in training.in_file() if key in training.carried}
    if script.framework != "deepspeed" and "train_micro_batch_size_per_gpu" in wanted:
        wanted["train_batch_size"] = None  # see `Edits.apply`
    found = {}
    in_files = script.in_files(wanted)
    in_files.pop(str(script.description.get("config_file")), None)  # it is ds_config.json there
    if arguments := training.edited_argument_file:
        changes = training.arguments_in_file()
        if not script.sources_of_config:
            changes.append((["deepspeed"], str(training.folder.resolve() / CONFIG_FILE)))
        in_files.setdefault(arguments, []).extend(changes)
    for file, changes in in_files.items():
        path = Path(file)
        with contextlib.suppress(AutotuneError):
            text = read_text(path)
            after: str | None
            if path.suffix == ".toml":
                after = toml_of(with_changes(tomllib.loads(text), nested(changes)))
            else:
                after = edit(text, nested(changes), parsed(text, path).syntax)
            if after is not None:
                found[file] = after
    folders = tuple(f"{Path(file).parent}{os.sep}" for file in found)
    for file in script.description.get("settings_read") or ():
        if file not in found and str(file).startswith(folders):
            with contextlib.suppress(AutotuneError):
                found[file] = read_text(Path(file))
    return found
