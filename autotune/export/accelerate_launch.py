"""A user's own command under `accelerate launch`, with a file that names its `ds_config.json`.

accelerate refuses a DeepSpeed file, also one that Trainer is given, beside settings of its own
that say the same: those of its file, and the precision in it.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.base.errors import RenderError
from autotune.base.nested import look_up
from autotune.base.templates import canonical_json
from autotune.base.user_text import read_text
from autotune.base.yaml_file import dump_yaml, parse_yaml
from autotune.engines.deepspeed.sources.accelerate_names import FLAGS
from autotune.engines.launches.line import flags_of, text_or_none
from autotune.export.command_training import HERE, CommandFiles, CommandTraining, without_flags
from autotune.export.launchers.accelerate import YAML_FILE
from autotune.trial.engines.deepspeed import CONFIG_FILE

LOW_PRECISIONS = ("bf16", "fp16")
_TRAINERS = ("trainer", "trl", "ms-swift")
"""Frameworks that `accelerate launch` of the user's own starts."""
_PRECISION = "mixed_precision"
_WRITTEN = (
    "deepspeed",
    "config_file",
    "deepspeed_config_file",
    "use_deepspeed",
    _PRECISION,
    *FLAGS,
)
"""Flags that the export's files replace."""


def with_launch_file(training: CommandTraining, made: CommandFiles) -> CommandFiles:
    """The files of a dialect, with accelerate's own settings out of the way of their ds_config."""
    gives_file = any(HERE in word for word in made.command)
    is_by_settings = training.launcher == "accelerate" and training.script.framework in _TRAINERS
    has_file = training.names_config or training.script.description.get("config_file")
    if not gives_file or not is_by_settings or has_file or YAML_FILE in made.files:
        return made
    return dataclasses.replace(
        made,
        files={**made.files, YAML_FILE: dump_yaml(settings_of(training, training.config))},
        command=launched(training, made.command),
        about={
            **made.about,
            YAML_FILE: "yours, with `ds_config.json` in place of its own settings",
        },
    )


def accelerate_files(training: CommandTraining) -> CommandFiles:
    """The files of a script that calls accelerate, which its launcher set up by settings."""
    config, precision = dict(training.config), training.script.precision
    config.pop("train_batch_size", None)  # it follows, and is refused at stage 3
    if precision in LOW_PRECISIONS:
        config.setdefault(precision, {"enabled": True})  # accelerate's own file may not say
    return CommandFiles(
        files={
            CONFIG_FILE: canonical_json(config),
            YAML_FILE: dump_yaml(settings_of(training, config)),
        },
        command=launched(training, training.command()),
        about={
            CONFIG_FILE: "your configuration with the edits",
            YAML_FILE: "the ranks, and the `ds_config.json` that DeepSpeed gets",
        },
        in_code=dict(training.arguments_in_code()),
    )


def settings_of(training: CommandTraining, config: dict[str, Any]) -> dict[str, Any]:
    """The user's accelerate file, or a new one, in which the `ds_config.json` is named."""
    launcher = dict(flags_of([training.words[at] for at in training.parts.launcher_flags]))
    config_file = (
        text_or_none(launcher.get("config_file")) if training.launcher == "accelerate" else None
    )
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


def launched(training: CommandTraining, words: Sequence[str]) -> list[str]:
    """The user's script under `accelerate launch`.

    Raises:
        RenderError: The command does not say which script it starts.
    """
    parts = training.parts
    if parts.script_at >= len(words):
        raise RenderError(
            "the command does not show the script that accelerate starts",
            "give the command itself in place of what starts it",
        )
    is_module = list(words[parts.script_at - 1 : parts.script_at]) in (["-m"], ["--module"])
    flags = [words[at] for at in parts.launcher_flags if at > parts.launcher_at]
    left = without_flags(flags, _WRITTEN) if training.launcher == "accelerate" else []
    if is_module and "-m" not in left:
        left = [*left, "-m"]
    files = ["--config_file", f"{HERE}/{YAML_FILE}"]
    files += ["--deepspeed_config_file", f"{HERE}/{CONFIG_FILE}"]
    return ["accelerate", "launch", *files, *left, *words[parts.script_at :]]
