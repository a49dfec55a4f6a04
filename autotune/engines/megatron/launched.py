"""A user's own launch of Megatron-LM: its arguments, each with its place in the file.

It is a shell file or a line.
"""

import ast
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import pairwise, starmap
from pathlib import Path, PurePath
from typing import Any

import yaml

from autotune.base.data import table_beside
from autotune.base.errors import JobError, RenderError
from autotune.base.names import misspelt
from autotune.base.nested import leaves
from autotune.base.text import named
from autotune.base.user_text import read_text
from autotune.base.yaml_file import parse_yaml
from autotune.engines.deepspeed.ds_config_text import parse_config
from autotune.engines.deepspeed.sources.layout import world_beside
from autotune.engines.deepspeed.sources.programs import PROGRAMS as OF_DEEPSPEED
from autotune.engines.launches.files import DATA_SUFFIXES, LINE, file_near, is_shell, text_near
from autotune.engines.launches.jobs import commands_of_job
from autotune.engines.launches.line import (
    NO_RANKS,
    Ranks,
    flags_of,
    parts_of,
    product,
    ranks_in,
    ranks_of,
    typed,
)
from autotune.engines.launches.shell import Command, ShellText, read_shell
from autotune.engines.launches.shell_words import PASSED_ON, UNKNOWN, Word
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
from autotune.engines.megatron.model_arguments import model_arguments
from autotune.job.model import load_model
from autotune.job.published import preset_of_repository
from autotune.space.rule import UnknownFactError, Violation
from autotune.trial.engines.megatron import ARGUMENTS_FILE

_SCRIPT = re.compile(r"pretrain_\w+\.py|train_\w+\.py")
_GPT = re.compile(r"pretrain_(?:gpt|mamba|t5|bert|vlm)\.py")
"""Scripts that are Megatron-LM's whatever only the shell knows of their arguments."""
_MARKS = frozenset({"--tensor-model-parallel-size", "--num-layers", "--micro-batch-size"})
"""Flags of which Megatron-LM's scripts are given at least one."""
_OTHERS = frozenset(
    f"--{name.replace('_', '-')}"
    for name in (
        "deepspeed",
        "deepspeed_config",
        *OF_DEEPSPEED["megatron_deepspeed"]["flags_of_no_other"],
    )
)
"""Flags of Megatron-DeepSpeed's, whose arguments are its own."""
_PLAIN_SCRIPT = "pretrain_gpt.py"
"""The script whose flags are all known, but for a fork's; others may add some."""
_OF_CHECKOUTS = ("megatron/training/arguments.py", "megatron/arguments.py")
"""Files of a checkout that hold the flags of its parser."""
_IMPORTED = re.compile(r"^[ \t]*(?:from|import)[ \t]+(\w+)", re.MULTILINE)
_PUTS_DASHES = re.compile(r"""f["']--\{|["']--["'] *\+""")
"""In a parser: flags are made of names without their dashes."""
_TRAINS = re.compile(r"train|tune|sft|rlhf|distill")
"""In the name of a script that trains; others convert, generate or evaluate."""
_PROGRAMS = table_beside(__file__, "programs.json")
"""What is recorded of the programs that hand arguments to Megatron: names, and defaults.

Sources: swift/megatron/arguments/megatron_args.py; NeMo, examples/nlp/language_modeling/conf/
megatron_gpt_config.yaml; the fields of recipes of NeMo and Megatron-Bridge."""
GONE: Mapping[str, str] = _PROGRAMS["gone"]
"""Arguments that Megatron's parser takes to refuse them -> the flag in their place."""
_RANKS_OF_SLIME = ("--actor-num-nodes", "--actor-num-gpus-per-node")
"""Flags of slime's scripts that say how many ranks train (slime/utils/arguments.py)."""
_RANKS_OF_FILES = (("num_nodes", "nnodes"), ("devices", "n_gpus_per_node", "gpus_per_node"))
"""Fields of NeMo's, verl's and NeMo RL's files: nodes, and ranks of each."""
_SWIFT = "megatron"
"""The command of ms-swift that trains with Megatron (swift/cli/_megatron/main.py)."""
_TRAINS_OF = {_SWIFT: ("pt", "sft", "rlhf"), "nemo": ("llm",)}
"""Commands that train -> the words behind them; NeMo 2's takes overrides of a recipe."""
_OF_SWIFT: Mapping[str, Any] = _PROGRAMS["swift"]
"""Its defaults other than Megatron-LM's, what it has at these, and variables that it sets."""
_DEGREES = frozenset(_PROGRAMS["degrees"])
"""Arguments that a script of another name has at Megatron-LM's default, too: its parser's, which
is a number, comes before what a script would set."""
_OVERRIDE = re.compile(r"(\+{0,2}(?:[A-Za-z_]\w*)?(?:\.\w+)+)=(.*)", re.DOTALL)
_RECIPES: Mapping[str, Any] = _PROGRAMS["recipes"]
"""Fields of recipes of NeMo and Megatron-Bridge: those that tell of such a training, and their
arguments where these have other names."""
_OF_FLAGS_ALONE: Sequence[str] = _RECIPES["without_field"]
"""Arguments that recipes have no field for, or leave at their default."""
_OF_STAGES: Sequence[str] = _RECIPES["of_stages"]
"""Arguments that a recipe gives for a pipeline of its own degree."""
PROGRAMS_OF_FIELDS: Mapping[str, Mapping[str, Any]] = _PROGRAMS["of_fields"]
"""Programs whose own settings rules ask for: how each is known, and what it has where nobody says
(verl and EasyR1: verl/trainer/config; slime: utils/arguments.py)."""
_ENGINES = {f"model_engine={name}" for name in ("dp", "megatron", "torchtitan", "veomni")}
"""Words that choose the sections which are recorded."""
_FIELD = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")
_KEYS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "verl": table_beside(__file__, "verl_keys.json")
}
"""Program whose Hydra refuses other keys -> section -> its keys, in all releases from 0.2 on."""
_HEADER = re.compile(r"^#.*\(Megatron Core (\d+\.\d+)\)", re.MULTILINE)
"""The release in the first line of an export's arguments."""
_FILE_NAMED = re.compile(r"[\"']([\w./-]+\.(?:json|ya?ml))[\"']")
_PROGRAM = "PROGRAM"
"""The variable of an export's arguments: the script and all that it is given."""
_FOLDERS = re.compile(r"(?:[./~$].*|[^/]+/.+)/")
"""What stands before the last folder of a path; a repository has one owner."""
_OF_OTHERS = frozenset({"rollout", "generation", "ref", "critic", "reward_model"})
"""Sections of a file that say how another model than the trained one is split."""
_SPLITS = ("tensor_model_parallel_size", "pipeline_model_parallel_size")
"""Fields of which settings of Megatron's have one; axolotl, too, has context_parallel_size."""
_KEY = re.compile(r"""^[ \t]*["']?([A-Za-z_]\w*)["']?[ \t]*:""", re.MULTILINE)
_LONGEST_COMPOSED = 2**16
"""Characters up to which PyYAML tells the places of keys."""


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
    words: Sequence[str] = ()
    """All words behind the script; empty: the launch overrides fields of a recipe."""
    problems: Sequence[Violation] = ()
    """Words that the release's parser refuses."""
    unknown: frozenset[str] = frozenset()
    """Arguments whose value only the shell knows."""
    is_partial: bool = False
    """True if the shell puts in further arguments, which the file does not tell."""
    open_words: Mapping[int, str] = field(default_factory=dict)
    """Offset -> a word for which the shell puts in such arguments."""
    unread: str = ""
    """Why words of it are not known, and the way out; empty: the file does not tell."""
    assumed: tuple[str, ...] = ()
    """Defaults of words that the file is started with, in words."""
    settled: frozenset[str] = frozenset()
    """Arguments that have Megatron's default unless they are given, whatever a recipe says."""
    ranks: Ranks = NO_RANKS
    """Those of the line, or as --world or the export's settings say."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables that the file sets for the ranks."""
    is_overrides: bool = False
    """True if it overrides fields of a recipe, as NeMo and Megatron-Bridge take them."""
    rest: tuple[str, str] | None = None
    """What says the arguments that the line does not give, and why that is not known; None: they
    are at Megatron's defaults."""
    program: str = ""
    """The one of `PROGRAMS_OF_FIELDS` that is started; empty: another."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Settings of that program, by their whole names; empty: they are not known."""
    model: str = ""
    """The preset that has the sizes of the model it names; empty: it names none that is known."""
    asked: int | None = None
    """Ranks that Lightning is asked for, where tasks of `srun` are its ranks."""
    prefix: str = ""
    """What stands before an argument's name where it is no flag of Megatron-LM's parser: nothing
    before a recipe's field."""
    start: int = 0
    sourced: tuple[Path, ...] = ()
    """Files beside it that it sources: arguments that stand there are given where it uses them."""
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
        if self.model and argument in (sizes := _sizes_of(self.model)):
            return sizes[argument]
        if self.is_partial and argument not in self.settled:
            raise UnknownFactError(argument)
        return defaults(self.release).get(argument)

    def of_program(self, name: str) -> Any:
        """A setting of the program, or what its own configuration holds.

        Raises:
            UnknownFactError: Only the shell knows it.
        """
        text = self.fields.get(name)
        if UNKNOWN.search(text or ""):
            raise UnknownFactError(name)
        if text is None:
            return PROGRAMS_OF_FIELDS[self.program]["defaults"].get(name)
        return None if text == "null" else typed(text)

    @property
    def trains_without(self) -> str:
        """The program that trains without Megatron Core; empty: Megatron Core trains."""
        program = PROGRAMS_OF_FIELDS.get(self.program, {})
        engine = self.fields.get("model_engine", program.get("engine", "megatron"))
        return "" if engine == "megatron" else str(program["label"])

    @property
    def world(self) -> int | None:
        """All ranks; None: nothing says how many."""
        return self.ranks.world

    @property
    def is_megatrons(self) -> bool:
        """True for a training that Megatron-LM's own script or a recipe starts."""
        return self.rest is None or (self.is_overrides and not self.prefix)

    @property
    def is_passing_on(self) -> bool:
        """True if all that the shell puts in are the words that the file was started with."""
        return bool(self.open_words) and all(map(PASSED_ON.fullmatch, self.open_words.values()))


@cache
def defaults(release: str) -> Mapping[str, Any]:
    """Defaults of a release, by argument."""
    return {flag.argument: flag.default for flag in flags(release).values()}


def sets_arguments(text: str, path: Path) -> bool:
    """True for a shell file that holds Megatron arguments."""
    return is_shell(text, path) and any(mark in text for mark in _MARKS)


def read_launches(path: Path, *, release: str) -> list[MegatronLaunch]:
    """The trainings of Megatron-LM's that a file starts, or whose settings it holds; may be none.

    Raises:
        RenderError: It cannot be read.
        JobError: A quote does not close, or a count of ranks is none.
    """
    return _opened(read_text(path), path)(release)


def _opened(text: str, path: Path) -> Callable[[str], list[MegatronLaunch]]:
    """Reads a text as of `read_launches` by one release and another."""
    if path.suffix in DATA_SUFFIXES:
        if commands := commands_of_job(text, path):
            return partial(_of_shell, read_shell(commands, path, follows=True), path)
        return lambda release: [*filter(None, [settings_in(text, path, release=release)])]
    if not is_shell(text, path):
        return lambda _: []
    shell = read_shell(text, path, follows=True)
    if f"{_PROGRAM}=(" in text and not _of_shell(shell, path, newest_release()):
        # what another file sources
        program = f'{text}\npython "${{{_PROGRAM}[@]}}"\n'
        shell = read_shell(program, path, follows=True)
    return partial(_of_shell, shell, path)


def settings_in(text: str, path: Path, *, release: str) -> MegatronLaunch | None:
    """The training whose settings stand in a file of YAML or JSON; None: it holds none.

    All arguments of Megatron-LM by their names, as exports have them, or the fields of another
    program: Megatron-Bridge, NeMo RL, ms-swift, verl.
    """
    if not any(name in text for name in _SPLITS):
        return None
    is_json = path.suffix in (".json", ".hjson")
    data, is_hjson = parse_config(text, path) if is_json else (parse_yaml(text, path), False)
    every = {at: value for at, value in leaves(data) if not isinstance(value, Mapping)}
    off = [at[:-1] for at, value in every.items() if at[-1:] == ("enabled",) and value is False]
    fields = {
        at: value
        for at, value in every.items()
        if _OF_OTHERS.isdisjoint(at[:-1]) and not any(one and at[: len(one)] == one for one in off)
    }
    if not any(at[-1] in _SPLITS for at in fields):
        return None
    # Degrees alone may be a remark beside a checkpoint, or be completed by who reads them.
    is_training = path.name == ARGUMENTS_FILE or ("num_layers",) in fields
    is_whole = is_training and all(is_flag_of_any(_as_flag(".".join(at))) for at in fields)
    starts = _key_starts(text, is_hjson=is_hjson)
    start = next(starts.get(at, starts.get(at[-1:], 0)) for at in fields if at[-1] in _SPLITS)
    script = _PLAIN_SCRIPT if is_whole else path.with_suffix(".py").name
    words = [Word(text="python", start=start), Word(text=script, start=start)]
    for at, value in fields.items():
        if value in (None, "none") or (is_whole and value is False):
            continue  # "none" is ms-swift's word for Megatron's own default
        key = ".".join(at)
        texts = [f"{key if '.' in key else f'.{key}'}={json.dumps(value, default=str)}"]
        if is_whole:
            values = [] if value is True else value if isinstance(value, list) else [value]
            texts = [_as_flag(key), *map(str, values)]
        place = starts.get(at, starts.get(at[-1:], 0))
        words += [Word(text=one, start=place) for one in texts]
    found = _of_command(Command(words=tuple(words), start=start, text=text), path, release)
    if found is None or is_whole:
        return found
    counts = _counts_in({at[-1]: value for at, value in fields.items()})
    world = None if any(starmap(_is_apart, every.items())) else product(*counts)
    return replace(
        found,
        rest=("what the file does not say", "the program that reads it may set it"),
        settled=frozenset(_OF_FLAGS_ALONE),
        unknown=found.unknown & defaults(release).keys(),
        ranks=found.ranks.of(world, counts[1] if world else None),
    )


def _counts_in(fields: Mapping[str, Any]) -> list[Any]:
    """Nodes, and ranks of each, by fields of NeMo, verl or NeMo RL; None: they do not say."""
    return [next((fields[one] for one in ones if one in fields), None) for ones in _RANKS_OF_FILES]


def _as_flag(argument: str) -> str:
    return f"--{argument.replace('_', '-')}"


def _is_apart(at: Sequence[str], value: Any) -> bool:
    """True for a field by which some of the ranks generate, and do not train: NeMo RL's."""
    is_count = at[-2:-1] == ("resources",) and type(value) is int
    return "generation" in at and (
        is_count or (at[-2:] == ("colocated", "enabled") and value is False)
    )


def _key_starts(text: str, *, is_hjson: bool) -> Mapping[tuple[str, ...], int]:
    """Path of a key -> where it stands; of Hjson and of a long text, its last name alone."""
    if not is_hjson and len(text) <= _LONGEST_COMPOSED:
        with suppress(yaml.YAMLError):  # JSON is YAML but for its tabs
            return dict(_starts_below(yaml.compose(text.replace("\t", " "), yaml.SafeLoader)))
    return {(one[1],): one.start(1) for one in reversed([*_KEY.finditer(text)])}


def _starts_below(node: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        yield (here := (*at, str(key.value))), key.start_mark.index
        yield from _starts_below(value, here)


def launches_as_written(
    path: Path, *, installed: str, named: str | None = None, line: str = ""
) -> list[MegatronLaunch]:
    """`read_launches`, or for a line in its place, by the release it is written for.

    That is the one that is `named`, or in the header of an export; else the installed one, or the
    newest that takes more of the flags.

    Raises:
        RenderError: It cannot be read.
        JobError: As of `read_launches`.
    """
    best = usual = named or recorded_release(installed) or newest_release()
    read = _of_line(line, path.parent) if line else _opened(read_text(path), path)
    found = read(usual)
    if not found or named:
        return found
    of_export = path.with_name(ARGUMENTS_FILE).with_suffix(".sh")
    beside = [of_export] if path.name == ARGUMENTS_FILE and of_export.is_file() else []
    texts = (found[0].text, *map(read_text, (*found[0].sourced, *beside)))
    header = next((match for text in texts if (match := _HEADER.search(text))), None)
    if header and (named := recorded_release(header[1])):
        best, because = named, "its header names it"
        found = read(best)
    elif n_refused := _n_refused(found):
        for release in reversed(releases()):
            reading = read(release)
            if _n_refused(reading) < n_refused:
                best, found, n_refused = release, reading, _n_refused(reading)
        because = f"the newest that takes its flags; {usual} does not"
    if path.stem == of_export.stem and (world := world_beside(path)) is not None:
        found = [replace(one, ranks=replace(one.ranks, world=one.world or world)) for one in found]
    if best == usual and not header:
        return found
    return [replace(launch, release_because=because) for launch in found]


def _n_refused(launches: Iterable[MegatronLaunch]) -> int:
    """Flags and values that the release's parser refuses."""
    rules = ("flags.unknown", "flags.value")
    return sum(problem.rule in rules for launch in launches for problem in launch.problems)


def _of_line(line: str, folder: Path) -> Callable[[str], list[MegatronLaunch]]:
    """`_opened` for a command line that is started in a folder."""
    return partial(_of_shell, read_shell(line, folder / LINE, follows=True), folder / LINE)


def launch_of_line(line: str, *, release: str) -> MegatronLaunch:
    """The training that one command line starts.

    Raises:
        JobError: It starts none of Megatron-LM's, or its quotes do not close.
    """
    found = _of_line(line, Path())(release)
    if not found:
        raise JobError.of("engines.megatron.starts_no_training", line=LINE)
    return found[0]


def on_gpu(name: str, *, where: str) -> dict[str, Any]:
    """The fields of a launch on GPUs of that kind.

    Raises:
        JobError: That kind is not known; `where` is what named it.
    """
    from autotune.devices.accelerators import named_accelerator  # its table needs pydantic

    device = named_accelerator(name, where=where)
    return {"gpu": device.name, "gpu_precisions": frozenset(device.peak_flops)}


def _of_shell(shell: ShellText, path: Path, release: str) -> list[MegatronLaunch]:
    launches = []
    for command in shell.commands:
        if (found := _of_command(command, path, release)) is not None:
            problems = [*found.problems, *_lost(shell, command, found)]
            launches.append(replace(found, problems=problems, sourced=shell.sourced))
    return launches


def _of_command(command: Command, path: Path, release: str) -> MegatronLaunch | None:
    """The training that a command starts; None: it starts none."""
    words = [word.text for word in command.words]
    if words[0] in ("echo", "printf"):
        return None
    overrides = [
        (word, match)
        for word in command.words
        if (match := _OVERRIDE.fullmatch(word.text)) and _OF_OTHERS.isdisjoint(match[1].split("."))
    ]
    swift, command_at = _command_at(words, _SWIFT), _command_at(words, *_TRAINS_OF)
    at = parts_of(words).script_at if command_at is None else command_at
    program, fields = _settings_of_program(words[at:], path)
    problems, meant = _unknown_keys(program, command.words[at:]) if fields else ([], {})
    fields = {meant.get(name, name): value for name, value in fields.items()}
    is_other = "engine" in (asked_of := PROGRAMS_OF_FIELDS.get(program, {}))
    overrides = [] if is_other else overrides
    is_overrides = at < len(words) and any(
        one[1].endswith(tuple(_RECIPES["telling_fields"])) for _, one in overrides
    )
    is_overrides |= "script" in asked_of
    script = at if is_overrides else _script_at(words)
    variables, around = command.variables, command.around
    if script is None:
        if (launch := _settings_of_script(words, path, release)) is None:
            return None
        ranks = ranks_of(words, **around)
        ranks = ranks if ranks.world else launch.ranks
        return replace(launch, variables=variables, ranks=ranks)
    is_swift = swift is not None
    names_model = is_overrides or is_swift  # Megatron's own script is given the sizes
    is_megatrons = not is_overrides and _is_megatrons(words, script)
    variables = {**(_OF_SWIFT["variables"] if is_swift else {}), **variables}
    arguments = _Arguments(release, words[script], path, is_megatrons=is_megatrons)
    if is_overrides:
        for word, match in overrides:
            arguments.take_override(match[1].lstrip("+."), match[2], word.start)
        counts = asked_of.get("counts", {}) if fields else {}
        for name in counts.keys() - arguments.unknown - arguments.counts.keys():
            field, default = counts[name]
            arguments.counts[name] = typed(fields.get(field, str(default)))
    elif is_swift:
        arguments.take_swift(command.words[script + 1 :], command.words[script].start)
    else:
        arguments.take(command.words[script + 1 :])
    # Megatron takes WORLD_SIZE where no launcher sets it; elsewhere it may be a number of nodes.
    ranks = ranks_of(words, **{**around, "variables": variables if is_megatrons else {}})
    counted = ranks_in(variables) if is_swift else arguments.ranks()
    asked = counted[0] if "devices" in arguments.counts and ranks.starter == "srun" else None
    if is_overrides:  # such programs read Slurm's variables
        ranks = replace(ranks, lacks_ranks=False)
    if counted[0] and (is_swift or ranks.world is None):
        ranks = replace(ranks, launcher=_SWIFT if is_swift else "").of(*counted)
    open_texts = arguments.open_words.values()
    given = [one for one in words[script + 1 :] if not PASSED_ON.fullmatch(one)]
    rest = {}
    if not is_megatrons:
        rest = _rest(arguments, words, is_overrides=is_overrides, is_swift=is_swift)
    if is_other and fields:
        rest["rest"] = tuple(asked_of["rest"])
    return MegatronLaunch(
        path=path,
        text=command.text,
        given=arguments.given,
        words=given if is_megatrons else (),
        problems=[*arguments.problems, *problems],
        unknown=frozenset(arguments.unknown),
        # What it hands on from its own start is nothing where nobody gives it words.
        is_partial=not is_megatrons or not all(map(PASSED_ON.fullmatch, open_texts)),
        open_words=arguments.open_words,
        is_overrides=is_overrides or is_swift,
        unread=command.unread_because,
        assumed=command.assumed,
        ranks=ranks,
        variables=variables,
        program=program,
        fields=fields,
        model=_model_named({**dict(flags_of(words)), **fields}) if names_model else "",
        asked=asked,
        start=command.words[script].start,
        release=release,
        **rest,
    )


def _model_named(given: Mapping[str, Any]) -> str:
    """The preset with the sizes of the model that settings or flags name; empty: none is known."""
    texts = (str(given.get(name, "")).rstrip("/") for name in _PROGRAMS["names_of_models"])
    names = (_FOLDERS.sub("", text) for text in texts)
    found = (preset_of_repository(name) for name in names if not UNKNOWN.search(name))
    return next(filter(None, found), "")


@cache
def _sizes_of(model: str) -> Mapping[str, Any]:
    """Arguments that are sizes of a preset; of one that Megatron's GPT model is not, the heads."""
    found = load_model(model)
    try:
        arguments = model_arguments(found, seq_len=1)
    except JobError:
        return {"num_attention_heads": found.shape.n_heads}
    usual = defaults(newest_release())
    return {name: arguments.get(name, usual.get(name)) for name in _PROGRAMS["sizes"]}


def _settings_of_program(words: Sequence[str], path: Path) -> tuple[str, Mapping[str, str]]:
    """The `program` of a launch, and its `fields`, by the words from the script on."""
    is_open = any(UNKNOWN.match(one) and not PASSED_ON.fullmatch(one) for one in words)
    given = dict(one.lstrip("+").split("=", 1) for one in words[1:] if "=" in one)
    module = words[0].removesuffix(".py").replace("/", ".") if words else ""
    for name, program in PROGRAMS_OF_FIELDS.items():
        if program.get("flag") in {word.partition("=")[0] for word in words}:
            flags = flags_of(words[1:])
            return name, {} if is_open else {f"{name}.{one}": str(value) for one, value in flags}
        if "section" in program and any(one.startswith(program["section"]) for one in given):
            return name, given
        if f".{module}".endswith(f".{program.get('script', ' ')}"):
            fields = {} if is_open else _configured(program, words, given, path)
            if program.get("tells", "") in ("", *fields):  # the script's name is anybody's
                return name, fields
    return "", {}


def _unknown_keys(
    program: str, words: Sequence[Word]
) -> tuple[list[Violation], Mapping[str, str]]:
    """Keys that a program does not have and that no `+` adds, and those that were meant."""
    known, found, meant = _KEYS.get(program, {}), list[Violation](), dict[str, str]()
    engines = {word.text for word in words if word.text.startswith("model_engine=")}
    for word in words if known and engines <= _ENGINES else ():
        key, equals, _ = word.text.partition("=")
        parts = key.split(".") if equals and _FIELD.fullmatch(key) else []
        sections = {".".join(parts[:depth]): depth for depth in range(len(parts))}
        # Below a value or a list anything may stand.
        lacks = (one for one, at in sections.items() if parts[at] not in known.get(one, parts))
        if (section := next(lacks, None)) is None:
            continue
        at = sections[section]
        near = misspelt(parts[at], known[section])
        if near:
            meant[key] = ".".join((*parts[:at], near, *parts[at + 1 :]))
        problem = Violation(
            rule="fields.unknown",
            message=f"{key}: {section or 'its configuration'} of {program} has no {parts[at]}"
            + (f": did you mean {near}?" if near else " in any release that is known"),
            fix=f"write {meant[key]}" if near else f"write +{key}, if code reads it",
            at=(f"@{word.start}",),
            consequence="raised" if near else "may_raise",
        )
        found.append(problem)
    return found, meant


def _configured(
    program: Mapping[str, Any], words: Sequence[str], given: Mapping[str, str], path: Path
) -> Mapping[str, str]:
    """Settings of a program's own configuration and of its file; empty: they are not known."""
    of_words = {**dict(pairwise(words)), **given}
    if "file" in program:
        text = text_near(file := of_words.get(program["file"], ""), path.parent)
        every = leaves(_settings_of_file(text, Path(file))) if text else ()
        of_file = {".".join(at): str(value) for at, value in every}
        of_flags = {name: str(value) for name, value in flags_of(words[1:])}
        return {} if file and not text else {**of_file, **of_flags, **given}
    known = program["configurations"]
    name = of_words.get("--config-name", known[0]).removesuffix(".yaml")
    if of_words.get("--config-path", "config") != "config" or name not in known:
        return {}
    engine = {"model_engine": "megatron" if "megatron" in name else "dp", **given}["model_engine"]
    return {**given, "model_engine": given.get(program["strategy"], engine)}


def _settings_of_file(text: str, path: Path) -> Mapping[str, Any]:
    if path.suffix != ".toml":
        return parse_yaml(text, path)
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise JobError(f"{path}: {error}", "write it as TOML") from error


def _settings_of_script(words: Sequence[str], path: Path, release: str) -> MegatronLaunch | None:
    """The training whose settings a script names by a literal, in a file beside it.

    A script with words of its own may be given another file.
    """
    script, *given = words[parts_of(words).script_at :] or [""]
    found = file_near(script, path.parent) if script.endswith(".py") else None
    if found is None or not all(map(PASSED_ON.fullmatch, given)):
        return None
    for name in _FILE_NAMED.findall(read_text(found)):
        with suppress(RenderError, JobError, ValueError):
            file = found.parent / name
            text = read_text(file) if file.is_file() else ""
            if (settings := settings_in(text, file, release=release)) is not None:
                return settings
    return None


def _lost(shell: ShellText, command: Command, launch: MegatronLaunch) -> Iterator[Violation]:
    """Violations of flags on a line of their own, which a lost backslash has cut off."""
    lost = shell.lost_below(command)
    if lost is not None and not (launch.words and command.blank_in):  # `_stray` tells that
        yield Violation(
            rule="flags.lost_line",
            message=lost.cost_of_lost,
            fix=lost.fix_of_lost,
            at=(f"@{lost.start}",),
            consequence="ignored",
        )


def _script_at(words: Sequence[str]) -> int | None:
    """Place of a script, or of a command of ms-swift's, that is given Megatron's arguments."""
    if (swift := _command_at(words, _SWIFT)) is not None:
        return swift
    parts = parts_of(words)
    scripts = (at for at, word in enumerate(words) if _SCRIPT.fullmatch(PurePath(word).name))
    script = next(scripts, parts.script_at)
    if script == len(words):
        return None
    name = PurePath(words[script]).name
    given = {word.partition("=")[0] for word in words[script + 1 :]}
    marks, is_open = _MARKS, any(map(UNKNOWN.match, given))
    if is_open and parts.kind == "deepspeed":  # Megatron-DeepSpeed's flags may be among them
        return None
    if not _is_megatrons(words, script):
        if not _TRAINS.search(name) or parts.kind in ("accelerate", "deepspeed"):
            return None
        marks = frozenset(map(_as_flag, _DEGREES))  # they are handed to Megatron's parser
    is_gpts = _GPT.fullmatch(name) is not None and parts.kind == "torchrun"
    has_marks = bool(given & marks) or (is_gpts and is_open)
    others = (word.replace("_", "-") for word in given)
    return script if has_marks and _OTHERS.isdisjoint(others) else None


def _is_megatrons(words: Sequence[str], script: int) -> bool:
    """True for a script with the name of one of Megatron-LM's, whose defaults are its own."""
    name = PurePath(words[script]).name
    is_slimes = any(word.partition("=")[0] == _RANKS_OF_SLIME[0] for word in words)
    return _SCRIPT.fullmatch(name) is not None and not is_slimes


def _command_at(words: Sequence[str], *commands: str) -> int | None:
    """Place of the word behind one of the commands that train, such as `sft`."""
    pairs = enumerate(pairwise(words), 1)
    return next((at for at, (a, b) in pairs if a in commands and b in _TRAINS_OF[a]), None)


def _rest(
    arguments: "_Arguments", words: Sequence[str], *, is_overrides: bool, is_swift: bool
) -> dict[str, Any]:
    """The fields of a launch about arguments that the line does not give."""
    if is_overrides:
        rest = ("what the line does not override", "the recipe is not read")
        return {"rest": rest, "settled": _settled(arguments, words)}
    if is_swift:
        if arguments.file:
            rest = (f"what {arguments.file} says", "the file is not read")
            return {"rest": rest, "prefix": "--"}
        rest = ("what the model decides", "ms-swift reads it from the checkpoint")
        of_swift = _DEGREES.union(_OF_SWIFT["at_megatrons_default"])
        settled = frozenset() if arguments.open_words else of_swift
        return {"rest": rest, "settled": settled, "prefix": "--"}
    rest = ("what the line does not give", f"{PurePath(arguments.script).name} may set it")
    return {"rest": rest, "settled": frozenset((*_OF_FLAGS_ALONE, *_DEGREES))}


def _settled(arguments: "_Arguments", words: Sequence[str]) -> frozenset[str]:
    """Arguments of a recipe that are at their default unless the line overrides them."""
    flags_of_other = _PROGRAMS["nemo"]["flags_of_another_configuration"]
    has_other = any(word.partition("=")[0] in flags_of_other for word in words)
    if "devices" in arguments.counts and not has_other:
        of_nemo = _PROGRAMS["nemo"]["at_megatrons_default"]
        return frozenset((*_OF_FLAGS_ALONE, *_OF_STAGES, *of_nemo))
    stages = _OF_STAGES if "pipeline_model_parallel_size" in arguments.given else ()
    return frozenset((*_OF_FLAGS_ALONE, *stages))


class _Arguments:
    """Reads words as a release's parser does, or as the fields of a recipe."""

    def __init__(self, release: str, script: str, path: Path, *, is_megatrons: bool) -> None:
        self.release, self.script, self._path = release, script, path
        self._is_megatrons = is_megatrons
        """True if all words are for Megatron's parser; a script of another name may add some."""
        self._of_script: dict[str, str] = {}
        """Flag of another script's -> its first value."""
        self.file = ""
        """Configuration of ms-swift's that the line names; empty: none."""
        self.open_words: dict[int, str] = {}
        self.given: dict[str, GivenArgument] = {}
        self.unknown: set[str] = set()
        self.counts: dict[str, Any] = {}
        """Fields of a trainer or a cluster, by which nodes and ranks are counted."""
        self._problems: list[Violation] = []
        self._script_flags: list[tuple[str, Word]] = []
        """Flags of no release, which the script may add."""

    def take(self, words: Sequence[Word]) -> None:
        """Read the words behind a script."""
        at = 0
        while at < len(words):
            end = at + 1
            while end < len(words) and not words[end].text.startswith("--"):
                end += 1
            self._take(words[at], words[at + 1 : end])
            at = end

    def take_override(self, key: str, text: str, start: int, *, spelled: str = "") -> None:
        """Read the value of a recipe's field; `spelled` is how messages name it."""
        section, _, name = key.rpartition(".")
        flag = flags(self.release).get(f"--{name.replace('_', '-')}")
        argument = _RECIPES["fields"].get(name) or (name if flag is None else flag.argument)
        if UNKNOWN.search(text):
            return self._forget(argument)
        if spelled and text == "none":  # ms-swift's word for Megatron's own default
            self.given.pop(argument, None)
            return None
        try:
            value = parse_yaml(f"value: {text}", self._path)["value"]
            flag = _flags_with_value(self.release).get(argument)
            if value is not None and flag is not None:
                texts = value if isinstance(value, list) else [value]
                value = _value(flag, list(map(str, texts)))
        except (JobError, RenderError, ValueError):
            return self._forget(argument)
        if section in ("trainer", "cluster"):
            self.counts[name] = value
        return None if value is None else self._keep(argument, value, spelled or key, start)

    def take_swift(self, words: Sequence[Word], start: int) -> None:
        """Read the words behind a command of ms-swift's; flags of its own are left out.

        Args:
            words: The words.
            start: Where the command stands, as the place of ms-swift's defaults.
        """
        alone = [word for word in words if UNKNOWN.match(word.text)]
        if words and words[0].text.endswith((".yaml", ".yml", ".json")):
            self.file = words[0].text
        elif not alone:
            for argument, value in _OF_SWIFT["defaults"].items():
                self._keep(argument, value, f"--{argument}", start)
        for at, word in enumerate(words):
            before = words[at - 1].text if at else ""
            if word in alone and (not before.startswith("--") or "=" in before):
                self.open_words[word.start] = word.text
            if not word.text.startswith("--"):
                continue
            name, equals, attached = word.text.removeprefix("--").partition("=")
            values = [attached] if equals else []
            for follows in words[at + 1 :]:
                if follows.text.startswith("--") or (values and follows in alone):
                    break
                values.append(follows.text)
            field = name.replace("-", "_")
            text = (
                values[0] if len(values) == 1 else f"[{', '.join(values)}]" if values else "true"
            )
            self.take_override(field, text, word.start, spelled=f"--{field}")

    def ranks(self) -> tuple[int | None, int | None]:
        """All ranks, and those of a node, as far as fields or slime's flags say."""
        nodes, per_node = _counts_in(self.counts)
        if not (isinstance(nodes, int) and isinstance(per_node, int)):
            texts = [self._of_script.get(flag, "") for flag in _RANKS_OF_SLIME]
            nodes, per_node = (int(text) if text.isdecimal() else None for text in texts)
        return product(nodes, per_node), per_node

    def _keep(self, argument: str, value: Any, flag: str, start: int) -> None:
        """Note an argument; of several the last one counts."""
        self.unknown.discard(argument)
        self.given[argument] = GivenArgument(value=value, flag=flag, start=start)

    def _forget(self, argument: str) -> None:
        """Note an argument whose value cannot be known."""
        self.unknown.add(argument)
        self.given.pop(argument, None)

    def _take(self, word: Word, following: Sequence[Word]) -> None:
        """Read a flag with the words up to the next one."""
        if not word.text.startswith("--"):
            return self._stray([word, *following])
        name, equals, attached = word.text.partition("=")
        try:
            flag = flag_of(name, self.release)
        except JobError as error:
            if not self._is_megatrons:
                return self._leave(name, attached, following)
            if (argument := name.lstrip("-")) in defaults(self.release):
                self._forget(argument)  # a fork's parser may spell it so
            if self._adds(name):
                return None
            is_plain = PurePath(self.script).name == _PLAIN_SCRIPT and not self._is_forks
            if is_plain or is_flag_of_any(name):
                return self._refuse("flags.unknown", error.message, word, error.hint)
            return self._script_flags.append((name, word))
        if flag.argument in GONE and not self._is_megatrons:
            return self._leave(name, attached, following)
        taken = [attached] if equals else []
        n_more = max(0, _most_values(flag) - len(taken))
        taken += [text.text for text in following[:n_more]]
        self._stray(following[n_more:])
        if any(map(UNKNOWN.search, taken)):
            return self._forget(flag.argument)
        try:
            value = _value(flag, taken)
        except ValueError as error:
            if not self._is_megatrons:
                return self._leave(name, attached, following)
            choices = self._added.get(flag.name, {""})
            if taken and (flag.choices if not choices else choices >= {*taken}):
                return self._forget(flag.argument)  # a fork's parser takes it
            message = f"{flag.name} {' '.join(taken)}: it {error}"
            return self._refuse("flags.value", message, word, "give it such a value")
        return self._keep(flag.argument, value, flag.name, word.start)

    def _leave(self, name: str, attached: str, following: Sequence[Word]) -> None:
        """Note a flag of another script's."""
        self._of_script[name] = attached or (following[0].text if following else "")
        self.open_words |= {
            word.start: word.text for word in following[1:] if UNKNOWN.match(word.text)
        }

    def _stray(self, words: Sequence[Word]) -> None:
        for word in words:
            if UNKNOWN.search(word.text):
                self.open_words[word.start] = word.text
            elif self._is_megatrons:
                what = "a space behind a backslash" if word.text.isspace() else word.text
                self._refuse("flags.stray_word", f"{what}: is no flag", word, "remove it")

    @property
    def problems(self) -> list[Violation]:
        """Words that the parser refuses; flags that the script is not seen to add come last."""
        if not (found := self._script_flags):
            return self._problems
        near_flags = []
        for name, _ in found:
            near = similar(name, self.release)
            near_flags.append(f"{name} (did you mean {near}?)" if near else name)
        problem = Violation(
            rule="flags.own",
            message=f"{named(near_flags)}: no release of Megatron Core from "
            f"{releases()[0]} on has such a flag, and its parser refuses it unless "
            f"{PurePath(self.script).name} adds it",
            fix="leave it out, unless the script adds it",
            at=(f"@{found[0][1].start}",),
            consequence="may_raise",
        )
        # It may take further values as well.
        problems = (
            replace(one, consequence="may_raise") if one.rule == "flags.value" else one
            for one in self._problems
        )
        return [*problems, problem]

    @cached_property
    def _script_path(self) -> Path | None:
        """The script, from where one stands or a folder of the launch on; None: not there."""
        names = (self.script, Path(self.script).name)
        near = (file_near(name, *self._path.resolve().parents) for name in names)
        return next(filter(None, near), None)

    @cached_property
    def _parser(self) -> str:
        """The text of the script and of its checkout's parser, as far as they are there."""
        script = self._script_path
        files = () if script is None else (script, *map(script.parent.joinpath, _OF_CHECKOUTS))
        return "\n".join(text_near(str(path)) for path in files)

    @cached_property
    def _is_forks(self) -> bool:
        """True if the script imports another package of its checkout, which may add flags."""
        folder = self._script_path.parent if self._script_path else Path()
        packages = {*_IMPORTED.findall(self._parser)} - {"megatron"}
        return any(map(Path.is_dir, map(folder.joinpath, packages)))

    def _adds(self, flag: str) -> bool:
        """True if the script, or the parser of its checkout, is there and takes the flag."""
        added = self._added
        return flag in added or sum(one.startswith(flag) for one in added) == 1

    @cached_property
    def _added(self) -> Mapping[str, Set[str]]:
        """Flag that the script or its checkout's parser adds -> its choices; none: not known."""
        found: dict[str, Set[str]] = {}
        dashes = "" if _PUTS_DASHES.search(self._parser) else "--"  # a helper of the fork's may
        tree = ast.Module(body=[], type_ignores=[])
        with suppress(SyntaxError):
            tree = ast.parse(self._parser)
        for call in (one for one in ast.walk(tree) if isinstance(one, ast.Call)):
            texts = (one.value for one in call.args if isinstance(one, ast.Constant))
            flags = [one for one in texts if isinstance(one, str) and one.startswith(dashes)]
            choices: Set[str] = frozenset()
            with suppress(StopIteration, ValueError, TypeError):
                listed = next(one.value for one in call.keywords if one.arg == "choices")
                choices = frozenset(map(str, ast.literal_eval(listed)))
            for flag in flags:
                found[flag] = found[f"--{flag.lstrip('-').replace('_', '-')}"] = choices
        return found

    def _refuse(self, rule: str, message: str, word: Word, fix: str) -> None:
        at = (f"@{word.start}",)
        self._problems.append(Violation(rule=rule, message=message, fix=fix, at=at))


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


@cache
def _flags_with_value(release: str) -> Mapping[str, Flag]:
    """Argument -> its flag, for those that no switch sets."""
    every = flags(release).values()
    switched = {flag.argument for flag in every if flag.is_switch}
    return {flag.argument: flag for flag in every if flag.argument not in switched}
