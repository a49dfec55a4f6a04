"""The dialect of Hugging Face Trainer: TrainingArguments, and a ds_config that they fill in."""

import json
from collections.abc import Mapping
from typing import Any

from autotune.base.templates import Templates, canonical_json
from autotune.export.base import Dialect, Handout, Launch
from autotune.export.command_training import CommandFiles, CommandTraining
from autotune.export.material import SCRIPT, material, readme
from autotune.export.trainer import (
    SHORT_RUN,
    Setting,
    refuse_unsaid,
    trained,
    trainer_arguments,
)
from autotune.trial.engines.deepspeed import CONFIG_FILE

ARGUMENTS_FILE = "train.args"
"""HfArgumentParser reads a file of this name beside `train.py` by itself."""
RUN_FILE = "run.args"
"""Arguments of the run that an export carries, as its `train.py` reads them."""
BY_SCRIPT = frozenset(
    {
        *(Setting.SOME_LAYERS, Setting.ATTENTION, Setting.LOSS_CHUNKS, Setting.COMPILE),
        *(Setting.ADAPTERS, Setting.FACTORY, Setting.CORES, Setting.MLP_CHUNKS),
    }
)
"""What arguments cannot say, and the script beside them does."""


class HuggingFaceTrainer(Dialect):
    """For `Trainer`: each value that Trainer owns is an argument, and "auto" in the file."""

    engines = ("deepspeed",)
    script = SCRIPT
    frameworks = ("trainer", "trl", "ms-swift")

    def files(self, handout: Handout, launch: Launch, templates: Templates) -> dict[str, str]:
        consumer = "Hugging Face Trainer"
        refuse_unsaid(handout, consumer, says=BY_SCRIPT)
        arguments = trainer_arguments(handout, consumer)
        more = {"consumer": consumer, "arguments": spelled(arguments)}
        config = trained(handout).config
        return {
            CONFIG_FILE: canonical_json(config),
            ARGUMENTS_FILE: lines_of(arguments),
            **run_file(handout),
            **material(handout, "hf/train.py", templates),
            **readme(handout, launch, templates, "hf/README.md.j2", more, config=config),
        }

    def of_command(self, training: CommandTraining) -> CommandFiles:
        lines = "".join(f"--{name} {text}\n" for name, text in spelled(training.arguments) if text)
        files = {CONFIG_FILE: canonical_json(training.config_for_trainer), ARGUMENTS_FILE: lines}
        about = {
            CONFIG_FILE: '"auto" wherever Trainer owns the key: its arguments hold the value',
            ARGUMENTS_FILE: "TrainingArguments that you set or that change, as a command line has "
            "them",
        }
        if not training.takes_arguments and training.argument_file is not None:
            name, text = training.edited_arguments()
            files[name], about[name] = text, "your file of arguments with the edits"
            return CommandFiles(files=files, command=training.command_with_file(name), about=about)
        notes = ['Trainer refuses numbers that differ from its arguments: leave "auto"']
        if not training.takes_arguments:
            fields = ", ".join(f"{name}={value!r}" for name, value in training.arguments.items())
            notes.append(f"in your code: `TrainingArguments(..., {fields})`")
        return CommandFiles(
            files=files,
            command=training.command(),
            about=about,
            notes=notes,
            in_code=dict(training.in_code()),
        )


def run_file(handout: Handout, **more: Any) -> dict[str, str]:
    """The file of what a candidate does not decide; none for a script of the workload's own."""
    if handout.workload.script:
        return {}
    arguments = {"disable_tqdm": True, **trained(handout).of_the_run, **more}
    return {RUN_FILE: lines_of({**SHORT_RUN, **arguments})}


def lines_of(arguments: Mapping[str, Any]) -> str:
    """Arguments as a command line has them, one a line."""
    return "".join(f"--{name} {text}\n" for name, text in spelled(arguments))


def spelled(arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Arguments as a command line spells them, one word each: a file of them has no quotes.

    A list is a word for each item, which ends with the next flag.
    """
    return [(name, _text(value)) for name, value in arguments.items() if value is not None]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
