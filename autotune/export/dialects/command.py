"""The dialect of a user's own command: their configuration and their command line, edited."""

import copy
import os
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.base.errors import RenderError
from autotune.base.templates import Templates, canonical_json
from autotune.engines.base import Engine, bind_engine
from autotune.engines.deepspeed.script import ScriptEngine
from autotune.export.base import Dialect, Handout, Launch
from autotune.export.readme import choice_values, figures_file
from autotune.job.observed import Observed, filled_in
from autotune.trial.engines.deepspeed import CONFIG_FILE
from autotune.trial.guest.edits import Edits

_HERE = "AUTOTUNE_EXPORT_FOLDER"
"""Stands in a command for the folder of the export until it is quoted for the shell."""
_AXOLOTL = {
    "per_device_train_batch_size": "--micro-batch-size",
    "gradient_accumulation_steps": "--gradient-accumulation-steps",
    "gradient_checkpointing": "--gradient-checkpointing",
}
"""Fields of TrainingArguments -> what `axolotl train` calls them."""


class OwnCommand(Dialect):
    """`launch.sh` starts the training as the user does, with the edits that were measured."""

    engines = ("deepspeed",)

    def files(
        self, handout: Handout, launch: Launch | None, templates: Templates
    ) -> dict[str, str]:
        """See `Dialect.files`."""
        script = handout.job.script
        if script is None:
            raise RenderError(
                "--to command: this study trains no command of your own",
                "leave --to out",
            )
        edits = _edits(handout)
        in_code = dict(in_code_of(script, edits))
        values = {
            "command": _quoted(edited_command(script, handout, edits)),
            "typed": shlex.join(script.command),
            "folder": shlex.quote(script.folder),
            "variables": sorted(handout.variables.items()),
            "config_file": script.description.get("config_file", ""),
            "configuration": [
                (key, "removed" if value is None else value)
                for key, value in sorted(edits.configuration.items())
            ],
            "arguments": sorted(edits.arguments.items()),
            "in_code": sorted(in_code.items()),
            **choice_values(handout),
        }
        written: dict[str, Any] = _with_edits(script, edits)
        return {
            CONFIG_FILE: canonical_json(written),
            "launch.sh": templates.text("command/launch.sh.j2", values),
            "README.md": templates.text("command/README.md.j2", values),
            **figures_file(handout),
        }


def edited_command(script: Observed, handout: Handout, edits: Edits) -> list[str]:
    """The user's command with the edits in it; a file of the export begins with `_HERE`."""
    values = {**handout.candidate.values, "grad_accum": handout.candidate.grad_accum}
    words = filled_in(script.command, values)
    config = script.description.get("config_file", "")
    if config:
        words = [_with_config(word, config, script.folder) for word in words]
    told = {n: v for n, v in edits.arguments.items() if n not in dict(in_code_of(script, edits))}
    for name, value in told.items():
        words = _with_argument(words, script, name, value)
    return words


def in_code_of(script: Observed, edits: Edits) -> Iterator[tuple[str, Any]]:
    """Edits that the command line cannot carry: its script sets them in its own code."""
    takes_arguments = script.framework in ("llama-factory", "axolotl") or any(
        word.lstrip("-").partition("=")[0].replace("-", "_") in script.arguments
        for word in script.command
        if word.startswith("--")
    )
    if not takes_arguments:
        yield from edits.arguments.items()
    if not script.description.get("config_file"):
        for key, value in edits.configuration.items():
            yield f"DeepSpeed's configuration: {key}", value


def _with_argument(words: list[str], script: Observed, name: str, value: Any) -> list[str]:
    text = str(value)
    if script.framework == "llama-factory":
        kept = [word for word in words if word.partition("=")[0] != name]
        return [*kept, f"{name}={text.lower() if isinstance(value, bool) else text}"]
    flags = (f"--{name}", f"--{name.replace('_', '-')}")
    if script.framework == "axolotl" and name in _AXOLOTL:
        flags = (_AXOLOTL[name],) * 2
    for index, word in enumerate(words):
        if word in flags:
            has_value = index + 1 < len(words) and not words[index + 1].startswith("--")
            return [*words[: index + 1], text, *words[index + 1 + has_value :]]
        if word.partition("=")[0] in flags and "=" in word:
            return [*words[:index], f"{word.partition('=')[0]}={text}", *words[index + 1 :]]
    return [*words, flags[0], text]


def _with_config(word: str, config: str, folder: str) -> str:
    flag, equals, path = word.rpartition("=")
    if path and os.path.abspath(os.path.join(folder, path)) == config:
        return f"{flag}{equals}{_HERE}/{CONFIG_FILE}"
    return word


def _quoted(words: list[str]) -> str:
    """The words for a shell, with the export's folder where it stands."""
    quoted = []
    for word in words:
        before, here, after = word.partition(_HERE)
        text = shlex.quote(before) if before or not here else ""
        quoted.append(f'{text}"$here"{shlex.quote(after)}' if here else text)
    return " ".join(quoted)


def _with_edits(script: Observed, edits: Edits) -> dict[str, Any]:
    """The configuration as the user wrote it, every "auto" kept, with the edits in it."""
    written: Mapping[str, Any] = script.description.get("config_written") or script.config
    config: dict[str, Any] = copy.deepcopy(dict(written))
    edits.apply(config, drops_product=True)
    for key, name in _OWNED_BY_TRAINER.items():
        # What Trainer fills in by itself, from the arguments that are edited as well.
        if script.is_trainer and written.get(key) == "auto" and name in script.arguments:
            config[key] = "auto"
    return config


_OWNED_BY_TRAINER = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "train_batch_size": "per_device_train_batch_size",
}


def _edits(handout: Handout) -> Edits:
    engine: Engine = bind_engine(handout.job, handout.environment)
    assert isinstance(engine, ScriptEngine), "the job has a command"
    return engine.edits(handout.candidate)
