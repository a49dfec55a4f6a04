"""The configuration to check: its text, its place, and what is known of its reader."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.base.errors import JobError
from autotune.check import lightning
from autotune.check.accelerate_file import AccelerateFile
from autotune.check.consumers import FILLED, Consumer, autos
from autotune.check.launch import TRL, LaunchLine, read_launch
from autotune.check.layout import UNSPLIT, ExportedLayout, layout_beside
from autotune.check.reading import ReadConfig, Syntax, parsed, sections_of
from autotune.check.refusals import refusals
from autotune.check.script import own_defaults, uses_lightnings
from autotune.engines.deepspeed.ds_config_text import read_text
from autotune.engines.deepspeed.rules.sections import AUTO
from autotune.space.rule import Violation

_TELLING = frozenset(
    name for name in FILLED[Consumer.TRAINER] if not name.startswith("zero_optimization.")
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A configuration and its surroundings."""

    asked: Path
    """The file that was named; it may name another one."""
    path: Path
    """The file that holds it."""
    text: str
    at: tuple[str, ...] = ()
    """The keys of the file under which it lies."""
    document: str = ""
    """Number of the document in a YAML file that has several."""
    config: Mapping[str, Any]
    consumer: Consumer
    because: str
    """Evidence for the consumer."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `TrainingArguments`, as far as they were given."""
    own_defaults: frozenset[str] | None = None
    """Fields of `TrainingArguments` for which the script has defaults of its own; None: it does
    not tell, or is not there."""
    syntax: Syntax = "json"
    reader: str = ""
    """The program that hands the configuration to the consumer, where it has a name: GPT-NeoX,
    Lightning, Megatron-DeepSpeed, LLaMA-Factory, axolotl, ms-swift."""
    is_made: bool = False
    """Whether the reader makes the configuration out of keys of its own."""
    twice: tuple[str, ...] = ()
    """Keys of its YAML that stand twice in one section, and the line of the last one."""
    refuses_twice: bool = False
    """Whether its reader refuses such a YAML."""
    is_part: bool = False
    """Whether it stands in some program's own file, which may add to it."""
    unknown: frozenset[tuple[str, ...]] = frozenset()
    """Keys that the reader fills in at run time; they are "auto" in `config`."""
    world: int | None = None
    """Ranks, without those that the reader splits a model over."""
    world_because: str = "given"
    per_node: int | None = None
    """Ranks of one node; None where nobody says."""
    mixed_precision: str | None = None
    """Accelerate's, where it is given, as it is given."""
    flags: Mapping[str, Any] = field(default_factory=dict)
    """DeepSpeed's flags of `accelerate launch`."""
    accelerate_file: Mapping[str, Any] | None = None
    """The accelerate YAML, as PyYAML reads it; None: there is none."""
    beside_file: tuple[str, ...] = ()
    """Fields of the accelerate YAML that it refuses beside a `deepspeed_config_file`."""
    launched: str | None = None
    """The ds_config that the launch line names, where it is another file."""
    not_for: str = ""
    """Name of what accelerate runs instead of DeepSpeed, where its YAML says so."""
    layout: ExportedLayout = UNSPLIT
    """For an export or a pipeline: how its script splits the training."""
    refused: tuple[Violation, ...] = ()
    """Violations of the reader, which refuses or overrules keys before DeepSpeed sees them."""

    @property
    def can_write(self) -> bool:
        """Whether a fix may be written: into no file but the one that was named."""
        return self.path == self.asked and self.path.is_file()


def read_source(path: Path, **how: Any) -> Source:
    """The one configuration of a file, with the arguments of `read_sources`.

    Raises:
        RenderError, NotADsConfigError: As in `read_sources`.
        JobError: As there, or the file holds several.
    """
    found = read_sources(path, **how)
    if len(found) > 1:
        places = ", ".join(".".join(one.at) or str(one.path) for one in found)
        raise JobError(
            f"{path}: holds {len(found)} DeepSpeed configurations: {places}",
            "check a file that holds one of them",
        )
    return found[0]


def read_sources(
    path: Path,
    *,
    text: str | None = None,
    world: int | None = None,
    launch: str | None = None,
    accelerate: Path | None = None,
    consumer: Consumer | None = None,
) -> list[Source]:
    """Read the configurations of a file, at least one, and whatever goes with them.

    Args:
        path: A ds_config.json (JSON or Hjson); a file with a `deepspeed` key (a path or the
            section itself) beside Hugging Face arguments; an accelerate YAML; a file of GPT-NeoX
            or Lightning; or any mapping in which sections of DeepSpeed stand, or are named.
            `-` is standard input.
        text: What the file holds, where somebody has read it.
        world: Ranks; comes before what the others say.
        launch: The line that starts the training.
        accelerate: The accelerate YAML.
        consumer: Who reads the configuration, where nothing else tells.

    Raises:
        RenderError: A file cannot be read.
        NotADsConfigError: It can, and holds no DeepSpeed configuration and names none.
        JobError: The launch line or the YAML is not one, or says twice what it says, or a value in
            them is none of those that are allowed there.
    """
    text = read_text(path) if text is None else text
    line = LaunchLine() if launch is None else read_launch(launch)
    if accelerate is None and line.accelerate_config is not None:
        accelerate = _from_line(line.accelerate_config, path)
    if accelerate is not None and _is_same(accelerate, path):
        accelerate = None
    told = {} if accelerate is None else parsed(read_text(accelerate), accelerate).data
    file = AccelerateFile(told, accelerate)
    return [
        _source(
            section,
            path,
            line,
            file,
            has_line=launch is not None,
            world=world,
            given=consumer,
        )
        for section in sections_of(text, path, line, has_accelerate=accelerate is not None)
    ]


def _from_line(name: str, asked: Path) -> Path | None:
    """The accelerate YAML of a launch line, which may be meant for another folder.

    None where a variable names it.
    """
    if "$" in name:
        return None
    if os.path.isfile(name):
        return Path(name)
    above = (folder / name for folder in asked.parents)
    return next((one for one in above if one.is_file()), Path(name))


def _is_same(one: Path, other: Path) -> bool:
    return one == other or (os.path.isfile(one) and os.path.exists(other) and one.samefile(other))


def _source(
    section: ReadConfig,
    asked: Path,
    line: LaunchLine,
    accelerate: AccelerateFile,
    *,
    has_line: bool,
    world: int | None,
    given: Consumer | None,
) -> Source:
    file = section.accelerate or accelerate
    consumer, because = _consumer(given, section, line, has_line, file)
    ranks = line.world or file.n_processes or section.world
    nodes = line.n_nodes or file.n_machines
    reader = section.reader or line.reader or ("TRL" if Path(line.script).name == TRL else "")
    if consumer is Consumer.DEEPSPEED and not reader and _is_lightnings(line.script, asked):
        # Lightning's own arguments stand in the script: what the file lacks is known to it alone.
        made = {name: AUTO for name in lightning.FILLED} | dict(section.config)
        section = replace(
            section,
            config=made,
            is_made=True,
            unknown=frozenset((name,) for name in made if name not in section.config),
        )
        reader, because = "Lightning", f"{line.script} has Lightning's DeepSpeed strategy"
    counted, world_because = _counted(world or ranks, line.split if line.reader else section.split)
    arguments = {**section.arguments, **line.arguments}
    return Source(
        asked=asked,
        path=section.path,
        text=section.text,
        syntax=section.syntax,
        at=section.at,
        document=section.document,
        config=section.config,
        is_made=section.is_made,
        is_part=section.is_part,
        twice=section.twice,
        refuses_twice=section.refuses_twice,
        unknown=section.unknown,
        consumer=consumer,
        because=because,
        reader=reader,
        arguments=arguments,
        own_defaults=_defaults_of(line.script, asked),
        world=counted,
        world_because=world_because,
        per_node=line.per_node
        or (ranks // nodes if ranks and nodes and ranks % nodes == 0 else None),
        mixed_precision=line.mixed_precision or file.mixed_precision,
        flags=line.plugin,
        accelerate_file=None if file.path is None else file.data,
        launched=_another(line.config, section.path),
        beside_file=file.beside_file,
        not_for="" if line.uses_deepspeed else file.not_for,
        layout=section.layout or line.layout or layout_beside(section.path),
        refused=(*section.refused, *refusals(section, consumer, reader, arguments)),
    )


def _is_lightnings(script: str, asked: Path) -> bool:
    found = _script(script, asked)
    return found is not None and uses_lightnings(found)


def _script(name: str, asked: Path) -> Path | None:
    """From where one stands, else from beside the file."""
    near = (Path(name), asked.parent / name)
    return next((one for one in near if one.suffix == ".py" and one.is_file()), None)


def _defaults_of(script: str, asked: Path) -> frozenset[str] | None:
    found = _script(script, asked)
    return None if found is None else own_defaults(found)


def _counted(ranks: int | None, split: int) -> tuple[int | None, str]:
    """The ranks that DeepSpeed counts, and what tells them."""
    if ranks is None or split == 1:
        return ranks, "given"
    if split == 0 or ranks % split:
        return None, "not known: rules that need it say nothing"
    return ranks // split, f"{ranks} ranks, {split} to a model"


def _consumer(
    given: Consumer | None,
    section: ReadConfig,
    line: LaunchLine,
    has_line: bool,
    file: AccelerateFile,
) -> tuple[Consumer, str]:
    """Program that reads it, with the evidence."""
    if given is not None:
        return given, "it was said"
    if section.consumer is not None:
        return section.consumer, section.because
    if line.consumer is not None:
        return line.consumer, "the launch line"
    if file.path is not None:
        return Consumer.ACCELERATE, f"{file.path}"
    if has_line:
        return Consumer.DEEPSPEED, "the launch line"
    where = section.because and f"{section.because}; "
    said = [".".join(path) for path in autos(section.config)]
    # Those of zero_optimization tell nothing: DeepSpeed alone runs with them, too.
    told = [name for name in said if name in _TELLING]
    if told:
        return Consumer.TRAINER, f'{where}"auto" at {told[0]}'
    return Consumer.DEEPSPEED, f'{where}nothing is "auto" that somebody else fills in'


def _another(named: str | None, path: Path) -> str | None:
    """The name, where it is certain to be another file.

    A line may be meant for another folder, and a variable for anything.
    """
    if named is None or "$" in named:
        return None
    there = Path(named)
    if os.path.isfile(there):
        is_same = os.path.exists(path) and there.samefile(path)  # standard input is no file
        return None if is_same else named
    return None if there.name == path.name else named
