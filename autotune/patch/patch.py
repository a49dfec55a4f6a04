"""A file of the user's that carries a candidate: what changes, what it cannot carry, the text."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from autotune.base.errors import JobError, RenderError
from autotune.base.files import write_text
from autotune.base.secrecy import withheld
from autotune.base.user_text import STANDARD_INPUT, read_text
from autotune.check.diff import text_diff
from autotune.check.written import edited_as
from autotune.engines.deepspeed.sources.accelerate_names import FLAGS, KEYS
from autotune.engines.deepspeed.sources.consumers import Consumer
from autotune.engines.deepspeed.sources.kinds import NotADsConfigError
from autotune.engines.deepspeed.sources.launch import LaunchLine
from autotune.engines.deepspeed.sources.reading import (
    has_arguments,
    parsed,
    trainer_of,
)
from autotune.engines.deepspeed.sources.source import Source, launches_in, read_sources
from autotune.engines.launches.shell import Command, is_shell, read_shell
from autotune.patch.arguments import ArgumentChanges, of_script
from autotune.patch.configs import ConfigChanges, config_changes
from autotune.patch.line import edited_line
from autotune.patch.wanted import IN_CODE, FileChange, Left, Wanted
from autotune.trial.guest.edits import value_at

_FIELDS = {key: name for name, key in KEYS.items()}
"""Key of a ds_config -> what accelerate's section calls it."""
_SECTION = "deepspeed_config"
_MOST_ROUNDS = 3
"""Times that a file is looked at again; what it says after the first change nothing."""


@dataclass(frozen=True, kw_only=True)
class Patched:
    """A file, and what it is to hold."""

    path: Path
    before: str
    after: str
    changes: tuple[FileChange, ...]
    left: tuple[Left, ...]
    """What it cannot carry, and where that belongs."""
    known: tuple[str, ...] = ()
    """Secrets that stand in it."""

    @property
    def is_changed(self) -> bool:
        """Whether there is anything to write."""
        return self.before != self.after

    @cached_property
    def diff(self) -> str:
        """The change as a unified diff, secrets masked; empty where there is none."""
        return text_diff(str(self.path), self.before, self.after, self.known)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "file": str(self.path),
            "diff": self.diff,
            "changes": [str(change) for change in self.changes],
            "left": [{"what": one.what, "place": one.place} for one in self.left],
        }


def patched(path: Path, wanted: Wanted, *, others: Sequence[Path] = ()) -> Patched:
    """What a file has to hold to carry a candidate; nothing is written.

    Args:
        path: A ds_config, an accelerate YAML, a file of arguments, or a shell file.
        wanted: The candidate.
        others: Files that are patched, too: what belongs there is not told.

    Raises:
        RenderError: The file cannot be read, or its text cannot be changed.
        JobError: It is none that is patched.
    """
    if path == STANDARD_INPUT:
        raise JobError("--patch -: standard input is no file to write", "name a file")
    if path.suffix == ".py":
        raise JobError(
            f"--patch {path}: code is not edited",
            "name a ds_config, an accelerate YAML, a file of training arguments, or a shell file "
            "that starts it",
        )
    text = before = read_text(path)
    changes, left = _changes(path, text, wanted)
    told = [change for change in changes if _is_same(change.path, path)]
    for _ in range(_MOST_ROUNDS):
        text = _edited(path, text, [one for one in changes if _is_same(one.path, path)])
        changes, left = _changes(path, text, wanted)
        if not any(_is_same(one.path, path) for one in changes):
            break
    else:
        raise RenderError(
            f"{path}: after the change it still does not say {changes[0]}",
            "write it by hand, or export to a new folder with --out",
        )
    elsewhere = [one for one in changes if not any(_is_same(one.path, p) for p in (path, *others))]
    left += [Left(what=str(one), place=_place(one)) for one in elsewhere]
    return Patched(
        path=path,
        before=before,
        after=text,
        changes=tuple(told),
        left=tuple(dict.fromkeys(left)),
        known=() if is_shell(before, path) else tuple(withheld(_data(path, before))),
    )


def patched_all(paths: Sequence[Path], wanted: Wanted) -> list[Patched]:
    """Several files of one training, each as of `patched`."""
    found = [patched(path, wanted, others=paths) for path in paths]
    telling = next((one for one in found if _has_arguments(one)), None)
    if telling is None:
        return found
    # What another file cannot carry, the file of the arguments may.
    return [
        one
        if one is telling or one.path.name not in telling.before
        else replace(one, left=tuple(left for left in one.left if left in telling.left))
        for one in found
    ]


def _has_arguments(one: Patched) -> bool:
    """Whether a file carries the arguments of the script, and names the configuration."""
    if is_shell(one.before, one.path):
        return True
    return isinstance(_data(one.path, one.before).get("deepspeed"), str)


def write_patched(patch: Patched) -> None:
    """Write a file that was patched in place of the one that was read.

    Raises:
        RenderError: The folder cannot be written to, or the file changed meanwhile.
    """
    path = patch.path.resolve()
    if read_text(path) != patch.before:
        raise RenderError(f"{patch.path}: changed since its diff was made", "run it again")
    write_text(path, patch.after, error=RenderError, hint="check the folder", makes_folder=False)


def _place(change: FileChange) -> str:
    return f"{change.path}: --patch {change.path} writes it there"


def _is_same(one: Path, other: Path) -> bool:
    return one == other or (one.exists() and other.exists() and os.path.samefile(one, other))


def _data(path: Path, text: str) -> dict[str, Any]:
    return parsed(text, path).data


def _edited(path: Path, text: str, changes: Sequence[FileChange]) -> str:
    """The text after changes of it."""
    if not changes:
        return text
    if is_shell(text, path):
        (command, _), shell = _the_launch(text, path), read_shell(text, path)
        return edited_line(text, shell, command, changes)
    found = parsed(text, path)
    wanted = found.data
    for change in changes:
        wanted = _put(wanted, change.at, change.value, path)
    after = edited_as(found.syntax, text, wanted)
    if after is None:
        raise RenderError(
            f"{path}: its text cannot be changed there with every comment and alias kept",
            f"write it by hand: {'; '.join(map(str, changes))}",
        )
    return after


def _put(data: Mapping[str, Any], at: tuple[str, ...], value: Any, path: Path) -> dict[str, Any]:
    """Data with another value at a place; None: without the key."""
    name, below = at[0], at[1:]
    after = dict(data)
    if below:
        inner = after.get(name)
        if inner is not None and not isinstance(inner, Mapping):
            kind = "a list" if isinstance(inner, list) else "no section"
            raise RenderError(f"{path}: {name} is {kind} there", "make it a section, or a file")
        after[name] = _put(inner or {}, below, value, path)
    elif value is None:
        after.pop(name, None)
    else:
        after[name] = value
    return after


def _the_launch(text: str, path: Path) -> tuple[Command, LaunchLine]:
    found = launches_in(text, path)
    if len(found) != 1:
        many = (
            f"{len(found)} launch lines" if found else "no launch line that names a configuration"
        )
        raise JobError(f"{path}: has {many}", "name a file with one, or the ds_config itself")
    return found[0]


def _changes(path: Path, text: str, wanted: Wanted) -> tuple[list[FileChange], list[Left]]:
    if any(_is_same(path, own) for own in wanted.own_files):
        return _of_own_files(path, text, wanted)
    line = None
    if is_shell(text, path):
        if wanted.own_files and not launches_in(text, path):
            return _of_own_files(path, text, wanted)  # the line that starts the command
        line = _the_launch(text, path)[1]
    try:
        sources = read_sources(path, text=text)
    except NotADsConfigError:
        found = {} if line is not None else _data(path, text)
        if line is not None or not has_arguments(found):
            raise
        return _of_arguments_alone(path, found, wanted)
    if len(sources) > 1:
        places = ", ".join(".".join(one.at) or str(one.path) for one in sources)
        raise JobError(
            f"{path}: holds {len(sources)} DeepSpeed configurations: {places}",
            "name a file that holds one of them",
        )
    return _PatchPlan(path, text, sources[0], line, wanted).made()


def _of_own_files(path: Path, text: str, wanted: Wanted) -> tuple[list[FileChange], list[Left]]:
    """The files that a command of the user's takes its configuration from, by any flag."""
    data = {} if is_shell(text, path) else _data(path, text)
    changes = [
        replace(change, path=path if _is_same(path, own) else own)
        for own, all_changes in wanted.own_files.items()
        for change in all_changes
        if not _is_same(path, own) or value_at(data, change.at) != change.value
    ]
    left = [*wanted.own_left, *of_script(wanted, has_arguments=True), *_in_environment(wanted)]
    return changes, left


def _of_arguments_alone(
    path: Path, data: Mapping[str, Any], wanted: Wanted
) -> tuple[list[FileChange], list[Left]]:
    """A file of arguments that names no ds_config: what belongs into one is told."""
    made = ArgumentChanges(data, trainer_of(data), wanted, has_optimizer=False)
    keys = config_changes({}, wanted, Consumer.TRAINER, path).keys
    place = f"a ds_config that {path.name} names under `deepspeed`"
    batch = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    left = [
        Left(what=str(FileChange(path=path, at=(key,), value=value)), place=place)
        for key, value in keys.items()
        if key not in batch
    ]
    changes = [FileChange(path=path, at=(name,), value=v) for name, v in made.names.items()]
    left += [*made.left, *of_script(wanted, has_arguments=True), *_in_environment(wanted)]
    return changes, left


def _in_environment(wanted: Wanted) -> Iterator[Left]:
    for name, value in wanted.variables.items():
        yield Left(what=f"{name}={value}", place="the environment of the ranks")
    if wanted.candidate.get("core_binding") == "ranks":
        yield Left(
            what="core_binding=ranks",
            place="what starts the ranks: numactl, or DeepSpeed's "
            "launcher with --bind_cores_to_rank",
        )


class _PatchPlan:
    """Where each value belongs, by what the file and those that it names say."""

    def __init__(
        self, path: Path, text: str, source: Source, line: LaunchLine | None, wanted: Wanted
    ) -> None:
        self._path, self._text, self._source = path, text, source
        self._line, self._wanted = line, wanted
        self._changes: list[FileChange] = []
        self._left: list[Left] = []
        self._refuse()

    def made(self) -> tuple[list[FileChange], list[Left]]:
        source = self._source
        found = config_changes(source.config, self._wanted, source.consumer, source.path)
        self._config(found)
        has_own = self._has_arguments()
        if has_own:
            self._arguments(found)
        else:
            self._without_arguments(found)
        self._left += of_script(self._wanted, has_arguments=has_own)
        self._environment()
        return self._changes, self._left

    def _refuse(self) -> None:
        source = self._source
        if source.document:
            raise JobError(f"{self._path}: holds several documents", "give each its own file")
        if any(name.startswith("[") for name in source.at):
            raise JobError(
                f"{self._path}: its configuration stands in a list, at {'.'.join(source.at)}",
                "name the ds_config itself",
            )
        is_accelerates = source.at == (_SECTION,) or source.syntax == "shell"
        if source.is_made and not is_accelerates:
            raise JobError(
                f"{self._path}: {source.reader} makes the configuration from keys of its own",
                "name the ds_config itself, or export to a new folder with --out",
            )

    def _config(self, found: ConfigChanges) -> None:
        source = self._source
        for key, value in found.keys.items():
            if not source.is_made:
                at = (*source.at, *key.split("."))
                self._changes.append(FileChange(path=source.path, at=at, value=value))
                continue
            field = _FIELDS.get(key)
            is_flag = source.syntax == "shell" and field in FLAGS
            if field is None or (source.syntax == "shell" and not is_flag) or value is None:
                said = str(FileChange(path=source.path, at=(key,), value=value))
                self._left.append(
                    Left(
                        what=said,
                        place="a ds_config that deepspeed_config_file names: accelerate has no "
                        "word for it",
                    )
                )
            elif is_flag:
                self._changes.append(
                    FileChange(path=self._path, at=(field,), value=value, of="launcher")
                )
            else:
                self._changes.append(
                    FileChange(path=source.path, at=(_SECTION, field), value=value)
                )

    def _has_arguments(self) -> bool:
        if self._source.arguments_path is not None:
            return True
        return self._line is not None and (
            self._source.consumer is Consumer.TRAINER or has_arguments(self._line.arguments)
        )

    def _arguments(self, found: ConfigChanges) -> None:
        source, flags = self._source, dict(self._line.arguments) if self._line else {}
        inside: Mapping[str, Any] = {}
        if source.arguments_path is not None:
            is_own = _is_same(source.arguments_path, self._path)
            text = self._text if is_own else read_text(source.arguments_path)
            inside = _data(source.arguments_path, text)
            for name in source.arguments_at:
                inside = inside[name]
        given = {**inside, **flags}
        made = ArgumentChanges(
            given, source.reader, self._wanted, has_optimizer=found.has_optimizer
        )
        for name, value in made.names.items():
            if source.arguments_path is None or name in flags:
                self._changes.append(
                    FileChange(path=self._path, at=(name,), value=value, of="script")
                )
            else:
                at = (*source.arguments_at, name)
                self._changes.append(FileChange(path=source.arguments_path, at=at, value=value))
        self._left += made.left
        if source.consumer is Consumer.ACCELERATE and source.is_made:
            self._accumulation(found)

    def _without_arguments(self, found: ConfigChanges) -> None:
        candidate, consumer = self._wanted.candidate, self._source.consumer
        if consumer is Consumer.TRAINER:
            sizes = {
                "micro_batch": ("per_device_train_batch_size", candidate.micro_batch),
                "grad_accum": ("gradient_accumulation_steps", candidate.grad_accum),
            }
            for knob in () if self._wanted.keeps_batch else found.left_to_arguments:
                name, size = sizes[knob]
                is_in_code = name in self._wanted.in_code
                place = IN_CODE if is_in_code else f"the Trainer's arguments: --{name} {size}"
                self._left.append(Left(what=f"{name}={size}", place=place))
        elif "micro_batch" in found.left_to_arguments and not self._wanted.keeps_batch:
            self._left.append(
                Left(
                    what=f"micro_batch={candidate.micro_batch}",
                    place="the batch_size of the script's data loader",
                )
            )
        if consumer is Consumer.ACCELERATE:
            self._accumulation(found)
        name = "optimizer.implementation"
        if not found.has_optimizer and not self._wanted.is_untouched(name):
            value = candidate.get(name)
            if value is not None:
                self._left.append(Left(what=f"{name}={value}", place="the script's optimizer"))

    def _accumulation(self, found: ConfigChanges) -> None:
        """Accelerate's: of its section, its flags, or the script."""
        steps, source = self._wanted.candidate.grad_accum, self._source
        name = "gradient_accumulation_steps"
        if "grad_accum" not in found.left_to_arguments:
            return
        if not source.is_made:
            self._left.append(
                Left(
                    what=f"{name}={steps}",
                    place="the accelerate file, or the script's Accelerator",
                )
            )
        elif steps != 1:  # as without it
            if source.syntax == "shell":
                self._changes.append(
                    FileChange(path=self._path, at=(name,), value=steps, of="launcher")
                )
            else:
                self._changes.append(
                    FileChange(path=source.path, at=(_SECTION, name), value=steps)
                )

    def _environment(self) -> None:
        if self._line is None:
            self._left += _in_environment(self._wanted)
            return
        command, shell = self._command, read_shell(self._text, self._path)
        for name, value in self._wanted.variables.items():
            there = command.variables.get(name) or shell.exported.get(name)
            if there is None or there.text != value:
                self._changes.append(
                    FileChange(path=self._path, at=(name,), value=value, of="variables")
                )
        if self._wanted.candidate.get("core_binding") != "ranks":
            return
        words = [word.text for word in command.words]
        if self._line.kind != "deepspeed":
            self._left += _in_environment(replace(self._wanted, variables={}))
        elif "--bind_cores_to_rank" not in words:
            self._changes.append(
                FileChange(path=self._path, at=("bind_cores_to_rank",), value=True, of="launcher")
            )

    @cached_property
    def _command(self) -> Command:
        return _the_launch(self._text, self._path)[0]
