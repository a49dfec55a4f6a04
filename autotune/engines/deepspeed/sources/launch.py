"""A launch line: how many ranks it starts, and what it tells the script."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from autotune.base.errors import JobError
from autotune.base.flags import flag
from autotune.engines.deepspeed.sources import openrlhf
from autotune.engines.deepspeed.sources.accelerate import FLAGS, OF_NODES
from autotune.engines.deepspeed.sources.consumers import Consumer
from autotune.engines.deepspeed.sources.layout import (
    ACCELERATOR_VARIABLE,
    ACCELERATORS,
    ExportedLayout,
)
from autotune.engines.launches.line import (
    AXOLOTL,
    NO_RANKS,
    TRL,
    Ranks,
    VisibleDevices,
    count_in,
    flags_of,
    open_words,
    parts_of,
    ranks_of,
    text_or_none,
    typed,
    visible_devices,
)

_TRLS = "trl.scripts."
_DATA = (".yaml", ".yml", ".json")

_DEGREES = (
    *("pipeline_model_parallel_size", "tensor_model_parallel_size"),
    "ds_sequence_parallel_size",
)
_OF_MEGATRON = ("micro_batch_size", "num_layers", *_DEGREES)
"""Flags of Megatron-DeepSpeed's scripts (megatron/arguments.py)."""

MEGATRON = "Megatron-DeepSpeed"


@dataclass(frozen=True, kw_only=True)
class LaunchLine:
    """The settings of a launch line."""

    kind: str = ""
    """The launcher: deepspeed, torchrun or accelerate; empty: none of these."""
    ranks: Ranks = NO_RANKS
    """How its ranks come about."""
    n_nodes: int | None = None
    """Nodes that accelerate is told; its YAML may say how many ranks they make."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the script: name with underscores -> value; a flag without one is true."""
    config: str | None = None
    """The ds_config that it names."""
    accelerate_config: str | None = None
    """The accelerate YAML that it names."""
    mixed_precision: str | None = None
    """`--mixed_precision` of accelerate."""
    consumer: Consumer | None = None
    """Program that reads the configuration; None where the line does not tell."""
    reader: str = ""
    """The program behind `--deepspeed_config`, where the flags tell."""
    script: str = ""
    """The script that it starts, or the command that stands for one."""
    plugin: Mapping[str, Any] = field(default_factory=dict)
    """DeepSpeed's flags of `accelerate launch`."""
    uses_deepspeed: bool = False
    """Whether `accelerate launch` is told to."""
    launcher_flags: Mapping[str, Any] = field(default_factory=dict)
    """The launcher's flags."""
    command: str = ""
    """The first word behind the script: `grpo` of `trl grpo`."""
    set: Mapping[str, str] = field(default_factory=dict)
    """The variables before it."""
    visible: VisibleDevices | None = None
    """The devices that a variable before it or a flag of `accelerate launch` leaves visible."""
    accelerator: str | None = None
    """Where it runs, one of `ACCELERATORS`, as a variable before it or a flag of
    `accelerate launch` says; None: neither does."""
    named: str | None = None
    """The file of arguments that it hands to the script, where it names no ds_config."""
    layout: ExportedLayout | None = None
    """How Megatron-DeepSpeed splits the model, where it has a pipeline or shares sequences."""
    open_words: tuple[str, ...] = ()
    """Words that hand the script further arguments, which only the shell knows: `$ARGS`."""
    assumed: tuple[str, ...] = ()
    """Defaults of words that its file is started with, in words."""
    is_tuned: bool = False
    """Whether DeepSpeed's own autotuner is started."""
    is_whole: bool = True
    """Whether the shell puts no further flags in for its launcher: `$LAUNCH_ARGS`."""
    split: int = 1
    """Ranks over which it splits a model without a pipeline; DeepSpeed leaves them out of its
    batch. 0: the line has a variable there."""

    @property
    def runs_instead(self) -> str:
        """Name of what `accelerate launch` is told to start instead of DeepSpeed, if it is."""
        flags = self.launcher_flags if self.kind == "accelerate" else {}
        return "FSDP" if flags.get("use_fsdp") else "MULTI_GPU" if flags.get("multi_gpu") else ""

    @property
    def started(self) -> str:
        """The name of its script and the word behind: `trl grpo`."""
        return f"{PurePath(self.script).name} {self.command}"


def read_launch(line: str) -> LaunchLine:
    """Read a line that starts `deepspeed`, `torchrun`, `accelerate launch` or a script.

    Raises:
        JobError: It is empty, its quotes do not close, or a count in it is none.
    """
    if not line.strip():
        raise JobError.of("engines.deepspeed.launch_is_empty")
    try:
        words = shlex.split(line.replace("\\\n", " "))
    except ValueError as error:
        raise JobError(f"{flag('launch')}: {error}: {line}", "close the quotes") from error
    return launch_of_words(words, variables=assigned(words))


def launch_of_words(words: Sequence[str], **around: Any) -> LaunchLine:
    """What the words of a launch line say; `around` and errors are those of `ranks_of`."""
    parts = parts_of(words)
    kind = parts.kind
    to_script = [words[number] for number in parts.script_flags]
    launcher = dict(flags_of([words[number] for number in parts.launcher_flags]))
    script = dict(flags_of(to_script))
    script = {one: value for one, value in script.items() if one[:9] != "deepspeed" or value != ""}
    name = next(iter(words[parts.script_at :]), "")
    command = next(iter(to_script), "")
    if name.startswith(_TRLS):  # the module that its command starts
        name, command = TRL, name.removeprefix(_TRLS)
    is_factory = PurePath(name).name == "llamafactory-cli"
    trains = not is_factory or to_script[:1] == ["train"]  # others chat, export or serve
    if is_factory:
        if any(word.endswith(_DATA) for word in to_script[:2]):  # it takes no flags behind a file
            script = {f"--{name}": value for name, value in script.items()}
        script |= dict(_settings(to_script))
    is_axolotl = PurePath(name).name.partition(".")[0] == AXOLOTL  # `--deepspeed` is one more key
    by_accelerate = kind == "accelerate" and PurePath(name).name != AXOLOTL
    accelerates = launcher if by_accelerate else {}
    before = {**around.get("variables", {}), **assigned(words[: parts.script_at])}
    config, consumer = None, None
    if isinstance(script.get("deepspeed"), str):
        config, consumer = script["deepspeed"], Consumer.TRAINER
    elif isinstance(script.get("deepspeed_config"), str):
        config, consumer = script["deepspeed_config"], Consumer.DEEPSPEED
    elif by_accelerate:
        config, consumer = text_or_none(launcher.get("deepspeed_config_file")), Consumer.ACCELERATE
    is_megatron = consumer is Consumer.DEEPSPEED and any(name in script for name in _OF_MEGATRON)
    layout, split = _megatron_layout(script) if is_megatron else (None, 1)
    reader = MEGATRON if is_megatron else ""
    if openrlhf.is_openrlhf(name):
        reader, script = openrlhf.READER, openrlhf.arguments_of(script)
    return LaunchLine(
        kind=kind,
        reader=reader,
        script=name,
        layout=layout,
        split=split,
        plugin={one: accelerates[one] for one in (*FLAGS, *OF_NODES) if one in accelerates},
        uses_deepspeed=bool(accelerates.get("use_deepspeed")),
        launcher_flags=launcher,
        command=command,
        set=before,
        visible=visible_devices(accelerates, before),
        accelerator="cpu" if accelerates.get("cpu") is True else accelerator_in(before),
        ranks=ranks_of(words, **{**around, "variables": before}),
        n_nodes=count_in(launcher, "num_machines"),
        arguments=script,
        config=config,
        accelerate_config=text_or_none(accelerates.get("config_file")),
        mixed_precision=text_or_none(launcher.get("mixed_precision")),
        consumer=consumer,
        named=_named_file(to_script, script) if trains and (is_axolotl or not config) else None,
        open_words=tuple(open_words(to_script)),
        is_tuned=kind == "deepspeed" and "autotuning" in launcher,
        is_whole=not any(open_words(words[parts.launcher_at + 1 : parts.script_at])),
    )


def assigned(words: Sequence[str]) -> dict[str, str]:
    """`NAME=value` among the words, as `env` takes it."""
    return {name: value for name, equals, value in (w.partition("=") for w in words) if equals}


def accelerator_in(variables: Mapping[str, str]) -> str | None:
    """Where variables of the environment say that DeepSpeed runs; None: they do not say."""
    named = variables.get(ACCELERATOR_VARIABLE)
    return named if named in ACCELERATORS else None


def _megatron_layout(script: Mapping[str, Any]) -> tuple[ExportedLayout | None, int]:
    pp, tp, sp = (script.get(name, 1) for name in _DEGREES)
    pp = 1 if script.get("no_pipeline_parallel") else pp
    if any(type(degree) is not int or degree < 1 for degree in (pp, tp, sp)):
        return None, 0
    if pp > 1:
        return ExportedLayout(pp=pp, tp=tp), 1
    return (ExportedLayout(sp=sp) if sp > 1 else None), tp


def _settings(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """`name=value`, as OmegaConf takes it."""
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            yield name, typed(value)


def _named_file(words: Sequence[str], flags: Mapping[str, Any]) -> str | None:
    """The YAML or JSON of arguments that a script is given, as `--config` or as its first word."""
    given = flags.get("config")
    if isinstance(given, str) and PurePath(given).suffix in _DATA:
        return given
    for before, word in zip(["", *words], words, strict=False):
        is_value = before.startswith("-") and "=" not in before
        is_result = "$" in word and word.endswith(".json")  # as the metrics of a run
        is_named = PurePath(word).suffix in _DATA and not is_result
        if is_named and not is_value and not word.startswith("-"):
            return word
    return None
