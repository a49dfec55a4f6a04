"""The dialect of a user's own command: their configuration and their command line, edited."""

import copy
import os
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.base.errors import RenderError
from autotune.base.templates import Templates, canonical_json
from autotune.contract import KnobValue
from autotune.engines.base import Engine, bind_engine
from autotune.engines.deepspeed.script import ScriptEngine
from autotune.export.base import Dialect, Handout, Launch
from autotune.export.readme import choice_values, figures_file
from autotune.job.observed import Observed, filled_in
from autotune.trial.engines.deepspeed import CONFIG_FILE
from autotune.trial.guest.edits import Edits
from autotune.trial.guest.frameworks import told

_OWN_PROGRAMS = ("llama-factory", "axolotl")
"""Frameworks whose own program reads a file and takes any of its fields as an argument."""
_HERE = "AUTOTUNE_EXPORT_FOLDER"
"""Stands in a command for the folder of the export until it is quoted for the shell."""


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
        chosen = {**handout.candidate.values, "grad_accum": handout.candidate.grad_accum}
        values = {
            "command": _quoted(edited_command(script, edits, chosen)),
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


def edited_command(script: Observed, edits: Edits, values: Mapping[str, KnobValue]) -> list[str]:
    """The user's command with the edits in it; a file of the export begins with `_HERE`.

    Args:
        script: The command as it was typed, and what it showed.
        edits: What a candidate changes.
        values: The candidate's, for placeholders.
    """
    words = filled_in(script.command, values)
    if _names_config(script):
        config = script.description["config_file"]
        words = [_with_config(word, config, script.folder) for word in words]
    elif _takes(script, "deepspeed") and any(_in_file(script, edits)):
        words = _with_argument(words, script, "deepspeed", f"{_HERE}/{CONFIG_FILE}")
    for name, value in edits.arguments.items():
        if _takes(script, name):
            words = _with_argument(words, script, name, value)
    return words


def in_code_of(script: Observed, edits: Edits) -> Iterator[tuple[str, Any]]:
    """Edits that the command line cannot carry: its script sets them in its own code."""
    for name, value in edits.arguments.items():
        if not _takes(script, name):
            yield name, value
    if not _names_config(script) and not _takes(script, "deepspeed"):
        for key, value in _in_file(script, edits):
            yield f"DeepSpeed's configuration: {key}", value


def _names_config(script: Observed) -> bool:
    """Whether a word of the command is DeepSpeed's file."""
    config = script.description.get("config_file", "")
    return any(_with_config(word, config, script.folder) != word for word in script.command)


def _takes(script: Observed, name: str) -> bool:
    """Whether the command line takes one of Trainer's arguments, or names it."""
    if script.framework in _OWN_PROGRAMS or script.description.get("parses_arguments"):
        return script.is_trainer
    flags = (word for word in script.command if word.startswith("--"))
    return any(flag[2:].partition("=")[0].replace("-", "_") == name for flag in flags)


def _in_file(script: Observed, edits: Edits) -> Iterator[tuple[str, Any]]:
    """Edits of DeepSpeed's configuration but for what Trainer fills in from its arguments."""
    config = _with_edits(script, edits)
    for key, value in edits.configuration.items():
        if config.get(key) != "auto":
            yield key, value


def _with_argument(words: list[str], script: Observed, name: str, value: Any) -> list[str]:
    name, value = told(script.framework, name, value)
    text = str(value)
    if script.framework == "llama-factory":
        kept = [word for word in words if word.partition("=")[0] != name]
        return [*kept, f"{name}={text.lower() if isinstance(value, bool) else text}"]
    if script.framework == "axolotl":
        end = words.index("--") if "--" in words else len(words)  # the rest is the launcher's
        return [*_with_flag(words[:end], name.replace("_", "-"), text), *words[end:]]
    return _with_flag(words, name, text)


def _with_flag(words: list[str], name: str, text: str) -> list[str]:
    """A command line in which a flag has a value, in the place where it stands already if any."""
    flags = (f"--{name}", f"--{name.replace('_', '-')}")
    for index, word in enumerate(words):
        if word in flags:
            has_value = index + 1 < len(words) and not words[index + 1].startswith("--")
            return [*words[: index + 1], text, *words[index + 1 + has_value :]]
        if word.partition("=")[0] in flags and "=" in word:
            return [*words[:index], f"{word.partition('=')[0]}={text}", *words[index + 1 :]]
    return [*words, flags[0], text]


def _with_config(word: str, config: str, folder: str) -> str:
    flag, equals, path = word.rpartition("=")
    if path and config and os.path.abspath(os.path.join(folder, path)) == config:
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
