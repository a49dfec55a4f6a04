"""A user's own launch of Megatron-LM: its arguments, each with its place in the file.

It is a shell file or a line.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from autotune.base.errors import JobError, RenderError
from autotune.base.user_text import read_text
from autotune.base.yaml_file import parse_yaml
from autotune.engines.launches import slurm
from autotune.engines.launches.line import parts_of, ranks_of
from autotune.engines.launches.shell import (
    SUFFIXES,
    Command,
    ShellText,
    Word,
    cost_of_lost,
    is_shell,
    read_shell,
)
from autotune.engines.megatron.flags import (
    Flag,
    flag_of,
    flags,
    is_flag_of_any,
    newest_release,
    recorded_release,
    releases,
    similar,
)
from autotune.space.rule import UnknownFactError, Violation, listed

_SCRIPT = re.compile(r"pretrain_\w+\.py|train_\w+\.py")
_MARKS = frozenset({"--tensor-model-parallel-size", "--num-layers", "--micro-batch-size"})
"""Flags of which Megatron-LM's scripts are given at least one."""
_OTHERS = ("--deepspeed", "--deepspeed_config")
"""Flags of Megatron-DeepSpeed's, whose arguments are its own."""
_PLAIN_SCRIPT = "pretrain_gpt.py"
"""The script whose flags are all known; others may add some."""
_OVERRIDE = re.compile(r"(\+{0,2}[A-Za-z_]\w*(?:\.\w+)+)=(.*)", re.DOTALL)
_OVERRIDDEN = frozenset(
    {
        *("tensor_model_parallel_size", "pipeline_model_parallel_size", "micro_batch_size"),
        *("context_parallel_size", "expert_model_parallel_size", "global_batch_size"),
    }
)
"""Fields of which overrides of a Megatron training have at least one."""
_OF_RECIPES = {
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "num_moe_experts": "num_experts",
    "layernorm_epsilon": "norm_epsilon",
    "encoder_seq_length": "seq_length",
    "sequence_length": "seq_length",
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
}
"""Field of a recipe of NeMo or Megatron-Bridge -> the argument, where they differ."""
_HEADER = re.compile(r"^#.*\(Megatron Core (\d+\.\d+)\)", re.MULTILINE)
"""The release in the first line of an export's arguments."""
_BY_SHELL = re.compile(r"[$`]")
_SOURCES = re.compile(r"^[ \t]*(?:source|\.)[ \t]", re.MULTILINE)
_PASSED_ON = re.compile(r"\$(?:[@*]|\{[@*]\})")


@dataclass(frozen=True, kw_only=True)
class GivenArgument:
    """One argument as it was given."""

    value: Any
    """As Megatron's parser takes it; True for a flag without a value."""
    flag: str
    start: int


@dataclass(frozen=True, kw_only=True)
class MegatronLaunch:
    """One training of Megatron-LM's, as a file starts it."""

    path: Path
    text: str
    given: Mapping[str, GivenArgument]
    """Megatron's name of an argument -> how it was given."""
    problems: Sequence[Violation] = ()
    """Words that the release's parser refuses."""
    unknown: frozenset[str] = frozenset()
    """Arguments whose value only the shell knows."""
    is_partial: bool = False
    """True if the shell puts in further arguments, which the file does not tell."""
    open_words: Mapping[int, str] = field(default_factory=dict)
    """Offset -> a word for which the shell puts in such arguments."""
    unread: tuple[str, ...] = ()
    """Files that the file sources and that could not be read, in words."""
    settled: frozenset[str] = frozenset()
    """Arguments that have Megatron's default unless they are given, whatever a recipe says."""
    world: int | None = None
    per_node: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables that the file sets for the ranks."""
    script: str = ""
    """Name of the script; empty: the file does not start it."""
    is_overrides: bool = False
    """True if it overrides fields of a recipe, as NeMo and Megatron-Bridge take them."""
    start: int = 0
    sourced: tuple[Path, ...] = ()
    """Files beside it that it sources: arguments that stand there are given where it uses them."""
    is_passing_on: bool = False
    """True if all that the shell puts in are the words that the file was started with."""
    release: str
    release_because: str = ""
    """Why the file is read by that release; empty: somebody named it, or it is installed."""
    gpu: str = ""
    """The kind of GPU; empty: nobody says it."""
    gpu_precisions: frozenset[str] = frozenset()
    """Precisions in which it computes."""

    def get(self, argument: str) -> Any:
        """The value of an argument, or Megatron's default.

        Raises:
            UnknownFactError: Only the shell knows it, or nobody.
        """
        if argument in self.unknown:
            raise UnknownFactError(argument)
        if argument in self.given:
            return self.given[argument].value
        if self.is_partial and argument not in self.settled:
            raise UnknownFactError(argument)
        return defaults(self.release).get(argument)


@cache
def defaults(release: str) -> Mapping[str, Any]:
    """Defaults of a release, by argument."""
    return {flag.argument: flag.default for flag in flags(release).values()}


def may_launch(path: Path) -> bool:
    """True if the name of a file is one that a launch may have."""
    return path.suffix not in (".json", ".hjson", ".py", ".args", ".yaml", ".yml")


def launches_of(text: str, path: Path, *, release: str) -> list[MegatronLaunch]:
    """The trainings of Megatron-LM's that a file starts; empty: it starts none.

    Raises:
        JobError: A quote does not close, or a count of ranks is none.
    """
    # Most files that are checked are no launches: they are not parsed twice.
    if is_shell(text, path) and (_is_marked(text) or _SOURCES.search(text)):
        return list(_of_shell(text, path, release))
    return []


def sets_arguments(text: str, path: Path) -> bool:
    """True for a shell file that holds Megatron arguments."""
    return is_shell(text, path) and any(mark in text for mark in _MARKS)


def sources_file(path: Path, other: Path) -> bool:
    """True for a shell file that sources another one."""
    if path == other or path.suffix not in SUFFIXES or not path.is_file():
        return False
    try:
        shell = read_shell(read_text(path), path, follows=True)
    except (JobError, RenderError):
        return False
    return any(found.resolve() == other.resolve() for found in shell.sourced)


def _is_marked(text: str) -> bool:
    """True for a text that may hold Megatron arguments."""
    return any(mark in text for mark in (*_MARKS, *(f".{name}=" for name in _OVERRIDDEN)))


def read_launches(path: Path, *, release: str) -> list[MegatronLaunch]:
    """`launches_of` for a path.

    Raises:
        RenderError: It cannot be read.
        JobError: As of `launches_of`.
    """
    return launches_of(read_text(path), path, release=release)


def launches_as_written(path: Path, *, installed: str) -> list[MegatronLaunch]:
    """`launches_of` for a path, by the release that the file is written for.

    That is the one in the header of an export; else the installed one, or the newest that takes
    more of the flags.

    Raises:
        RenderError: It cannot be read.
        JobError: As of `launches_of`.
    """
    usual = recorded_release(installed) or newest_release()
    found = read_launches(path, release=usual)
    if not found:
        return []
    texts = (found[0].text, *map(read_text, found[0].sourced))
    headers = (match for text in texts if (match := _HEADER.search(text)))
    if (header := next(headers, None)) and (named := recorded_release(header[1])):
        because = "its header names it"
        return [
            replace(launch, release_because=because)
            for launch in read_launches(path, release=named)
        ]
    readings = {usual: found}
    if _n_refused(found):
        readings |= {
            release: read_launches(path, release=release)
            for release in reversed(releases())
            if release != usual
        }
    best = min(readings, key=lambda release: _n_refused(readings[release]))
    if best == usual:
        return found
    because = f"the newest that takes its flags; {usual} does not"
    return [replace(launch, release_because=because) for launch in readings[best]]


def _n_refused(launches: Iterable[MegatronLaunch]) -> int:
    """Flags and values that the release's parser refuses."""
    rules = ("flags.unknown", "flags.value")
    return sum(problem.rule in rules for launch in launches for problem in launch.problems)


def launch_of_line(line: str, *, release: str) -> MegatronLaunch:
    """The training that one command line starts.

    Raises:
        JobError: It starts none of Megatron-LM's, or its quotes do not close.
    """
    found = list(_of_shell(line, Path("the launch line"), release))
    if not found:
        raise JobError(
            "the launch line starts no training of Megatron-LM",
            "give the line with torchrun, pretrain_gpt.py and its flags",
        )
    return found[0]


def _of_shell(text: str, path: Path, release: str) -> Iterator[MegatronLaunch]:
    options = slurm.options_of(text)
    shell = read_shell(text, path, variables=slurm.variables_of(options), follows=True)
    exported = {name: word.text for name, word in shell.exported.items()}
    for command in shell.commands:
        words = [word.text for word in command.words]
        if words[:1] in (["echo"], ["printf"]):
            continue
        overrides = _overrides(command, shell, path, text, release, options)
        if overrides is not None:
            yield overrides
            continue
        script = next((at for at, word in enumerate(words) if _is_script(word)), None)
        if script is None or not _is_megatrons(words[script + 1 :]):
            continue
        world, per_node = ranks_of(words)
        if not parts_of(words).kind:
            world, per_node = slurm.tasks_of([*command.within, *words[:script]], options)
        variables = exported | {name: word.text for name, word in command.variables.items()}
        ranks = variables.get("WORLD_SIZE", "")
        if world is None and not parts_of(words).kind and ranks.isdecimal():
            world = int(ranks)  # as Megatron takes it, where no launcher sets it
        read = _Arguments(release, _NamedScript(words[script], path))
        read.take(command.words[script + 1 :])
        lost = shell.lost_below(command)
        yield MegatronLaunch(
            path=path,
            text=text,
            given=read.given,
            problems=[*read.problems, *read.unknown_flags(), *_lost(lost)],
            unknown=frozenset(read.unknown),
            is_partial=read.is_partial or read.is_passing_on,
            is_passing_on=read.is_passing_on and not read.is_partial,
            open_words=read.open_words,
            unread=shell.unread,
            sourced=shell.sourced,
            world=world,
            per_node=per_node,
            variables=variables,
            script=PurePath(words[script]).name,
            start=command.words[script].start,
            release=release,
            **_gpu_of(options),
        )


def _overrides(
    command: Command,
    shell: ShellText,
    path: Path,
    text: str,
    release: str,
    options: Mapping[str, str],
) -> MegatronLaunch | None:
    """The training of a recipe whose fields a command overrides: `model.NAME=VALUE`."""
    words = [word.text for word in command.words]
    script = next((at for at, word in enumerate(words) if word.endswith(".py")), None)
    found = [
        (word, match)
        for word in command.words
        if (match := _OVERRIDE.fullmatch(word.text)) is not None
    ]
    names = {match[1].rpartition(".")[2] for _, match in found}
    if script is None or _OVERRIDDEN.isdisjoint(names):
        return None
    given: dict[str, GivenArgument] = {}
    unknown: set[str] = set()
    trainer: dict[str, Any] = {}
    for word, match in found:
        key = match[1].lstrip("+")
        section, _, name = key.rpartition(".")
        argument = _OF_RECIPES.get(name, name)
        if _BY_SHELL.search(match[2]):
            unknown.add(argument)
            continue
        value = _yaml_value(match[2], path)
        if section == "trainer":
            trainer[name] = value
        if not _is_of_kind(value, argument, release):
            unknown.add(argument)
            continue
        if value is not None and argument not in unknown:
            given[argument] = GivenArgument(value=value, flag=key, start=word.start)
    world, per_node = ranks_of(words)
    if not parts_of(words).kind:
        world, per_node = slurm.tasks_of([*command.within, *words[:script]], options)
    if world is None and all(type(trainer.get(n)) is int for n in ("devices", "num_nodes")):
        per_node = trainer["devices"]
        world = per_node * trainer["num_nodes"]
    return MegatronLaunch(
        path=path,
        text=text,
        given=given,
        unknown=frozenset(unknown),
        is_partial=True,  # the recipe has the rest
        settled=_settled(given, words),
        unread=shell.unread,
        sourced=shell.sourced,
        is_overrides=True,
        world=world,
        per_node=per_node,
        variables={name: word.text for name, word in shell.exported.items()}
        | {name: word.text for name, word in command.variables.items()},
        start=command.words[script].start,
        release=release,
        **_gpu_of(options),
    )


def _lost(command: Command | None) -> Iterator[Violation]:
    """Violations of flags on a line of their own, which a lost backslash has cut off."""
    if command is not None:
        yield Violation(
            rule="flags.lost_line",
            message=cost_of_lost(command),
            fix="end the line above with a backslash",
            at=(f"@{command.start}",),
            consequence="ignored",
        )


_OF_FLAGS_ALONE = frozenset(
    {
        *("num_layers_per_virtual_pipeline_stage", "decrease_batch_size_if_needed"),
        *("use_tp_pp_dp_mapping", "rampup_batch_size", "microbatch_group_size_per_vp_stage"),
    }
)
"""Arguments that recipes have no field for, or leave at their default."""
_OF_STAGES = frozenset(
    {
        *("pipeline_model_parallel_layout", "decoder_first_pipeline_num_layers"),
        *("decoder_last_pipeline_num_layers", "num_virtual_stages_per_pipeline_rank"),
    }
)
"""Arguments that a recipe gives for a pipeline of its own degree."""
_OF_NEMO = frozenset(
    {
        *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
        *("expert_model_parallel_size", "account_for_embedding_in_pipeline_split"),
        *("account_for_loss_in_pipeline_split", *_OF_STAGES),
    }
)
"""Arguments that NeMo's own configuration has at Megatron's default
(examples/nlp/language_modeling/conf/megatron_gpt_config.yaml)."""
_OTHER_CONFIGURATION = ("--config-name", "--config-path", "--config-dir", "-cn", "-cp", "-cd")
"""Hydra's flags for another one."""


def _settled(given: Mapping[str, GivenArgument], words: Sequence[str]) -> frozenset[str]:
    """Arguments of a recipe that are at their default unless the line overrides them."""
    is_nemos = any(argument.flag.startswith("trainer.") for argument in given.values())
    has_other = any(word.partition("=")[0] in _OTHER_CONFIGURATION for word in words)
    if is_nemos and not has_other:
        return _OF_FLAGS_ALONE | _OF_NEMO
    return _OF_FLAGS_ALONE | (_OF_STAGES if "pipeline_model_parallel_size" in given else set())


def _yaml_value(text: str, path: Path) -> Any:
    """A value as YAML has it; what YAML cannot read stays a text."""
    try:
        return parse_yaml(f"value: {text}", path)["value"]
    except (JobError, RenderError):
        return text


def on_gpu(name: str, *, where: str) -> dict[str, Any]:
    """The fields of a launch on GPUs of that kind.

    Raises:
        JobError: That kind is not known; `where` is what named it.
    """
    from autotune.devices.accelerators import named_accelerator  # its table needs pydantic

    device = named_accelerator(name, where=where)
    return {"gpu": device.name, "gpu_precisions": frozenset(device.peak_flops)}


def _gpu_of(options: Mapping[str, str]) -> dict[str, Any]:
    name = slurm.gpu_of(options)
    try:
        return on_gpu(name, where="Slurm") if name else {}
    except JobError:  # a site's own name of it
        return {}


def _is_script(word: str) -> bool:
    return _SCRIPT.fullmatch(PurePath(word).name) is not None


def _is_megatrons(words: Sequence[str]) -> bool:
    named = {word.partition("=")[0] for word in words}
    return not _MARKS.isdisjoint(named) and named.isdisjoint(_OTHERS)


@dataclass(frozen=True)
class _NamedScript:
    """The script that a launch names, as it is written there."""

    name: str
    base: Path

    @property
    def may_have_flags(self) -> bool:
        """True if the script may add flags to Megatron's."""
        return PurePath(self.name).name != _PLAIN_SCRIPT

    def has_flag(self, flag: str) -> bool:
        """True if the script is there and adds the flag."""
        for path in (Path(self.name), self.base.parent / self.name):
            try:
                return path.is_file() and flag in read_text(path)
            except RenderError:
                continue
        return False


class _Arguments:
    """Reads words as a release's parser does."""

    def __init__(self, release: str, script: _NamedScript) -> None:
        self._release, self._script = release, script
        self._script_flags: list[tuple[str, Word]] = []
        """Flags of no release, which the script may add."""
        self.open_words: dict[int, str] = {}
        self.given: dict[str, GivenArgument] = {}
        self.problems: list[Violation] = []
        self.unknown: set[str] = set()
        self.is_partial = False
        self.is_passing_on = False

    def take(self, words: Sequence[Word]) -> None:
        """Read the words behind the script."""
        at = 0
        while at < len(words):
            end = at + 1
            while end < len(words) and not words[end].text.startswith("--"):
                end += 1
            self._take(words[at], words[at + 1 : end])
            at = end

    def _take(self, word: Word, following: Sequence[Word]) -> None:
        """Read a flag with the words up to the next one."""
        if not word.text.startswith("--"):
            self._stray([word, *following])
            return
        name, equals, attached = word.text.partition("=")
        flag = self._flag(name, word)
        if flag is None:
            return
        taken = [replace(word, text=attached)] if equals else []
        n_more = _most_values(flag) - len(taken)
        taken += following[: max(0, n_more)]
        self._stray(following[max(0, n_more) :])
        texts = [text.text for text in taken]
        if any(_BY_SHELL.search(text) for text in texts):
            self.unknown.add(flag.argument)
            self.given.pop(flag.argument, None)
            return
        try:
            value = _value(flag, texts)
        except ValueError as error:
            message = f"{flag.name} {' '.join(texts)}: it {error}"
            self._refuse("flags.value", message, word, "give it such a value")
            return
        self.unknown.discard(flag.argument)
        self.given[flag.argument] = GivenArgument(value=value, flag=flag.name, start=word.start)

    def _flag(self, name: str, word: Word) -> Flag | None:
        try:
            return flag_of(name, self._release)
        except JobError as error:
            if self._script.may_have_flags and not is_flag_of_any(name):
                self._script_flags.append((name, word))
            else:
                self._refuse("flags.unknown", error.message, word, error.hint)
            return None

    def _stray(self, words: Sequence[Word]) -> None:
        for word in words:
            if _PASSED_ON.fullmatch(word.text):
                self.is_passing_on = True
                self.open_words[word.start] = word.text
            elif _BY_SHELL.search(word.text):
                self.is_partial = True
                self.open_words[word.start] = word.text
            else:
                self._refuse("flags.stray_word", f"{word.text}: is no flag", word, "remove it")

    def unknown_flags(self) -> Iterator[Violation]:
        """Violations of flags that are no Megatron's, and that the script is not seen to add."""
        found = [flag for flag in self._script_flags if not self._script.has_flag(flag[0])]
        if not found:
            return
        near_flags = []
        for name, _ in found:
            near = similar(name, self._release)
            near_flags.append(f"{name} (did you mean {near}?)" if near else name)
        yield Violation(
            rule="flags.own",
            message=f"{listed(near_flags, ', ')}: no release of Megatron Core from "
            f"{releases()[0]} on has such a flag, and its parser refuses it unless "
            f"{self._script.name} adds it",
            fix="leave it out, unless the script adds it",
            at=(f"@{found[0][1].start}",),
            consequence="may_raise",
        )

    def _refuse(self, rule: str, message: str, word: Word, fix: str) -> None:
        at = (f"@{word.start}",)
        self.problems.append(Violation(rule=rule, message=message, fix=fix, at=at))


def _most_values(flag: Flag) -> int:
    if flag.is_switch:
        return 0
    if flag.count is None or flag.count == "?":
        return 1
    return flag.count if isinstance(flag.count, int) else sys.maxsize


def _value(flag: Flag, texts: Sequence[str]) -> Any:
    """The value of a flag.

    Raises:
        ValueError: It takes none such; the message says what it takes.
    """
    if flag.is_switch:
        return flag.sets
    values = [flag.parsed(text) for text in texts]
    if flag.count is None:
        if not values:
            raise ValueError("takes a value")
        return values[0]
    if isinstance(flag.count, int) and len(values) != flag.count:
        raise ValueError(f"takes {flag.count} values")
    if flag.count == "+" and not values:
        raise ValueError("takes at least one value")
    return values


def _is_of_kind(value: Any, argument: str, release: str) -> bool:
    """True for a value of a recipe that the parser would give for an argument, or None."""
    flag = _flags_with_value(release).get(argument)
    if value is None:
        return True
    if flag is None:
        return True
    takes_several = flag.count not in (None, "?")
    if takes_several and flag.kind == "int" and not isinstance(value, list):
        return False
    values = value if takes_several and isinstance(value, list) else [value]
    kinds: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,)}
    allowed = kinds.get(flag.kind, (int, float, str))
    return all(isinstance(one, allowed) and not isinstance(one, bool) for one in values)


@cache
def _flags_with_value(release: str) -> Mapping[str, Flag]:
    """Argument -> its flag, for those that no switch sets."""
    every = flags(release).values()
    switched = {flag.argument for flag in every if flag.is_switch}
    return {flag.argument: flag for flag in every if flag.argument not in switched}
