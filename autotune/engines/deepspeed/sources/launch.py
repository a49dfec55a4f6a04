"""A launch line: how many ranks it starts, and what it tells the script."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from autotune.base.errors import JobError
from autotune.engines.deepspeed.sources.accelerate_names import FLAGS
from autotune.engines.deepspeed.sources.consumers import Consumer
from autotune.engines.deepspeed.sources.layout import ExportedLayout

TRL = "trl"
"""Its command, which reads YAML with a parser of its own."""

_AXOLOTL = "axolotl"
"""Its command, which hands what stands after `--` to the launcher that it starts."""

_SCRIPT_COMMANDS = ("llamafactory-cli", _AXOLOTL, "swift", TRL)

_LAUNCHERS = {
    "deepspeed": "deepspeed",
    "torchrun": "torchrun",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate": "accelerate",
    "accelerate.commands.launch": "accelerate",
}
"""Command or module -> the launcher that it is."""

_DEVICE_KINDS = ("auto", "gpu", "cpu", "xpu", "npu", "hpu")
"""All devices of a kind, for torchrun (torch/distributed/run.py: determine_local_world_size)."""

_ALL = (-1,)
"""DeepSpeed's launcher's word for all that there are (launcher/runner.py)."""

_DATA = (".yaml", ".yml", ".json")

_COUNT = "a whole number above 0"

_DEGREES = (
    *("pipeline_model_parallel_size", "tensor_model_parallel_size"),
    "ds_sequence_parallel_size",
)
_OF_MEGATRON = ("micro_batch_size", "num_layers", *_DEGREES)
"""Flags of Megatron-DeepSpeed's scripts (megatron/arguments.py)."""

MEGATRON = "Megatron-DeepSpeed"

_RANGE = re.compile(r"\d+:\d+")
"""A range of nodes, for torchrun."""


@dataclass(frozen=True, kw_only=True)
class LaunchLine:
    """The settings of a launch line."""

    kind: str = ""
    """The launcher: deepspeed, torchrun or accelerate; empty: none of these."""
    world: int | None = None
    """Ranks; None where it does not say (all devices that there are)."""
    per_node: int | None = None
    """Ranks of one node; None where it does not say."""
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
    named: str | None = None
    """The file of arguments that it hands to the script, where it names no ds_config."""
    layout: ExportedLayout | None = None
    """How Megatron-DeepSpeed splits the model, where it has a pipeline or shares sequences."""
    split: int = 1
    """Ranks over which it splits a model without a pipeline; DeepSpeed leaves them out of its
    batch. 0: the line has a variable there."""


def read_launch(line: str) -> LaunchLine:
    """Read a line that starts `deepspeed`, `torchrun`, `accelerate launch` or a script.

    Raises:
        JobError: It is empty, its quotes do not close, or a count in it is none.
    """
    if not line.strip():
        raise JobError("--launch is empty", "give the line that starts the training, or leave it")
    try:
        words = shlex.split(line.replace("\\\n", " "))
    except ValueError as error:
        raise JobError(f"--launch: {error}: {line}", "close the quotes") from error
    return launch_of_words(words)


def launch_of_words(words: Sequence[str]) -> LaunchLine:
    """What the words of a launch line say; errors as of `read_launch`."""
    parts = parts_of(words)
    kind = parts.kind
    to_script = [words[number] for number in parts.script_flags]
    launcher = dict(_flags([words[number] for number in parts.launcher_flags]))
    script = dict(_flags(to_script))
    name = next(iter(words[parts.script_at :]), "")
    if PurePath(name).name == "llamafactory-cli":
        script |= dict(_settings(to_script))
    if not kind and PurePath(name).name == TRL:
        # What it does not know itself, it hands to `accelerate launch`.
        world, per_node = _ranks("accelerate", script)
    else:
        world, per_node = _ranks(kind, launcher)
    by_accelerate = kind == "accelerate" and PurePath(name).name != _AXOLOTL
    config, consumer = None, None
    if isinstance(script.get("deepspeed"), str):
        config, consumer = script["deepspeed"], Consumer.TRAINER
    elif isinstance(script.get("deepspeed_config"), str):
        config, consumer = script["deepspeed_config"], Consumer.DEEPSPEED
    elif by_accelerate:
        config, consumer = text_or_none(launcher.get("deepspeed_config_file")), Consumer.ACCELERATE
    is_megatron = consumer is Consumer.DEEPSPEED and any(name in script for name in _OF_MEGATRON)
    layout, split = _megatron_layout(script) if is_megatron else (None, 1)
    return LaunchLine(
        kind=kind,
        reader=MEGATRON if is_megatron else "",
        script=name,
        layout=layout,
        split=split,
        plugin={name: launcher[name] for name in FLAGS if by_accelerate and name in launcher},
        uses_deepspeed=by_accelerate and bool(launcher.get("use_deepspeed")),
        world=world,
        per_node=per_node,
        n_nodes=_count(launcher, "num_machines"),
        arguments=script,
        config=config,
        accelerate_config=text_or_none(launcher.get("config_file")) if by_accelerate else None,
        mixed_precision=text_or_none(launcher.get("mixed_precision")),
        consumer=consumer,
        named=_named_file(to_script, script) if config is None else None,
    )


def _megatron_layout(script: Mapping[str, Any]) -> tuple[ExportedLayout | None, int]:
    """The layout, and what is left of it to divide the world by."""
    pp, tp, sp = (script.get(name, 1) for name in _DEGREES)
    pp = 1 if script.get("no_pipeline_parallel") else pp
    if any(type(degree) is not int or degree < 1 for degree in (pp, tp, sp)):
        return None, 0
    if pp > 1:
        return ExportedLayout(pp=pp, tp=tp), 1
    return (ExportedLayout(sp=sp) if sp > 1 else None), tp


@dataclass(frozen=True, kw_only=True)
class LineParts:
    """Where the parts of a launch line are, as numbers of its words."""

    kind: str
    """The launcher: deepspeed, torchrun or accelerate; empty: none."""
    launcher_at: int
    """The last word of the launcher's own name; -1: there is none."""
    script_at: int
    """The script, or the command that stands for one; the number of words: there is none."""
    launcher_flags: range
    """The words among which the launcher's flags are."""
    script_flags: range
    """The words among which the script's are."""


def parts_of(words: Sequence[str]) -> LineParts:
    """Where the launcher's flags end and the script's begin."""
    launcher_at = next((at for at, word in enumerate(words) if _launcher(word)), -1)
    kind = _launcher(words[launcher_at]) if launcher_at >= 0 else ""
    if kind == "accelerate" and words[launcher_at + 1 : launcher_at + 2] == ["launch"]:
        launcher_at += 1
    script_at = next(
        (at for at, word in enumerate(words) if _is_script(words, at, word)), len(words)
    )
    own = range(script_at + 1, len(words))
    if script_at < len(words) and PurePath(words[script_at]).name == _AXOLOTL:
        own = range(script_at + 1, next((at for at in own if words[at] == "--"), len(words)))
        named = dict(_flags([words[at] for at in own])).get("launcher", "accelerate")
        return LineParts(
            kind=_launcher(str(named)),
            launcher_at=min(own.stop, len(words) - 1),
            script_at=script_at,
            launcher_flags=range(own.stop + 1, len(words)),
            script_flags=own,
        )
    return LineParts(
        kind=kind,
        launcher_at=launcher_at,
        script_at=script_at,
        launcher_flags=range(script_at),
        script_flags=own,
    )


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
        if not is_value and not word.startswith("-") and PurePath(word).suffix in _DATA:
            return word
    return None


def _launcher(word: str) -> str:
    return _LAUNCHERS.get(word.rpartition("/")[2], "")


def _is_script(words: Sequence[str], at: int, word: str) -> bool:
    if word.endswith(".py") or word.rpartition("/")[2] in _SCRIPT_COMMANDS:
        return True
    is_module = at > 0 and words[at - 1] in ("-m", "--module")
    return is_module and not _launcher(word)


def _flags(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """`--name value`, `--name=value` and `--name`; what is no flag is left out."""
    for at, word in enumerate(words):
        if not word.startswith("-") or _is_number(word):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        following = words[at + 1] if at + 1 < len(words) else "--"
        if equals:
            yield name.replace("-", "_"), typed(value)
        elif following.startswith("-") and not _is_number(following):
            yield name.replace("-", "_"), True
        else:
            yield name.replace("-", "_"), typed(following)


def _is_number(word: str) -> bool:
    return type(typed(word)) in (int, float)


def typed(text: str) -> Any:
    """A number or a truth value where the text is one; YAML reads 1e-5 as text."""
    try:
        return float(text) if any(c in text for c in ".eE") else int(text)
    except ValueError:
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def text_or_none(value: Any) -> str | None:
    """The value, where it is a text."""
    return value if isinstance(value, str) else None


def _ranks(kind: str, flags: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """All ranks, and those of one node."""
    if kind == "accelerate":
        # Without num_machines the YAML decides, also one that the line does not name.
        world, nodes = _count(flags, "num_processes"), _count(flags, "num_machines")
        return world, (world // nodes if world and nodes and world % nodes == 0 else None)
    if kind == "torchrun":
        given = "nproc_per_node" if "nproc_per_node" in flags else "nproc"
        per_node = _count(flags, given, default=1, words=_DEVICE_KINDS)
        if _RANGE.fullmatch(str(flags.get("nnodes"))):
            return None, per_node
        nodes = _count(flags, "nnodes", default=1)
        return (per_node and nodes and per_node * nodes), per_node
    if kind == "deepspeed":
        if isinstance(flags.get("include"), str):
            return _included(flags["include"])
        per_node = _count(flags, "num_gpus", words=_ALL)
        remote = "hostfile" in flags and "num_nodes" not in flags
        nodes = None if remote else _count(flags, "num_nodes", default=1, words=_ALL)
        return (per_node and nodes and per_node * nodes), per_node
    return None, None


def _included(filter_text: str) -> tuple[int | None, int | None]:
    """`worker-0@worker-1:0,2`: hosts, each with its slots or with all of them."""
    slots = [host.partition(":")[2] for host in filter_text.split("@")]
    if not all(slots):
        return None, None
    sizes = [len(one.split(",")) for one in slots]
    return sum(sizes), max(sizes)


def _count(
    flags: Mapping[str, Any], name: str, *, default: int | None = None, words: Sequence[Any] = ()
) -> int | None:
    """A count that the line gives; None where it gives one of the words that stand for one."""
    return count(flags.get(name, default), name=f"--launch: --{name}", words=words)


def count(value: Any, *, name: str, words: Sequence[Any] = ()) -> int | None:
    """A number of processes or machines that somebody states.

    Args:
        value: As it stands there; None where it does not.
        name: Where it stands, for the error.
        words: What stands for a number that only the machine knows.

    Returns:
        None where the number is not known: also where the shell fills it in (`$GPUS`).

    Raises:
        JobError: It is no number above 0, and nothing that stands for one.
    """
    if type(value) is int and value > 0:
        return value
    if value is None or (isinstance(value, str) and not {"$", "`"}.isdisjoint(value)):
        return None
    if type(value) is not bool and value in words:
        return None
    allowed = ", or ".join(filter(None, (_COUNT, ", ".join(map(str, words)))))
    raise JobError(f"{name}: {value!r} is not {_COUNT}", f"write {allowed}")
