"""A candidate in files that a user has: what changes, what they cannot carry, the new text."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.base.errors import JobError, RenderError
from autotune.base.nested import look_up, nested, value_at
from autotune.base.user_text import STANDARD_INPUT, read_text
from autotune.check.edit import edit
from autotune.check.written import not_edited, text_diff
from autotune.contract import KnobValue
from autotune.engines.base import Engine
from autotune.engines.deepspeed.ds_config_file import SECTIONS, usable
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.engines.deepspeed.knobs.situation import optimizer_implementation, recompute_interval
from autotune.engines.deepspeed.rules.base import BATCH_KEYS
from autotune.engines.deepspeed.rules.sections import AUTO, SPELLINGS
from autotune.engines.deepspeed.sources.accelerate import FIELDS, SECTION
from autotune.engines.deepspeed.sources.consumers import Consumer
from autotune.engines.deepspeed.sources.filled import with_hidden_sizes
from autotune.engines.deepspeed.sources.kinds import NotADsConfigError
from autotune.engines.deepspeed.sources.reading import (
    SYNONYMS,
    Source,
    as_arguments,
    has_arguments,
    parsed,
    trainer_of,
)
from autotune.engines.deepspeed.sources.source import read
from autotune.engines.deepspeed.sources.training import (
    AXOLOTL,
    DEFAULT_OPTIM,
    EVERY,
    FACTORY,
    completed,
    options_of,
    script_knobs,
)
from autotune.engines.launches.files import is_shell
from autotune.export.base import Handout, Left, Patched
from autotune.export.command_training import CommandTraining
from autotune.export.trainer import SIZES, recompute_names
from autotune.space.knobs import canonical
from autotune.space.script import IMPLEMENTATION, IMPLEMENTATIONS
from autotune.trial.engines.deepspeed import CONFIG_FILE
from autotune.trial.guest.frameworks import ATTENTION_ARGUMENT, RECOMPUTE_NAMES, as_argument_of

_MICRO, _ACCUM, _TOTAL = BATCH_KEYS
_FRAMEWORKS = {FACTORY: "llama-factory", AXOLOTL: "axolotl"}
_OFF = {
    "tensor_parallel.autotp_size": 0,
    "sequence_parallel_size": 1,
    "expert_parallel.enabled": False,
}
"""Keys that say of a degree that there is none; a rendered configuration leaves them out."""
_OLD_NAMES = {
    "offload.optimizer": "zero_optimization.cpu_offload",
    "offload.param": "zero_optimization.cpu_offload_param",
}
_BY_ARGUMENTS = ("recompute", "attention", "compile")


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """One value of one file."""

    path: Path
    """The file that it belongs into."""
    at: tuple[str, ...]
    """Its key there."""
    value: Any
    """None: the key goes."""

    def __str__(self) -> str:
        return _in_words(".".join(self.at), self.value)


def _in_words(name: str, value: Any, joint: str = "=") -> str:
    shown = str(value).lower() if isinstance(value, bool) else value
    return f"{name} is left out" if value is None else f"{name}{joint}{shown}"


def patched(path: Path, wanted: "Wanted", *, others: Sequence[Path] = ()) -> Patched:
    """What a file has to hold to carry a candidate; nothing is written.

    Args:
        path: A ds_config, an accelerate YAML or a file of arguments, as JSON or YAML; of a shell
            file and of code, what they have to say is told.
        wanted: The candidate.
        others: Files that are patched, too: what belongs there is not told.

    Raises:
        RenderError: The file cannot be read, or its text cannot be changed.
        JobError: It is none that is patched.
    """
    if path == STANDARD_INPUT:
        raise JobError("--patch -: standard input is no file to write", "name a file")
    before = read_text(path)
    here = [one for one in _plan(path, before, wanted).changes if _is_same(one.path, path)]
    after = _edited(path, before, here)
    plan = _plan(path, after, wanted)
    if unsaid := [one for one in plan.changes if _is_same(one.path, path)]:
        raise RenderError.of("export.still_unsaid", path=path, unsaid=unsaid)
    elsewhere = [
        Left(what=str(one), place=f"{one.path}: --patch {one.path} writes it there")
        for one in plan.changes
        if not any(_is_same(one.path, other) for other in others)
    ]
    return Patched(
        path=path,
        before=before,
        after=after,
        diff=text_diff(str(path), before, after),
        changes=tuple(map(str, here)),
        left=tuple(dict.fromkeys([*plan.left, *elsewhere])),
        is_by_hand=_is_by_hand(path, before),
    )


def patched_all(paths: Sequence[Path], wanted: "Wanted") -> list[Patched]:
    """Several files of one training, each as of `patched`."""
    found = [patched(path, wanted, others=paths) for path in paths]
    named = [one for one in found if isinstance(_data(one.path, one.before).get("deepspeed"), str)]
    telling = next((one for one in found if one.is_by_hand or one in named), None)
    if telling is None:
        return found
    # What another file cannot carry, the file of the arguments may.
    return [
        one
        if one is telling or one.path.name not in telling.before
        else replace(one, left=tuple(left for left in one.left if left in telling.left))
        for one in found
    ]


def _is_same(one: Path, other: Path) -> bool:
    return one == other or (one.exists() and other.exists() and os.path.samefile(one, other))


def _is_by_hand(path: Path, text: str) -> bool:
    return path.suffix == ".py" or is_shell(text, path)


def _data(path: Path, text: str) -> dict[str, Any]:
    """The data of a file; none of code, or of a shell file."""
    return {} if _is_by_hand(path, text) else parsed(text, path).data


def _edited(path: Path, text: str, changes: Sequence[FileChange]) -> str:
    if not changes:
        return text
    found = parsed(text, path)
    for change in changes:
        for depth in range(1, len(change.at)):
            there = value_at(found.data, change.at[:depth])
            if there is not None and not isinstance(there, Mapping):
                section = ".".join(change.at[:depth])
                raise RenderError(f"{path}: {section} is no section there", "make it a section")
    after = edit(text, nested((one.at, one.value) for one in changes), found.syntax)
    if after is None:
        why = "it is Hjson" if found.syntax == "hjson" else "with every comment and alias kept"
        raise RenderError.of(
            "export.not_editable", path=path, why=why, changes="; ".join(map(str, changes))
        )
    return after


class Wanted:
    """A candidate to put into files."""

    def __init__(self, handout: Handout, engine: Engine, training: CommandTraining | None) -> None:
        """What a handout brings; `engine` is bound to its job, `training` is its own command."""
        self.candidate, self.variables = handout.candidate, handout.variables
        self.config: Mapping[str, Any] = json.loads(handout.files[CONFIG_FILE])
        # Without what a base configuration sets: the files say it themselves.
        self.context = replace(engine.context, base={})
        self.training = training

    def alone(self, name: str, value: KnobValue | None) -> KnobValue | None:
        """What a knob is with a file's value, or none, the others being the candidate's."""
        others = {n: v for n, v in self.candidate.values.items() if n != name}
        given = others if value is None else {**others, name: value}
        return canonical(given, self.context).get(name)

    def is_untouched(self, name: str) -> bool:
        """Whether a knob is what it would be if nobody chose it."""
        return self.candidate.get(name) in (None, self.alone(name, None))

    def around(self, *, has_arguments: bool) -> Iterator[Left]:
        """What no file carries, but the script, or the environment of the ranks."""
        for name, knob in KNOBS.items():
            value = self.candidate.get(name)
            is_told = name in _BY_ARGUMENTS and has_arguments and value != "deepcompile"
            if knob.in_script and not is_told and not self.is_untouched(name):
                yield Left(what=f"{name}={value}", place=f"the script: {knob.in_script}")
        yield from self.around_ranks()

    def around_ranks(self) -> Iterator[Left]:
        """What belongs to the start of the ranks."""
        for name, text in self.variables.items():
            yield Left(what=f"{name}={text}", place="the environment of the ranks")
        if self.candidate.get("core_binding") == "ranks":
            place = "what starts the ranks: numactl, or DeepSpeed's launcher with "
            yield Left(what="core_binding=ranks", place=f"{place}--bind_cores_to_rank")


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """Where each value of a candidate belongs."""

    changes: Sequence[FileChange]
    left: Sequence[Left]


def _plan(path: Path, text: str, wanted: Wanted) -> _Plan:
    if wanted.training is not None:
        return _plan_of_command(path, text, wanted.training, wanted)
    if _is_by_hand(path, text):
        return _plan_by_hand(path, wanted)
    data_file = _DataFile(path, text, wanted)
    data_file.collect()
    return _Plan(changes=data_file.changes, left=data_file.left)


def _plan_of_command(path: Path, text: str, training: CommandTraining, wanted: Wanted) -> _Plan:
    """The edits of a user's own command, in the files that it reads."""
    data, changes = _data(path, text), []
    for file, values in training.changed_files().items():
        is_here = _is_same(path, file)
        for at, value in values:
            if not is_here or value_at(data, at) != value:
                changes.append(
                    FileChange(path=path if is_here else file, at=tuple(at), value=value)
                )
    left = [
        Left(
            what=f"{name}={chosen}",
            place=f"the word of your command that the search got as {{{name}=...}}",
        )
        for name, chosen in training.in_words.items()
    ]
    for key, value in training.left_to_code().items():
        where, name = training.script.place_outside_files(key)
        place = where if name == key else f"{where}: {name}"
        left.append(Left(what=_in_words(key, value), place=place))
    for name, value in training.arguments_outside_files().items():
        place = "your command" if training.takes(name) else "your code, which sets it"
        left.append(Left(what=_in_words(name, value), place=place))
    return _Plan(changes=changes, left=[*left, *wanted.around_ranks()])


def _plan_by_hand(path: Path, wanted: Wanted) -> _Plan:
    """What a shell file or code has to say, as Trainer's arguments and keys of DeepSpeed's."""
    settings = _DataFile(path, "", wanted)
    is_code = path.suffix == ".py"
    for name, value in settings.arguments({}, "", has_optimizer=False):
        what = _in_words(name, value) if is_code else _in_words(f"--{name}", value, " ")
        place = f"TrainingArguments in {path.name}" if is_code else f"the launch in {path.name}"
        settings.left.append(Left(what=what, place=place))
    settings.tell_configuration()
    return _Plan(changes=(), left=[*settings.left, *wanted.around(has_arguments=True)])


class _DataFile:
    """Where each value belongs, by what a file of JSON or YAML and those that it names say."""

    def __init__(self, path: Path, text: str, wanted: Wanted) -> None:
        self._path, self._text, self._wanted = path, text, wanted
        self.changes: list[FileChange] = []
        self.left: list[Left] = []

    def collect(self) -> None:
        path, data = self._path, _data(self._path, self._text)
        source: Source | None = None
        try:
            source = read(path, text=self._text)
        except NotADsConfigError:
            if not has_arguments(data):
                raise
        is_told = True
        if source is not None:
            is_told = self._of_source(source)
        else:  # a file of arguments that names no ds_config
            for name, value in self.arguments(data, trainer_of(data), has_optimizer=False):
                self._put(path, (name,), value)
            self.tell_configuration()
        self.left += self._wanted.around(has_arguments=is_told)

    def tell_configuration(self) -> None:
        """Tell the keys of a ds_config that the file does not name."""
        place = f"a ds_config that {self._path.name} names under `deepspeed`"
        for key, value in self._config({}, Consumer.TRAINER, self._path).items():
            if key not in BATCH_KEYS:
                self._put(self._path, (key,), value, place=place)

    def _put(self, path: Path, at: tuple[str, ...], value: Any, *, place: str = "") -> None:
        """A value for a file, or one to tell, with its place."""
        if place:
            self.left.append(Left(what=_in_words(".".join(at), value), place=place))
        else:
            self.changes.append(FileChange(path=path, at=at, value=value))

    def _of_source(self, source: Source) -> bool:
        """Whether arguments of Trainer's carry what they can."""
        if source.syntax != "hjson" and (why := not_edited(source)):
            raise JobError.of("export.not_patchable", path=self._path, why=why)
        wanted, consumer = self._wanted, source.consumer
        for key, value in self._config(source.config, consumer, source.path).items():
            field = FIELDS.get(key)
            if not source.is_made:
                self._put(source.path, (*source.at, *key.split(".")), value)
            elif field is None or value is None:
                place = "a ds_config that deepspeed_config_file names: accelerate has no word for"
                self._put(source.path, (key,), value, place=f"{place} it")
            else:
                self._put(source.path, (SECTION, field), value)
        has_optimizer = isinstance(source.config.get("optimizer"), Mapping)
        if source.arguments_path is not None:
            given = self._arguments_in(source)
            found = self.arguments(given, source.reader, has_optimizer=has_optimizer)
            for name, value in found:
                self._put(source.arguments_path, (*source.arguments_at, name), value)
        elif not has_optimizer and not wanted.is_untouched(IMPLEMENTATION):
            value = wanted.candidate.get(IMPLEMENTATION)
            self._put(source.path, (IMPLEMENTATION,), value, place="the script's optimizer")
        if source.arguments_path is None:
            self._open_sizes(source)
        return source.arguments_path is not None

    def _open_sizes(self, source: Source) -> None:
        """Sizes that the consumer's arguments bring, or nobody."""
        consumer = source.consumer
        is_trainers = consumer is Consumer.TRAINER
        for key, argument in () if consumer is Consumer.DEEPSPEED else SIZES.items():
            size = self._sizes()[key]
            is_accelerates = consumer is Consumer.ACCELERATE and key == _ACCUM
            if not is_trainers and source.config.get(key) != AUTO:
                continue
            if is_accelerates and source.is_made:
                if size != 1:  # as without it
                    self._put(source.path, (SECTION, key), size)
            elif is_accelerates:
                place = "the accelerate file, or the script's Accelerator"
                self._put(source.path, (key,), size, place=place)
            else:
                place = f"the Trainer's arguments: --{argument} {size}"
                at = (argument,) if is_trainers else ("micro_batch",)
                place = place if is_trainers else "the batch_size of the script's data loader"
                self._put(source.path, at, size, place=place)

    def _arguments_in(self, source: Source) -> dict[str, Any]:
        """The arguments of the file that holds them, by the names under which they stand."""
        file = source.arguments_path
        assert file is not None, "it names a file of arguments"
        inside = _data(file, self._text if _is_same(file, self._path) else read_text(file))
        for name in source.arguments_at:
            inside = inside[name]
        return inside

    # -------------------------------------------- DeepSpeed's configuration

    def _sizes(self) -> dict[str, int]:
        candidate = self._wanted.candidate
        return {_MICRO: candidate.micro_batch, _ACCUM: candidate.grad_accum}

    def _config(self, config: Mapping[str, Any], consumer: Consumer, path: Path) -> dict[str, Any]:
        """What makes a ds_config mean the candidate: dotted key -> value; None: the key goes.

        Raises:
            RenderError: A section of it is none.
        """
        wanted = self._wanted
        found = dict(self._batch(config, consumer))
        hidden = wanted.context.model.hidden
        clean, _ = usable(with_hidden_sizes(config, consumer, hidden), path)
        apart = ("micro_batch", "compile", IMPLEMENTATION, *SECTIONS)
        for name in (*(name for name in KNOBS if name not in apart), *SECTIONS):
            knob, value = KNOBS[name], wanted.candidate.get(name)
            if not knob.key or value is None:
                continue
            try:
                have = wanted.alone(name, knob.read(clean, where="the file"))
            except JobError:
                have = None
            if have == value:
                continue
            if name in SECTIONS:
                found |= self._offload(name, config)
            for key in () if name in SECTIONS else knob.keys:
                found |= self._rendered(key, config)
        is_compiled = look_up(config, "compile.deepcompile") is True
        compiles = wanted.candidate.get("compile") == "deepcompile"
        found |= {} if is_compiled is compiles else {"compile.deepcompile": compiles}
        return found | self._implementation(config)

    def _rendered(self, key: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """A key, or each of a section, at its rendered value, under the file's spelling."""
        value = look_up(self._wanted.config, key)
        if isinstance(value, Mapping):
            found = [self._rendered(f"{key}.{inner}", config) for inner in value]
            return {name: there for one in found for name, there in one.items()}
        section, _, last = key.rpartition(".")
        spellings = [n for n, first in SPELLINGS.items() if first == last]
        second = [n for n in spellings if n in (look_up(config, section) or {})]
        name = f"{section}.{second[0]}" if second else key
        have = look_up(config, name)
        if value is None:
            value = have and (False if isinstance(have, bool) else _OFF.get(key))
        is_switch = isinstance(value, bool) or isinstance(have, bool)
        return {} if have is value or (have == value and not is_switch) else {name: value}

    def _offload(self, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
        at, old = KNOBS[name].key, _OLD_NAMES[name]
        section = look_up(self._wanted.config, at) or {}
        names = section if self._wanted.candidate.get(name) == "nvme" else ("device",)
        values = {f"{at}.{one}": section.get(one, "none") for one in names}
        gone = {old: None} if look_up(config, old) is not None else {}
        return gone | {k: value for k, value in values.items() if look_up(config, k) != value}

    def _implementation(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Whose Adam, where the file has an optimizer; else the arguments or the script say."""
        want, optimizer = self._wanted.candidate.get(IMPLEMENTATION), config.get("optimizer")
        if want is None or not isinstance(optimizer, Mapping):
            return {}
        have = optimizer_implementation(optimizer.get("params")) or "deepspeed"
        if self._wanted.alone(IMPLEMENTATION, have) == want:
            return {}
        wishes = {"torch_adam": want != "deepspeed", "fused": want == "torch_fused"}
        return {
            f"optimizer.params.{key}": value
            for key, value in wishes.items()
            if value or look_up(config, f"optimizer.params.{key}") not in (None, False)
        }

    def _batch(self, config: Mapping[str, Any], consumer: Consumer) -> Iterator[tuple[str, Any]]:
        candidate, sizes = self._wanted.candidate, self._sizes()
        given = {key: config.get(key) for key in BATCH_KEYS}
        is_plain = consumer is Consumer.DEEPSPEED
        is_split = candidate.tp > 1 and candidate.pp == 1
        total = candidate.global_batch
        if given[_TOTAL] not in (None, AUTO, total):
            yield _TOTAL, total
        elif is_split and given[_TOTAL] is not None and is_plain:
            yield _TOTAL, None  # DeepSpeed checks it against the whole world
        for key, size in sizes.items():
            # Nobody fills in an "auto" of DeepSpeed's own.
            if given[key] not in (None, size) and (is_plain or given[key] != AUTO):
                yield key, size
        has_total = is_plain and given[_TOTAL] is not None and not is_split
        steps = 1 if given[_ACCUM] is None else candidate.grad_accum
        # What DeepSpeed would work out (_set_batch_related_parameters), nobody has to write.
        is_implied = has_total and total // candidate.dp // steps == candidate.micro_batch
        is_missing = {_MICRO: not is_implied, _ACCUM: candidate.grad_accum != 1 and not has_total}
        for key, size in sizes.items():
            if given[key] is None and is_missing[key]:
                yield key, AUTO if consumer is Consumer.TRAINER else size

    # -------------------------------------------- arguments of Trainer's, and of its readers

    def arguments(
        self, given: Mapping[str, Any], reader: str, *, has_optimizer: bool
    ) -> Iterator[tuple[str, Any]]:
        """What has to change in arguments, by the names under which they stand."""
        wanted, candidate = self._wanted, self._wanted.candidate
        framework = _FRAMEWORKS.get(reader, "trainer")
        found: dict[str, Any] = {}

        def now() -> dict[str, Any]:
            return completed(as_arguments({**given, **found}), reader, candidate.world)

        def name_here(name: str) -> str:
            others = (n for n, meant in SYNONYMS.items() if meant == name and n in given)
            return next(others, as_argument_of(framework, name, value=None)[0])

        sizes = {SIZES[key]: size for key, size in self._sizes().items()}
        # What is there already may bring the other along.
        for name in sorted(sizes, key=lambda name: name_here(name) not in given):
            if now()[name] != sizes[name]:
                found[name_here(name)] = sizes[name]
        have, asked = script_knobs(now(), reader), dict[str, Any]()
        recompute = str(candidate.get("recompute", "none"))
        if recompute != have["recompute"]:
            asked |= self._recompute(given, reader, recompute)
        attention = candidate.get("attention")
        # By default nobody chose one: the user's stays.
        is_chosen = attention not in (None, "default", have.get("attention"))
        if is_chosen:
            name, value = as_argument_of(framework, ATTENTION_ARGUMENT, attention)
            self._put(self._path, (name,), value, place="where the model is built")
        compiles = candidate.get("compile")
        if compiles in ("none", "torch") and compiles != have["compile"]:
            asked["torch_compile"] = compiles == "torch"
        # Another optimizer than Adam is the user's choice; beside an offload accelerate brings it.
        optim = str(given.get(as_argument_of(reader, "optim", None)[0], DEFAULT_OPTIM))
        is_offloaded = candidate.get("offload.optimizer", "none") != "none"
        is_open = not has_optimizer and not is_offloaded
        want = candidate.get(IMPLEMENTATION)
        is_open &= want is not None and optim in IMPLEMENTATIONS
        if is_open and wanted.alone(IMPLEMENTATION, IMPLEMENTATIONS[optim]) != want:
            words = {knob: f"optim {n} in the arguments" for n, knob in IMPLEMENTATIONS.items()}
            place = words.get(str(want), "a section optimizer of the ds_config")
            self._put(self._path, (IMPLEMENTATION,), want, place=place)
        found |= dict(as_argument_of(framework, name, value) for name, value in asked.items())
        yield from ((n, v) for n, v in found.items() if n not in given or given[n] != v)

    def _recompute(self, given: Mapping[str, Any], reader: str, want: str) -> dict[str, Any]:
        newest, takes_every = recompute_names()
        default = RECOMPUTE_NAMES[-1] if reader else newest
        name = next((n for n in RECOMPUTE_NAMES if n in given), default)
        options_name = next(
            (f"{n}_kwargs" for n in RECOMPUTE_NAMES if f"{n}_kwargs" in given), f"{name}_kwargs"
        )
        options = options_of(given.get(options_name))
        every = max(1, recompute_interval(want))
        if every > 1 and (reader in _FRAMEWORKS or not (takes_every or EVERY in options)):
            who = reader or "this release of transformers"
            place = f"the model's code: {who} takes all layers or none"
            self._put(self._path, ("recompute",), want, place=place)
            return {}
        is_other = want != "none" and options.get(EVERY, 1) != every
        return {name: want != "none"} | (
            {options_name: {**options, EVERY: every}} if is_other else {}
        )
