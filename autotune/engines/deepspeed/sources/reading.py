"""A file that somebody wants checked: its text, and the DeepSpeed configurations in it."""

import importlib.util
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from autotune.base.errors import AutotuneError, RenderError
from autotune.base.user_text import MAX_BYTES, STANDARD_INPUT, read_text
from autotune.engines.deepspeed.ds_config_text import parse_config
from autotune.engines.deepspeed.rules.sections import AUTO
from autotune.engines.deepspeed.sources import lightning, neox
from autotune.engines.deepspeed.sources.accelerate import (
    AccelerateFile,
    config_of,
    is_accelerate,
)
from autotune.engines.deepspeed.sources.consumers import Consumer
from autotune.engines.deepspeed.sources.file_rules import violation_of
from autotune.engines.deepspeed.sources.kinds import NotADsConfigError, kind_of
from autotune.engines.deepspeed.sources.launch import LaunchLine
from autotune.engines.deepspeed.sources.layout import UNSPLIT, ExportedLayout
from autotune.engines.deepspeed.sources.programs import PROGRAMS
from autotune.engines.deepspeed.sources.sections import (
    is_ds_config,
    is_named_so,
    own_keys,
    sections_inside,
)
from autotune.engines.launches.files import file_near, is_shell
from autotune.engines.launches.line import AXOLOTL, typed
from autotune.space.rule import NotJudged, Violation
from autotune.trial.guest.frameworks import AXOLOTL_NAMES

Syntax = Literal["json", "hjson", "yaml", "shell"]

_YAML = (".yaml", ".yml")
_EXPONENT = re.compile(r"\d[eE]\d|\d[eE][-+]\d")

_MAX_YAML_CHARACTERS = 2**18
"""Longest YAML that is read: PyYAML takes seconds for it."""
_UNPROMISING = 2**14
"""Length from which a YAML without a word of DeepSpeed's is not read at all."""
_WORDS = re.compile(
    r"deepspeed|\bds_|zero[_-](optim|allow|stage)|train[_-](micro[_-])?batch|gradient[_-]|(bf|fp)16",
    re.IGNORECASE,
)

_PLACEHOLDER = re.compile(
    r"\s*(?:\{\{[^{}\n]*\}\}|\$[A-Za-z_]\w*|\$\([^\n]*\)|<[A-Za-z_][\w .-]*>|@@?[A-Za-z_]\w*@@?"
    r"|%[A-Za-z_]\w*%|__[A-Za-z]\w*__|[A-Z]+(?:_[A-Z0-9]+)+)\s*,?\s*"
)
"""A text that is nothing else; Hjson takes the comma behind a word for a part of it."""

_MICRO = "per_device_train_batch_size"
SYNONYMS = {AXOLOTL_NAMES[_MICRO]: _MICRO}
"""Other names of a TrainingArguments field, which tell themselves in any file."""

_TRAINERS = tuple((frozenset(keys), name) for keys, name in PROGRAMS["trainer"]["readers"])
"""Keys that tell who reads a file of arguments, and hands them to Hugging Face's Trainer."""
COMMANDS: Mapping[str, str] = PROGRAMS["trainer"]["commands"]
"""Command that trains -> which of these it is."""
_OF_ARGUMENTS = frozenset(PROGRAMS["trainer"]["arguments"])
"""Keys beside `deepspeed` that tell Trainer's arguments."""
_SWIFTS = frozenset(PROGRAMS["swift"]["configurations"])
"""Configurations that ms-swift brings (swift/arguments/sft_args.py: _init_deepspeed)."""


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """A mapping that a text holds."""

    data: dict[str, Any]
    syntax: Syntax
    twice: tuple[str, ...] = ()
    """Keys of YAML that stand twice in one section, and the line of the last one."""


_NO_LINE, NO_FILE = LaunchLine(), AccelerateFile({}, None)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A DeepSpeed configuration that a file holds or names, and what is known of its reader."""

    path: Path
    """The file that holds it."""
    asked: Path = Path()
    """The file that was named; it may name another one."""
    text: str
    syntax: Syntax = "json"
    at: tuple[str, ...] = ()
    """The keys of the file under which it lies."""
    document: str = ""
    """The here-document of a shell file in which it stands, in words."""
    config: Mapping[str, Any]
    twice: tuple[str, ...] = ()
    """Keys of its YAML that stand twice in one section, and the line of the last one."""
    reads_exponents: bool = False
    """Whether 5e8 in its YAML is a number to its reader."""
    refuses_twice: bool = False
    """Whether its reader refuses such a YAML: OmegaConf does, PyYAML takes the last one."""
    is_made: bool = False
    """Whether its reader makes it out of other keys, so that the text does not hold it."""
    unasked: frozenset[str] = frozenset()
    """Keys, dotted, that the reader puts in at defaults of its own: nobody wrote them."""
    is_named: bool = False
    """Whether it is another file, which the first one names."""
    is_part: bool = False
    """Whether it stands in some program's own file, which may add to it."""
    unknown: frozenset[tuple[str, ...]] = frozenset()
    """Keys that somebody fills in at run time: "auto" in `config`, or a placeholder."""
    has_deepspeed: bool | None = True
    """Whether DeepSpeed trains, or Trainer alone, and `config` is empty; None: nobody says."""
    consumer: Consumer = Consumer.DEEPSPEED
    is_guessed: bool = True
    """Whether nothing tells the consumer, so that DeepSpeed itself is taken for it."""
    because: str = ""
    """Evidence for the consumer; empty: there is none."""
    reader: str = ""
    """The program that hands it over, where it is another than the consumer."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of Trainer's."""
    arguments_path: Path | None = None
    """The file in which they stand; None: they stand in none."""
    arguments_at: tuple[str, ...] = ()
    """The keys of that file under which they lie."""
    sourced: tuple[Path, ...] = ()
    """Files that a launch of Megatron-LM sources."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Names of `arguments` that are numbers, and stand in the file as text."""
    own_defaults: frozenset[str] | None = None
    """Fields of `TrainingArguments` for which the script has defaults of its own; None: it does
    not tell, or is not there."""
    arguments_unread: str = ""
    """Why an argument of Trainer's that is not among `arguments` is not known."""
    launch_at: tuple[Path, int] | None = None
    """The file and the line on which the launch begins; None: it stands in no file."""
    lost: frozenset[str] = frozenset()
    """Arguments that the launch was meant to have, and that stand on a line of their own."""
    is_trainers: bool | None = None
    """Whether its script trains with Trainer; None: nobody says."""
    line: LaunchLine = _NO_LINE
    """What starts the training."""
    script: Path | None = None
    """The script that it starts, where that is there."""
    accelerate: AccelerateFile = NO_FILE
    """The accelerate YAML; without a path there is none."""
    world: int | None = None
    """Ranks, without those that the reader splits a model over."""
    world_because: str = "given"
    split: int = 1
    """Ranks that the reader splits each stage over, which DeepSpeed leaves out of its batch."""
    per_node: int | None = None
    """Ranks of one node; None where nobody says."""
    layout: ExportedLayout = UNSPLIT
    """For an export or a pipeline: how its script splits the training."""
    accelerator: str | None = None
    """Where it runs, as the launch line, the arguments or the files say; None: nobody says."""
    refused: tuple[Violation, ...] = ()
    """Violations of the reader, which refuses or overrules keys before DeepSpeed sees them."""
    not_judged: tuple[NotJudged, ...] = ()
    """What belongs to the configuration, and could not be read."""
    failed_launches: tuple[AutotuneError, ...] = ()
    """Why other launches of the file that was named cannot be read."""

    is_checked: bool = False
    """Whether its file is checked itself, whichever file names it."""

    @property
    def can_write(self) -> bool:
        """Whether a fix may be written: into no file but those that are checked."""
        return (self.path == self.asked or self.is_checked) and self.path.is_file()

    @property
    def files(self) -> tuple[Path, ...]:
        named = None if self.line.named is None else Path(self.line.named)
        every = (self.path, self.accelerate.path, self.arguments_path, named, *self.sourced)
        return tuple(path for path in every if path is not None)

    @property
    def beside_file(self) -> tuple[str, ...]:
        """Fields of the accelerate YAML that accelerate refuses beside this ds_config."""
        kind = self.accelerate.data.get("distributed_type")
        if self.is_made or not (kind == "DEEPSPEED" or self.line.uses_deepspeed):
            return ()
        given = "mixed_precision" if self.line.mixed_precision else ""
        return tuple(name for name in self.accelerate.owned if name != given)

    @property
    def mixed_precision(self) -> str | None:
        """Accelerate's, where it is given, as it is given.

        One that is refused beside the file does not differ from it as well.
        """
        is_refused = "mixed_precision" in self.beside_file
        return self.line.mixed_precision or (
            None if is_refused else self.accelerate.mixed_precision
        )

    @property
    def fsdp(self) -> dict[str, Any]:
        """Settings of FSDP, without a prefix of their names; empty where it does not train."""
        given, file = self.arguments, self.accelerate
        is_axolotls = self.reader == AXOLOTL and given.get("fsdp_config")
        if not (self.runs_instead == "FSDP" or given.get("fsdp") or is_axolotls):
            return {}
        settings = {"version": given.get("fsdp_version")}
        for place in (file.data, given):
            if isinstance(section := place.get("fsdp_config"), Mapping):
                settings |= {str(name).removeprefix("fsdp_"): section[name] for name in section}
        flags = self.line.launcher_flags.items()
        return settings | {n.removeprefix("fsdp_"): one for n, one in flags if "fsdp_" in n[:5]}

    @property
    def not_for(self) -> str:
        """Name of what accelerate runs instead of DeepSpeed, where its YAML says so.

        A script reads the file that it is given as an argument (training_args.py).
        """
        by_script = {"deepspeed", "deepspeed_config"} & self.arguments.keys()
        is_read = by_script and self.path != self.accelerate.path
        return "" if self.line.uses_deepspeed or is_read else self.accelerate.not_for

    @property
    def runs_instead(self) -> str:
        """As of `AccelerateFile.not_for`; flags of `accelerate launch` overrule its YAML."""
        return self.line.runs_instead or self.accelerate.not_for

    @property
    def is_tuned(self) -> bool | None:
        """Whether DeepSpeed's own autotuner starts it; None: nobody says."""
        if self.line.is_tuned:
            return True
        return False if self.consumer is Consumer.ACCELERATE or self.line.kind else None

    @property
    def launched(self) -> str | None:
        """The ds_config that the launch line names, where it is certain to be another file.

        A line may be meant for another folder, and a variable for anything.
        """
        named = self.line.config
        if named is None or "$" in named or self.document:
            return None
        if os.path.isfile(named):  # standard input is no file
            is_same = os.path.exists(self.path) and self.path.samefile(named)
            return None if is_same else named
        return None if is_named_by(named, self.path) else named


def may_be_meant(path: Path) -> bool:
    """Whether a file of a folder that cannot be read may be DeepSpeed's, or start a training.

    Lists of samples, logs and large data are not.
    """
    from autotune.engines.launches.jobs import commands_of_job  # PyYAML, which JSON needs not

    try:
        if path.stat().st_size > MAX_BYTES:
            return False
        text = read_text(path)
    except (OSError, RenderError):
        return True  # nobody knows
    starts = is_shell(text, path) or commands_of_job(text, path) != ""
    return starts or _WORDS.search(text) is not None


def parsed(text: str, path: Path, *, reads_exponents: bool = False) -> Parsed:
    """The mapping of a text: YAML by the name of its file, else JSON or Hjson.

    Without a name, what begins with no brace is YAML. A ds_config in plain JSON is JSON whatever
    its name: so its readers read it, to whom 5e8 is a number there.

    Raises:
        RenderError: It is none of these, too deep, or too long.
        NotADsConfigError: It is a long text without a word of DeepSpeed's.
        JobError: It is YAML that cannot be read.
    """
    if path == STANDARD_INPUT and not text.strip():
        raise RenderError.of("engines.deepspeed.empty_input")
    is_unlike_json = text.lstrip("\ufeff \r\n\t")[:1] != "{"
    is_yaml = path.suffix in _YAML or (_is_nameless(path) and is_unlike_json)
    if is_yaml and (in_json := _json_in_yaml(text, path)) is not None:
        return Parsed(data=in_json, syntax="json")
    if is_yaml:
        if len(text) > _UNPROMISING and _WORDS.search(text) is None:
            raise NotADsConfigError(path, "no word in it is DeepSpeed's")
        if len(text) > _MAX_YAML_CHARACTERS:
            most = _MAX_YAML_CHARACTERS // 1024
            raise RenderError.of("engines.deepspeed.long_yaml", path=path, most=most)
    twice: list[str] = []
    is_hjson = False
    if is_yaml:
        from autotune.base.yaml_file import parse_yaml  # PyYAML, which JSON needs not

        data = parse_yaml(text, path, reads_exponents=reads_exponents, twice=twice)
    else:
        data, is_hjson = parse_config(text, path)
    return Parsed(
        data=data,
        syntax="yaml" if is_yaml else "hjson" if is_hjson else "json",
        twice=tuple(twice),
    )


def _is_nameless(path: Path) -> bool:
    return path == STANDARD_INPUT or path.parts[:2] == ("/", "dev")


def _json_in_yaml(text: str, path: Path) -> dict[str, Any] | None:
    if not text.lstrip("\ufeff \r\n\t").startswith("{"):
        return None
    try:
        data, is_hjson = parse_config(text, path)
    except RenderError:
        return None
    is_meant = _is_ds_config(data, path, is_json=True) and not neox.is_neox(
        neox.with_underscores(data)
    )
    return data if is_meant and not is_hjson else None


def _is_ds_config(data: Mapping[str, Any], path: Path, *, is_json: bool) -> bool:
    is_named = _is_nameless(path) or is_named_so(path.name)
    return is_ds_config(data, is_json=is_json, is_named=is_named)


def sections_of(text: str, path: Path, line: LaunchLine, *, has_accelerate: bool) -> list[Source]:
    """The DeepSpeed configurations of a file, at least one.

    Args:
        text: What the file holds.
        path: The file.
        line: The launch line.
        has_accelerate: Whether an accelerate file was named beside it.

    Raises:
        RenderError: A file that it names cannot be read.
        NotADsConfigError: There is none.
        JobError: A value is none of those that are allowed there.
    """
    found = parsed(text, path)
    has_exponents = found.syntax == "yaml" and _EXPONENT.search(text) is not None
    reads_exponents = has_exponents and _reads_exponents(found.data)
    if reads_exponents:
        found = parsed(text, path, reads_exponents=True)
    data = found.data
    here = Source(
        path=path,
        text=text,
        syntax=found.syntax,
        config=data,
        twice=found.twice,
        reads_exponents=reads_exponents,
        refuses_twice=bool(found.twice) and _is_omegaconfs(data),
    )
    as_neox = neox.with_underscores(data)
    if neox.is_neox(as_neox):
        return [_of_neox(here, as_neox)]
    strategy = lightning.strategy_of(data)
    if strategy is not None:
        return [_of_lightning(here, strategy)]
    if not has_accelerate and is_accelerate(data):
        return [_of_accelerate(here, line)]
    if "deepspeed" in data and "zero_optimization" not in data and _may_be_section(data):
        if _is_some_programs(data):
            return _inside(here)
        return [_of_arguments(here, data, ("deepspeed",))]
    if _is_ds_config(data, path, is_json=found.syntax != "yaml"):
        if found.syntax == "yaml" and data:  # a script reads it, and may add to it
            return [replace(here, config=own_keys(data), is_part=True)]
        return [here]
    return _inside(here)


def _reads_exponents(data: Mapping[str, Any]) -> bool:
    """Whether a file's reader takes 5e8 in YAML for a number.

    OmegaConf does (omegaconf/_utils.py: get_yaml_loader), which reads for Hydra and LLaMA-Factory
    (hparams/parser.py: read_args), jsonargparse (_loaders_dumpers.py), which reads for Lightning,
    and Determined, whose master is no Python program. axolotl (cli/config.py), accelerate,
    ms-swift (cli/main.py) and GPT-NeoX read with PyYAML.
    """
    is_determineds = {"entrypoint", "hyperparameters"} <= data.keys()
    return is_determineds or _is_omegaconfs(data) or lightning.strategy_of(data) is not None


def _is_omegaconfs(data: Mapping[str, Any]) -> bool:
    is_hydra = isinstance(data.get("defaults"), list) or "hydra" in data or _has_target(data)
    return is_hydra or trainer_of(data) == "LLaMA-Factory"


def _has_target(value: Any) -> bool:
    if isinstance(value, Mapping):
        return "_target_" in value or any(map(_has_target, value.values()))
    return isinstance(value, list) and any(map(_has_target, value))


def _may_be_section(data: Mapping[str, Any]) -> bool:
    inner = data["deepspeed"]
    return not isinstance(inner, Mapping) or not inner or own_keys(inner) != {}


def _is_some_programs(data: Mapping[str, Any]) -> bool:
    """Whether a section stands beside keys none of which is an argument of Trainer's."""
    inner = data["deepspeed"]
    return isinstance(inner, Mapping) and bool(own_keys(inner)) and not has_arguments(data)


def has_arguments(data: Mapping[str, Any]) -> bool:
    """Whether a mapping has arguments of Trainer's, or of who hands them to it."""
    return bool(_OF_ARGUMENTS & data.keys() or trainer_of(data))


def _of_neox(here: Source, data: Mapping[str, Any]) -> Source:
    config = neox.config_of(data)
    if not config:
        kind = "a part of a GPT-NeoX configuration, without DeepSpeed's"
        raise NotADsConfigError(here.path, kind)
    pp, tp = neox.degrees(data)
    return replace(
        here,
        config=config,
        is_made=True,
        unknown=_autos_at_top(config),
        is_guessed=False,
        because=f"{here.path} is GPT-NeoX's, which hands it these keys",
        reader=neox.READER,
        world=neox.world_of(data),
        split=tp if pp == 1 else 1,
        layout=ExportedLayout(pp=pp, tp=tp if pp > 1 else 1),
    )


def _of_lightning(here: Source, strategy: lightning.Strategy) -> Source:
    data: Mapping[str, Any] = here.config
    given, section = strategy.config, replace(here, at=strategy.at)
    if isinstance(given, str):
        section = replace(_named(given, here.path), at=())
        given = section.config
    is_made = not isinstance(given, Mapping)
    config = lightning.made_config(strategy.arguments) if is_made else given
    refuses = lightning.ACCUMULATION in config
    after = lightning.handed(config, data)
    return replace(
        section,
        config=after,
        is_made=True,
        unasked=lightning.unasked(strategy.arguments) if is_made else frozenset(),
        unknown=_autos_at_top(after),
        is_guessed=False,
        because=f"the DeepSpeed strategy of Lightning in {here.path}",
        reader="Lightning",
        world=lightning.world_of(data),
        refused=(violation_of("lightning.accumulation"),) if refuses else (),
    )


def _autos_at_top(config: Mapping[str, Any]) -> frozenset[tuple[str, ...]]:
    return frozenset((name,) for name, value in config.items() if value == AUTO)


def _of_accelerate(here: Source, line: LaunchLine) -> Source:
    file = AccelerateFile(here.config, here.path)
    if file.file is not None:
        return replace(_named(file.file, here.path), accelerate=file)
    config = config_of(file, line.plugin)
    return replace(here, config=config, at=("deepspeed_config",), is_made=True, accelerate=file)


def _of_arguments(here: Source, data: Mapping[str, Any], at: tuple[str, ...]) -> Source:
    """The ds_config that a file names, or holds, beside arguments of Hugging Face's Trainer.

    They are numbers where their text is one: axolotl and TRL convert it, ms-swift hands it on as a
    command line, and LLaMA-Factory's reader reads a number.
    """
    arguments = as_arguments(data)
    inner = arguments.pop(at[-1])
    reader = trainer_of(data)
    if isinstance(inner, str) and inner.lstrip().startswith("{"):
        inner = _object_in(inner, here.path)
    if isinstance(inner, str):
        section = _named(inner, here.path)
    elif isinstance(inner, Mapping):
        section = replace(here, config=inner, at=at)
    else:
        shown = "empty" if inner is None else f"{inner!r}"
        raise NotADsConfigError(here.path, f"its {'.'.join(at)} key is {shown}")
    return replace(
        section,
        consumer=Consumer.TRAINER,
        is_guessed=False,
        because=f"the {'.'.join(at)} key of {here.path}",
        reader=reader,
        arguments=arguments,
        arguments_path=here.path,
        arguments_at=at[:-1],
        texts={
            name: data[name]
            for name, value in arguments.items()
            if isinstance(data.get(name), str) and type(value) in (int, float)
        },
    )


def as_arguments(data: Mapping[Any, Any]) -> dict[str, Any]:
    """Arguments by the names of TrainingArguments, numbers where their text is one."""
    return {
        SYNONYMS.get(str(name), str(name)): typed(value) if isinstance(value, str) else value
        for name, value in data.items()
    }


def trainer_of(data: Mapping[str, Any], command: str = "") -> str:
    """The program that reads arguments, by its command or by them; empty where nothing tells."""
    found = (name for keys, name in _TRAINERS if keys <= data.keys())
    return COMMANDS.get(command) or next(found, "")


def _object_in(text: str, path: Path) -> Any:
    """The object in a text: Trainer takes JSON itself for the name of a file, too."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        row = "engines.deepspeed.no_json_named"
        raise RenderError.of(row, path=path, error=error) from error


def _inside(here: Source) -> list[Source]:
    """Sections at depth, and those of files that are named there."""
    found: list[Source] = []
    why_none = ""
    for at, value in sections_inside(here.config):
        because = f"the section {'.'.join(at)} of {here.path}"
        beside = _at(here.config, at[:-1])
        try:
            if at[-1] == "deepspeed" and has_arguments(beside):
                found.append(_of_arguments(here, beside, at))
            elif isinstance(value, str) and not file_near(value, *here.path.parents):
                why_none = f"it names {value}, which is not there"
            elif isinstance(value, str):
                found.append(replace(_named(value, here.path), because=because))
            else:
                found.append(replace(here, config=value, at=at, because=because, is_part=True))
        except NotADsConfigError as error:
            why_none = error.kind
    if not found:
        is_trainers = has_arguments(here.config)
        kind = "arguments without a deepspeed key" if is_trainers else kind_of(here.config)
        raise NotADsConfigError(here.path, why_none or kind)
    return list({(one.path, one.at): one for one in found}.values())


def placeholders(value: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where a configuration has what somebody fills in: `${train.batch}`, `{{ lr }}`, `<LR>`."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from placeholders(inner, (*at, str(name)))
    elif isinstance(value, str) and ("${" in value or _PLACEHOLDER.fullmatch(value)):
        yield at


def _at(data: Any, at: tuple[str, ...]) -> Mapping[str, Any]:
    """The mapping under some keys; of a place in a list nothing."""
    for name in at:
        data = data.get(name) if isinstance(data, Mapping) else None
    return data if isinstance(data, Mapping) else {}


def named_path(name: str, base: Path) -> Path:
    """The file that another file names, there or above; ms-swift's are in its package."""
    path = file_near(name, *base.parents)
    if path is None and name in _SWIFTS:
        path = _of_swift(name)
    if path is None:
        raise RenderError.of("engines.deepspeed.named_file", base=base, name=name)
    return path


def is_named_by(name: str, path: Path) -> bool:
    """Whether a name may be meant for a file, whatever the folder."""
    return path.name in (Path(name).name, f"{name}.json" if name in _SWIFTS else "")


def _named(name: str, base: Path) -> Source:
    path = named_path(name, base)
    text = read_text(path)
    found = parsed(text, path)
    return Source(
        path=path,
        text=text,
        syntax=found.syntax,
        config=found.data,
        twice=found.twice,
        is_named=True,
    )


def _of_swift(name: str) -> Path:
    """Its own file where it is installed, else what is recorded of it (swift/config)."""
    spec = importlib.util.find_spec("swift")
    folders = [Path(one) / "config" for one in (spec and spec.submodule_search_locations) or ()]
    near = (folder / f"{name}.json" for folder in (*folders, Path(__file__).with_name("swift")))
    return next(filter(Path.is_file, near))
