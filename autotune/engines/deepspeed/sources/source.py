"""The configuration to check: its text, its place, and what is known of its reader."""

import contextlib
import json
import os
import re
import shlex
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.base.errors import AutotuneError, JobError, RenderError
from autotune.base.flags import flag
from autotune.base.nested import Unknown, look_up
from autotune.base.text import named
from autotune.base.user_text import read_text
from autotune.engines.deepspeed.rules.base import BATCH_KEYS
from autotune.engines.deepspeed.rules.sections import AUTO
from autotune.engines.deepspeed.sources import lightning, openrlhf
from autotune.engines.deepspeed.sources.accelerate import OF_NODES, AccelerateFile, config_of
from autotune.engines.deepspeed.sources.consumers import (
    ARGUMENTS,
    FILLED,
    Consumer,
    autos,
    is_known_value,
)
from autotune.engines.deepspeed.sources.file_rules import violation_of
from autotune.engines.deepspeed.sources.kinds import (
    NotADsConfigError,
    NotFollowedError,
    UnknownNameError,
)
from autotune.engines.deepspeed.sources.launch import LaunchLine, launch_of_words, read_launch
from autotune.engines.deepspeed.sources.layout import UNSPLIT, ExportedLayout, layout_beside
from autotune.engines.deepspeed.sources.programs import PROGRAMS
from autotune.engines.deepspeed.sources.reading import (
    COMMANDS,
    NO_FILE,
    Source,
    as_arguments,
    is_named_by,
    named_path,
    parsed,
    placeholders,
    sections_of,
    trainer_of,
)
from autotune.engines.deepspeed.sources.refusals import (
    ASK_TO_TRAIN,
    MADE,
    device_violations,
    is_programs,
    of_misfit,
    program_refusals,
    refusals,
)
from autotune.engines.deepspeed.sources.script import (
    files_named,
    made_arguments,
    own_defaults,
    pipeline_stages,
    reads_all_arguments,
    reads_first_word,
    refuses_rank_flag,
    trains_with,
    trls_defaults,
    uses_lightnings,
)
from autotune.engines.launches.devices import misfit
from autotune.engines.launches.files import LINE, file_near, is_shell
from autotune.engines.launches.line import (
    TRL,
    Ranks,
    flags_of,
    text_or_none,
    unmet_machines,
    visible_devices,
)
from autotune.engines.launches.shell_words import UNKNOWN
from autotune.space.rule import Consequence, NotJudged, Violation

if TYPE_CHECKING:
    from autotune.engines.launches.shell import Command, ShellText

_EXPANDED = r"\$(?:\{[^}\n]*\}|\(\((?:[^()\n]|\([^()\n]*\))*\)\)|\([^()\n]*\)|\w++)"
_OF_THE_SHELL = re.compile(rf'"(?:[^"\\]|\\.)*+"|([\w.+-]*+(?:{_EXPANDED}[\w.+-]*+)++)', re.DOTALL)
"""A text in quotes; or, as its group, a value outside of them that only the shell knows."""

_TELLING = frozenset(
    name for name in FILLED[Consumer.TRAINER] if not name.startswith("zero_optimization.")
)

_OF_TRAINER_ALONE = frozenset(PROGRAMS["trainer"]["arguments_of_no_other"])
"""Arguments of Trainer that the scripts which call accelerate themselves do not have: those of
transformers' `*_no_trainer.py` and of diffusers take batch, accumulation and learning rate by the
same names."""

_MADE_FROM = frozenset({"deepspeed", "deepspeed_stage", "zero_stage", "enable_deepspeed"})
"""Arguments from which scripts of DeepSpeedExamples, OpenRLHF, open-instruct, BEiT make one."""

_OF_MEGATRON_DEEPSPEED = frozenset(PROGRAMS["megatron_deepspeed"]["flags_of_no_other"])

_AUTO_TELLS = f'"{AUTO}" at'
_NOTHING_TELLS = 'nothing is "auto" that somebody else fills in'


def read(path: str | Path, **how: Any) -> Source:
    """The one configuration of a file, with the arguments of `read_all`.

    Raises:
        RenderError, NotADsConfigError: As in `read_all`; also where DeepSpeed does not train.
        JobError: As there, or the file holds several.
    """
    found = [one for one in read_all(path, **how) if one.has_deepspeed]
    if not found:
        raise NotADsConfigError(Path(path), "a training without DeepSpeed")
    if len(found) > 1:
        places = ", ".join(".".join(one.at) or str(one.path) for one in found)
        n = len(found)
        raise JobError.of("engines.deepspeed.several_sections", path=path, n=n, places=places)
    return found[0]


def read_all(
    path: str | Path,
    *,
    text: str | None = None,
    world: int | None = None,
    launch: str | None = None,
    accelerate: str | Path | None = None,
    consumer: Consumer | None = None,
) -> list[Source]:
    """Read the configurations of a file, at least one, and whatever goes with them.

    Trainings by Trainer without DeepSpeed count as some with an empty configuration.

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
        RenderError: A file cannot be read, or only the shell knows its name: UnknownNameError.
        NotADsConfigError: It can, and holds no DeepSpeed configuration and names none.
        JobError: The launch line or the YAML is not one, or says twice what it says, or a value in
            them is none of those that are allowed there.
    """
    path = Path(path)
    text = read_text(path) if text is None else text
    if path.suffix == ".args":
        text = _script_of_arguments(path) or text
    if path.suffix == ".py":
        command = launch or f"python {shlex.quote(path.name)}"
        try:
            return _of_shell(command, path, world=world, given=consumer)
        except NotADsConfigError as error:
            kind = "a script whose code names no ds_config by a literal"
            raise _not_followed(path, kind, "unread_script") from error
    if path.suffix == ".args" or is_shell(text, path):
        named = (text, path) if launch is None else (launch, path.parent / LINE)
        return _of_shell(*named, world=world, given=consumer)
    line = LaunchLine()
    if launch is not None:
        line = read_launch(launch)
    beside = None if accelerate is None else Path(accelerate)
    asked = _Asked(path=path, line=line, world=world, given=consumer, accelerate=beside)
    try:
        return _read(path, text, asked)
    except NotADsConfigError as error:
        from autotune.engines.launches.jobs import commands_of_job  # as in `_of_shell`

        try:
            return _of_shell(commands_of_job(text, path), path, world=world, given=consumer)
        except NotADsConfigError as other:  # it is no job, or starts nothing of DeepSpeed's
            asked = replace(asked, arguments=path)
            if type(other) is NotADsConfigError and (found := _of_trainer_alone(asked, text)):
                return found
            raise (other if isinstance(other, NotFollowedError) else error) from None


def _not_followed(path: Path, kind: str, row: str, **facts: Any) -> NotFollowedError:
    error = JobError.of(f"engines.deepspeed.{row}", path=path, **facts)
    return NotFollowedError(path, kind, message=error.message, hint=error.hint)


def _script_of_arguments(path: Path) -> str:
    """The start of the script beside a file of arguments that reads it; empty: none does."""
    scripts = (one for one in sorted(path.parent.glob("*.py")) if path.name in files_named(one))
    return next((f"python {shlex.quote(one.name)}" for one in scripts), "")


def _lines(shell: "ShellText") -> Iterator[tuple["Command", LaunchLine]]:
    for command in shell.commands:
        words = [word.text for word in command.words]
        if words[0] not in ("echo", "printf"):
            line = launch_of_words(words, **command.around)
            yield command, replace(line, assumed=command.assumed)


def _with_own_file(line: LaunchLine, asked: Path) -> LaunchLine:
    """The line with the one file with a configuration that its script or a flag of its names.

    Trainer takes the one of its arguments, though accelerate is told another.
    """
    if line.consumer not in (None, Consumer.ACCELERATE) or line.named or line.reader:
        return line
    script = _script(line.script, asked)
    names_any = line.config or line.accelerate_config or line.plugin or line.uses_deepspeed
    texts = (one for one in line.arguments.values() if isinstance(one, str))
    values = [one for one in texts if Path(one).suffix]  # others are names to a program
    found: dict[str, LaunchLine] = {}
    for name in (*(() if script is None else files_named(script)), *values):
        with contextlib.suppress(JobError, RenderError, ValueError):  # a quote does not close
            path, given = named_path(name, script or asked), LaunchLine()
            if path.suffix == ".args":
                words = shlex.split(read_text(path), comments=True)
                given = launch_of_words([str(script), *words])
                path = named_path(given.config or "", path)
            (section, *_) = sections_of(read_text(path), path, line, has_accelerate=False)
            if Consumer.TRAINER in (given.consumer, section.consumer) or not names_any:
                arguments = {**given.arguments, **line.arguments}
                named = replace(line, arguments=arguments, config=None, named=str(path))
                found[str(path)] = named
    made = None if script is None else made_arguments(script, line.arguments)
    if not found and made is not None and not names_any:  # it may not be there
        return replace(line, named=text_or_none(made.known.get("deepspeed")))
    return next(iter(found.values())) if len(found) == 1 else line


def ranks_in(words: Sequence[str], folder: Path) -> tuple[int | None, int]:
    """Ranks that a command starts and their nodes, as far as its words or its shell text say.

    `bash -c TEXT`, `bash FILE` and `./FILE` are read as the launch lines that they hold.

    Args:
        words: The command.
        folder: Where it runs.
    """
    from autotune.engines.launches.shell import read_shell  # as in `_of_shell`

    world, n_nodes = None, 1
    with contextlib.suppress(JobError, RenderError):
        shell = read_shell(shlex.join(words), folder / "command", follows=True)
        for _, line in _lines(shell):
            file = _accelerates_file(line, folder / "command")
            world = world or line.ranks.world or file.n_processes
            n_nodes = max(n_nodes, line.ranks.n_nodes, line.n_nodes or file.n_machines or 1)
    return world, n_nodes


def _of_shell(text: str, path: Path, *, world: int | None, given: Consumer | None) -> list[Source]:
    from autotune.engines.launches.shell import read_shell  # most files need no reader of shells

    found: list[Source] = []
    failed: dict[int, AutotuneError] = {}
    not_judged: dict[int, AutotuneError] = {}
    shell = read_shell(text, path, follows=True)
    for command, started in _lines(shell):
        if not (started.kind or started.script):
            continue
        line = _with_own_file(started, path)
        asked = _Asked(path=path, line=line, world=world, given=given, written=shell.written)
        why = command.unread_because
        unread = [NotJudged(what="what the launch is given", why=why)] if why else []
        try:
            sources = _of_line(asked, text, command.unnamed_because)
        except (JobError, RenderError) as error:
            is_others = isinstance(error, NotADsConfigError) and line.config is None
            is_failed = not (is_others or isinstance(error, UnknownNameError))
            (failed if is_failed else not_judged).setdefault(command.line, error)
            continue
        for one in sources:
            one = replace(one, not_judged=(*one.not_judged, *unread))
            found.append(_at_launch(one, command, shell.lost_below(command)))
    if not found:
        errors = (*failed.values(), *not_judged.values())
        first = min(errors, key=lambda one: type(one) is NotADsConfigError, default=None)
        raise first or _names_none(shell, text, path)
    others = (
        NotJudged(what=f"the launch of line {number}", why=error.message)
        for number, error in (failed | not_judged).items()
    )
    last = replace(found[-1], not_judged=(*found[-1].not_judged, *others))
    return [*found[:-1], replace(last, failed_launches=tuple(failed.values()))]


def _names_none(shell: "ShellText", text: str, path: Path) -> NotADsConfigError:
    """The error for a shell file that names no configuration: a script's code may make it."""
    kind = "a shell file without a launch line that names one"
    for command, line in _lines(shell):
        script = "the script" if UNKNOWN.search(line.script) else line.script or "the script"
        refuse = partial(_not_followed, path, kind, line=command.line, script=script)
        if line.kind and line.open_words and "deepspeed" in text:
            hint = command.unnamed_because or f"say the launch with {flag('launch')}"
            return refuse("open_launch", words=named(line.open_words), hint=hint)
        flags = _OF_MEGATRON_DEEPSPEED & line.arguments.keys()
        if line.kind and flags and "deepspeed" not in line.arguments:
            return refuse("lacks_deepspeed", flag=min(flags).replace("_", "-"))
        if line.kind == "deepspeed" or _MADE_FROM & line.arguments.keys():
            return refuse("made_by_code")
        of_megatron = ("pretrain_gpt.py", "--tensor-model-parallel-size")
        if line.kind and any(word.text.endswith(of_megatron) for word in command.words):
            hint = f"add {flag('engine')} megatron"
            return NotADsConfigError(path, "a launch of Megatron-LM", hint=hint)
    return NotADsConfigError(path, kind)


def _of_line(asked: "_Asked", text: str, unread: str) -> list[Source]:
    """The configurations of one launch line of a shell file; empty: it names none."""
    line = asked.line
    name = line.config
    if line.reader == openrlhf.READER:
        config = openrlhf.config_of(line.arguments)
        made = Source(
            path=asked.path,
            text=text,
            syntax="shell",
            config=config,
            is_made=True,
            unknown=frozenset((key,) for key, value in config.items() if value == AUTO),
            is_guessed=False,
            because=f"{line.script} makes it of its arguments",
            reader=line.reader,
            world=openrlhf.world_of(line.arguments),
        )
        return [_source(made, asked, NO_FILE)]
    if name is None and line.named is not None:
        try:
            return _of_named(line.named, asked, unread)
        except NotADsConfigError:  # arguments alone: accelerate is told the rest
            asked = replace(asked, arguments=named_path(line.named, asked.path))
    elif line.named is not None:  # the line's own flag names the configuration
        with contextlib.suppress(RenderError):
            asked = replace(asked, arguments=named_path(line.named, asked.path))
    name = name or line.accelerate_config
    if name is None and (line.plugin or line.uses_deepspeed):  # accelerate's flags say it all
        config = config_of(NO_FILE, line.plugin)
        made = Source(path=asked.path, text=text, syntax="shell", config=config, is_made=True)
        return [_source(made, asked, NO_FILE)]
    try:
        found = [] if name is None else _of_named(name, asked, unread)
    except NotADsConfigError:
        if found := _of_trainer_alone(asked, text):
            return found
        raise
    return found or _of_trainer_alone(asked, text)


def _of_trainer_alone(asked: "_Asked", text: str) -> list[Source]:
    """The training of a line, or of a file of arguments, without DeepSpeed; empty: none is seen.

    A file alone is taken as its program's own command starts it. It may have DeepSpeed where
    accelerate is told elsewhere, or not all arguments are seen.
    """
    line, named = asked.line, asked.arguments
    script, program = _script(line.script, asked.path), Path(line.script).name
    data = {} if named is None else parsed(read_text(named), named).data
    given = {**data, **line.arguments}
    reader, is_command = trainer_of(given, line.started), line.started in COMMANDS
    if not is_command and not (
        trains_with(script) if script is not None else program or is_programs(data, reader)
    ):
        return []  # a file may be anybody's, and a script that is there is its user's own
    trains = given.get("do_train") is True or reader not in ASK_TO_TRAIN
    evidence = _trainers_evidence(line, script, [*line.arguments]) if program else ""
    if is_command:
        evidence = line.started
    elif reader and trains and ("train" in program or not program):
        evidence = f"{named or 'the launch line'} has arguments of {reader}"
    if not evidence or "global_batch_size" in given:  # Megatron's, with which ms-swift trains, too
        return []
    file = _accelerates_file(line, asked.path, asked.accelerate)
    instead = line.runs_instead or file.not_for
    is_told = instead == "FSDP" or given.get("fsdp") or (reader and given.get("fsdp_config"))
    is_read = script is not None and reads_all_arguments(script)
    is_told_all = line.kind != "accelerate" or instead
    starts = is_command or (is_told_all and is_read if program else reader in MADE)
    is_open = line.open_words or given.get("accelerate_config")  # TRL's, of any engine
    is_open = is_open or any(name.startswith("ACCELERATE_USE_") for name in line.set)
    made = Source(
        path=asked.path,
        text=text,
        syntax="shell" if is_shell(text, asked.path) else "yaml",
        config={},
        is_made=True,
        has_deepspeed=None if not is_told and (is_open or not starts) else False,
        consumer=Consumer.TRAINER,
        is_guessed=False,
        because=evidence,
    )
    return [_source(made, asked, file)]


def _at_launch(source: Source, command: "Command", lost: "Command | None") -> Source:
    source = replace(source, launch_at=(command.placed, command.line))
    flags = dict(flags_of([word.text for word in lost.words] if lost else []))
    if blank := command.blank_in:
        found = [violation_of("file.blank_word", f"@{command.line}", where=blank)]
    elif lost is None:
        return source
    else:
        cost, fix = lost.cost_of_lost, lost.fix_of_lost
        found = [violation_of("file.lost_line", f"@{lost.line}", cost=cost, fix=fix)]
    return replace(source, lost=frozenset(flags), refused=(*source.refused, *found))


def _of_named(name: str, asked: "_Asked", unread: str) -> list[Source]:
    """The configurations of a file that a launch line names, or that its shell file writes."""
    written = asked.written.get(os.path.normpath(name))
    if isinstance(written, str):
        if written.lstrip().startswith("{"):
            written = _OF_THE_SHELL.sub(
                lambda one: json.dumps(one[1]) if one[1] else one[0], written
            )
        found = _read(Path(name), written, asked)
        # Its lines are those of the shell file, which is not edited: variables stand in it.
        document = f"a here-document ({name})"
        return [replace(one, path=asked.path, document=document) for one in found]
    if UNKNOWN.search(name) or written is not None:
        why = written.why if written else unread or f"say the launch with {flag('launch')}"
        row = "engines.deepspeed.only_the_shell_knows"
        raise UnknownNameError.of(row, path=asked.path, name=name, why=why)
    try:
        path = named_path(name, asked.path)
    except RenderError as error:
        if not unread:
            raise
        raise UnknownNameError(error.message, unread) from error
    return _read(path, read_text(path), asked)


def _beside(source: Source, path: Path) -> Source:
    """A configuration with the arguments of a file that the launch line names beside it."""
    data = parsed(read_text(path), path).data
    return replace(
        source,
        arguments={**as_arguments(data), **source.arguments},
        arguments_path=path,
        reader=source.reader or trainer_of(data),
    )


@dataclass(frozen=True, kw_only=True)
class _Asked:
    path: Path
    """It; a configuration that it names may stand in another one."""
    line: LaunchLine
    world: int | None
    given: Consumer | None
    accelerate: Path | None = None
    arguments: Path | None = None
    """The file of Trainer's arguments that the line names beside it."""
    written: Mapping[str, str | Unknown] = field(default_factory=dict)
    """As of `ShellText.written`."""


def _read(path: Path, text: str, asked: _Asked) -> list[Source]:
    file = _accelerates_file(asked.line, path, asked.accelerate)
    sections = sections_of(text, path, asked.line, has_accelerate=file.path is not None)
    return [_source(section, asked, file) for section in sections]


def _accelerates_file(line: LaunchLine, base: Path, given: Path | None = None) -> AccelerateFile:
    """The accelerate YAML that is given or that a line names, but for `base` or a variable's."""
    name = line.accelerate_config or "$"
    path = given or (None if "$" in name else named_path(name, base))
    if path is None or path.resolve() == base.resolve():
        return NO_FILE
    return AccelerateFile(parsed(read_text(path), path).data, path)


def _source(section: Source, asked: _Asked, accelerate: AccelerateFile) -> Source:
    if asked.arguments is not None:
        section = _beside(section, asked.arguments)
    file = section.accelerate if section.accelerate.path is not None else accelerate
    line, world = asked.line, asked.world
    script = _script(line.script, asked.path)
    consumer, because = _consumer(asked.given, section, line, script, file)
    ranks = line.ranks.world or file.n_processes or section.world
    nodes = line.n_nodes or file.n_machines
    lost = []
    if not world and ranks and nodes and ranks > nodes and ranks % nodes:
        facts: dict[str, Any] = {"ranks": ranks, "machines": nodes}
        ranks -= ranks % nodes
        key = () if line.ranks.world else ("num_processes",)
        lost = [violation_of("accelerate.processes", *key, started=ranks, **facts)]
    reader = section.reader or line.reader or ("TRL" if Path(line.script).name == TRL else "")
    is_guessed = because.endswith(_NOTHING_TELLS)
    if is_guessed and not reader and script is not None and uses_lightnings(script):
        # Lightning's own arguments stand in the script: what the file lacks is known to it alone.
        made = {name: AUTO for name in lightning.FILLED} | dict(section.config)
        is_guessed, refuses = False, lightning.ACCUMULATION in section.config
        section = replace(
            section,
            config=made,
            is_made=True,
            refused=(violation_of("lightning.accumulation"),) if refuses else (),
            unknown=frozenset((name,) for name in made if name not in section.config),
        )
        reader, because = "Lightning", f"{line.script} has Lightning's DeepSpeed strategy"
    counts = {
        "given": world,
        f"the launch line{line.ranks.by_default}": line.ranks.world,
        f"{file.path}": file.n_processes,
    }
    tells = next((place for place, count in counts.items() if count), f"{section.path}")
    split = line.split if line.reader else section.split
    stages = None if script is None else pipeline_stages(script, line.arguments)
    split = 0 if stages == 0 else split
    counted, world_because = _counted(world or ranks, split, tells)
    made_there = None if script is None else made_arguments(script, line.arguments)
    defaults = None if script is None else own_defaults(script)
    line_arguments = line.arguments
    if made_there is not None:
        given_there = line.arguments if made_there.unknown is None else {}
        defaults, line_arguments = made_there.unknown, {**given_there, **made_there.known}
    arguments = {**section.arguments, **line_arguments}
    if script is not None and defaults is not None and not line.open_words:
        unread = (made_there and made_there.unknown) or ()
        arguments = {**trls_defaults(script, arguments, unread), **arguments}
    of_script = ExportedLayout(pp=stages) if stages else None
    layouts = (section.layout, line.layout, of_script, layout_beside(section.path))
    layout = next((one for one in layouts if one not in (None, UNSPLIT)), None) or layouts[-1]
    no_gpus = arguments.get("use_cpu"), arguments.get("no_cuda"), file.data.get("use_cpu")
    is_for_cpu = any(one is True for one in no_gpus)
    is_whole = ranks and nodes and ranks % nodes == 0
    is_seen = script is None or trains_with(script) is not False
    source = replace(
        section,
        asked=asked.path,
        line=line,
        script=script,
        accelerate=file,
        consumer=consumer,
        because=because,
        is_guessed=is_guessed,
        reader=reader,
        arguments=arguments,
        unknown=section.unknown | frozenset(placeholders(section.config)),
        own_defaults=None if line.open_words else defaults,
        is_trainers=consumer is Consumer.TRAINER or (None if is_seen else False),
        arguments_unread=_why_unread(line, script, reader),
        world=counted,
        split=split,
        world_because=world_because,
        per_node=line.ranks.per_node or (ranks // nodes if ranks and nodes and is_whole else None),
        layout=layout,
        accelerator=layout.accelerator or line.accelerator or ("cpu" if is_for_cpu else None),
    )
    not_judged = (
        *_unread_filler(source),
        *_unread_trainer(source),
        *(_unknown_ranks(source) if line.script and not (world or ranks) else ()),
        *_unread_devices(source),
        *_without_deepspeed(source),
        *_unread_file(source, line_arguments),
        *_untold_ranks(source),
        *(one for one in program_refusals(source) if isinstance(one, NotJudged)),
    )
    on_a_node = source.per_node or (None if nodes else ranks)
    devices = _of_devices(source, line.ranks.of(ranks, on_a_node), nodes)
    refused = (*section.refused, *refusals(source), *devices, *_of_rank_flag(source), *lost)
    return replace(source, not_judged=not_judged, refused=refused)


def _of_rank_flag(source: Source) -> Iterator[Violation]:
    """A script that does not take the `--local_rank=N` which DeepSpeed's launcher adds."""
    line, script = source.line, source.script
    if line.kind != "deepspeed" or "no_local_rank" in line.launcher_flags:
        return
    is_first = line.named is not None and line.arguments.get("config") != line.named
    if script is not None and refuses_rank_flag(script):
        problem = f"{line.script} has a parser without this flag, and ends"
    elif is_first and (source.reader == "LLaMA-Factory" or reads_first_word(script)):
        problem = (
            f"{line.script} takes its first word for the file, and does not read {line.named}"
        )
    else:
        return
    yield violation_of("file.local_rank", problem=problem)


def _of_devices(source: Source, ranks: Ranks, nodes: int | None) -> Iterator[Violation]:
    """Violations of the devices that a launch, or the YAML of accelerate, leaves visible."""
    line, file = source.line, source.accelerate
    is_accelerates = line.kind == "accelerate" or file.path is not None
    visible = line.visible or visible_devices(file.data if is_accelerates else {})
    by_node = {**file.section, **line.plugin}
    ranks = replace(ranks, left_nodes=0) if by_node.get(OF_NODES[1]) else ranks  # pdsh starts them
    if source.accelerator != "cpu":
        yield from device_violations(ranks, line, visible)
    is_alone = by_node.get(OF_NODES[0]) in (None, "pdsh") and not by_node.get(OF_NODES[1])
    is_other = file.path is None or file.not_for or "multi_gpu" in line.launcher_flags
    starts_deepspeed = line.uses_deepspeed or not is_other
    if not (is_accelerates and starts_deepspeed and (nodes or 1) > 1 and line.is_whole):
        return
    if is_alone:
        names = " or ".join(OF_NODES)
        yield of_misfit(misfit("no_hosts", nodes=nodes, names=names, first=OF_NODES[0]))
    why = unmet_machines(line.launcher_flags, file.data, ranks)
    if why and line.kind and by_node.get(OF_NODES[0]) == "standard":
        # Without a file on the line, one of the user's own may say the rest.
        surely: Consequence = "raised" if ranks.starter or file.path else "may_raise"
        yield of_misfit(misfit("unmet_machines", surely, why=why))


def _unread_filler(source: Source) -> Iterator[NotJudged]:
    """Who fills in "auto", where neither the script of a line nor accelerate's YAML tells."""
    name = source.line.script
    if (name or source.accelerate.path) and source.because.startswith(_AUTO_TELLS):
        is_there = source.script is not None
        seen = "is not seen to train with Trainer" if is_there else "is not there to be read"
        why = f"{name} {seen}" if name else f"give the line with {flag('launch')}"
        yield NotJudged(what=f'who fills in "{AUTO}"', why=why)


def _unknown_ranks(source: Source) -> Iterator[NotJudged]:
    """The ranks of a launch that does not say them, where the batch sizes make some."""
    if all(type(source.config.get(name)) is int for name in BATCH_KEYS):
        why = f"the batch sizes are right for one: give it with {flag('world')}"
        yield NotJudged(what="the number of ranks", why=why)


def _without_deepspeed(source: Source) -> Iterator[NotJudged]:
    """What no rule here knows of a training without DeepSpeed, or one that may be."""
    if source.has_deepspeed is None:
        why = f"give the line that starts it, and its files, with {flag('launch')}"
        yield NotJudged(what="whether DeepSpeed trains", why=why)
    elif not source.has_deepspeed and source.fsdp:
        yield NotJudged(what="the settings of FSDP", why="no rule knows what torch does with them")


def _unread_devices(source: Source) -> Iterator[NotJudged]:
    """Devices of a hostfile that is not there, or of a node that a program asks itself.

    launcher/runner.py: fetch_hostfile.
    """
    line, flags = source.line, source.line.launcher_flags
    is_read = line.ranks.reaches_nodes or "no_ssh" in flags
    if line.kind == "deepspeed" and "hostfile" in flags and not is_read:
        why = "the file is not read, without which DeepSpeed's launcher starts this node alone"
        yield NotJudged(what="the nodes of --hostfile", why=why)
    n_nodes = None if "hostfile" in flags else flags.get("num_nodes")
    if line.kind == "deepspeed" and type(n_nodes) is int and n_nodes > 1:
        why = "the line names no --hostfile, and without that file DeepSpeed's launcher refuses it"
        yield NotJudged(what="the nodes of /job/hostfile", why=why)
    is_alone = not line.kind and line.visible is None and line.ranks.world == 1
    if Path(line.script).name == "swift" and source.has_deepspeed and is_alone:
        why = "the line does not set it: where it sees several devices, ms-swift refuses DeepSpeed"
        yield NotJudged(what="NPROC_PER_NODE", why=why)
    is_alone = not line.kind and line.visible is None and source.per_node == 1
    is_factorys = Path(line.script).name == "llamafactory-cli" and source.has_deepspeed
    if is_factorys and is_alone and not {"FORCE_TORCHRUN", "USE_RAY", "USE_KT"} & line.set.keys():
        why = "LLaMA-Factory starts no torchrun where it sees one alone, and DeepSpeed needs that"
        yield NotJudged(what="the devices of the node", why=why)
    for name in ("NPROC_PER_NODE", "FORCE_TORCHRUN"):
        if COMMANDS.get(line.started) in MADE and line.set.get(name) == f"${name}":
            yield NotJudged(what=name, why="a file that is sourced and not read may set it")


def _unread_trainer(source: Source) -> Iterator[NotJudged]:
    """Arguments that Trainer would refuse beside the file, where the script is not there."""
    line = source.line
    if source.consumer is not Consumer.ACCELERATE or source.script or not line.script:
        return
    differing = [
        f"--{one.name}"
        for one in ARGUMENTS
        if is_known_value(one.name, given := line.arguments.get(one.name))
        and look_up(source.config, one.key) not in (None, AUTO, given)
    ]
    if differing:
        why = f"{line.script} is not there to be read: Trainer refuses values that differ"
        yield NotJudged(what=f"{', '.join(differing)} against the file", why=why)


def _unread_file(source: Source, arguments: Mapping[str, Any]) -> Iterator[NotJudged]:
    """The file that a script hands to Trainer, where another one is read here."""
    named = arguments.get("deepspeed")
    is_handed = source.consumer is Consumer.TRAINER and isinstance(named, str)
    if is_handed and not is_named_by(str(named), source.path):
        why = "the script hands it to Trainer, which takes it first"
        yield NotJudged(what=str(named), why=f"{why}: check it with {flag('launch')}")


def _untold_ranks(source: Source) -> Iterator[NotJudged]:
    """The ranks of tasks where no line sets them, and no script or Lightning does."""
    script = source.script
    is_own = source.reader == "Lightning" or (script is not None and "SLURM_" in read_text(script))
    ranks, is_deepspeeds = source.line.ranks, source.consumer is Consumer.DEEPSPEED
    asks = "DeepSpeed then asks mpi4py for it" if is_deepspeeds else "accelerate then ends"
    is_known = is_deepspeeds and ranks.starter == "mpirun"  # by mpi4py
    if ranks.lacks_ranks is not False and not (is_own or is_known):
        why = f"{ranks.starter} does not set it, and no line does: {asks}"
        yield NotJudged(what="RANK of each task", why=why)


def _why_unread(line: LaunchLine, script: Path | None, reader: str) -> str:
    """Why an argument that neither a line nor a file gives is not known."""
    if line.open_words:
        return f"only the shell knows {', '.join(line.open_words)}"
    if script is not None:
        return f"{line.script} sets them in its own way"
    if line.script.endswith(".py"):
        return f"{line.script} is not there to be read"
    return (
        f"{reader} has defaults of its own" if reader else f"give the line with {flag('launch')}"
    )


def _script(name: str, asked: Path) -> Path | None:
    """From where one stands, else from beside the file."""
    return file_near(name, asked.parent) if name.endswith(".py") else None


def _counted(ranks: int | None, split: int, tells: str) -> tuple[int | None, str]:
    if ranks is None or split == 0 or ranks % split:
        return None, "not known: rules that need it say nothing"
    return ranks // split, tells if split == 1 else f"{ranks} ranks, {split} to a model"


def _consumer(
    given: Consumer | None,
    section: Source,
    line: LaunchLine,
    script: Path | None,
    file: AccelerateFile,
) -> tuple[Consumer, str]:
    if given is not None:
        return given, "it was said"
    if not section.is_guessed:
        return section.consumer, section.because
    if line.consumer in (Consumer.TRAINER, Consumer.DEEPSPEED):
        return line.consumer, "the launch line"
    is_by_accelerate = line.consumer is not None or file.path is not None
    names = (*line.arguments, *section.arguments) if is_by_accelerate else ()
    if evidence := _trainers_evidence(line, script, names):
        return Consumer.TRAINER, evidence
    if is_by_accelerate:
        key = auto_that_tells(
            section.config, FILLED[Consumer.TRAINER] - FILLED[Consumer.ACCELERATE]
        )
        if key and script is None:
            return Consumer.TRAINER, f"{_AUTO_TELLS} {key}, which accelerate alone refuses"
        return Consumer.ACCELERATE, f"{file.path}" if line.consumer is None else "the launch line"
    where = section.because and f"{section.because}; "
    if evidence := auto_that_tells(section.config):
        return Consumer.TRAINER, f"{where}{_AUTO_TELLS} {evidence}"
    return Consumer.DEEPSPEED, f"{where}{_NOTHING_TELLS}"


def _trainers_evidence(line: LaunchLine, script: Path | None, names: Sequence[str]) -> str:
    """What tells that a script trains with Trainer, also arguments; empty: nothing does."""
    if script is not None and (trainer := trains_with(script)) is not None:
        return f"{line.script} trains with Trainer" if trainer else ""
    argument = next((name for name in names if name in _OF_TRAINER_ALONE), "")
    where = "the launch line" if argument in line.arguments else "its file of arguments"
    return f"--{argument} of {where}" if argument else ""


def auto_that_tells(config: Mapping[str, Any], telling: Container[str] = _TELLING) -> str:
    """The first key whose "auto" Trainer fills in; empty where there is none.

    Those of zero_optimization tell nothing: DeepSpeed alone runs with them, too.
    """
    names = (".".join(path) for path in autos(config))
    return next((name for name in names if name in telling), "")
