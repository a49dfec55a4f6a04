"""A user's own command to hand out: its files and its words, with the edits of a candidate.

What the user set and no edit touches stays as it is.
"""

import contextlib
import copy
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from autotune.base.errors import AutotuneError
from autotune.base.templates import canonical_json
from autotune.base.user_text import read_text
from autotune.check.changes import changes_between
from autotune.check.edit import edit
from autotune.contract import KnobValue
from autotune.engines.deepspeed.rules.sections import AUTO
from autotune.engines.deepspeed.sources.reading import Parsed, has_arguments, parsed
from autotune.engines.launches.line import LineParts, flags_of, parts_of
from autotune.export.trainer import SIZES
from autotune.job.observed import Observed, is_text_of
from autotune.trial.engines.deepspeed import CONFIG_FILE
from autotune.trial.guest.edits import Edits
from autotune.trial.guest.frameworks import RECOMPUTE_NAMES, as_argument_of

HERE = "AUTOTUNE_EXPORT_FOLDER"
"""Stands in a command for the folder of the export until it is quoted for the shell."""
_PROGRAMS = ("llama-factory", "axolotl")
"""Frameworks whose own program reads a file and takes any of its fields as an argument."""
_DATA = (".yaml", ".yml", ".json")


@dataclass(frozen=True, kw_only=True)
class CommandFiles:
    """What a dialect writes for a user's own command."""

    command: Sequence[str]
    """Words of the command, `HERE` for the folder of the export."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Path below the export folder -> text."""
    about: Mapping[str, str] = field(default_factory=dict)
    """File -> what it is, as Markdown for the README."""
    in_code: Mapping[str, Any] = field(default_factory=dict)
    """What neither the files nor the command carry: the script sets it in its own code."""
    in_place: Mapping[str, str] = field(default_factory=dict)
    """File of the export -> the user's file in whose place it belongs: no word names that."""

    def with_file(self, name: str, text: str, about: str) -> "CommandFiles":
        files, described = {**self.files, name: text}, {**self.about, name: about}
        return dataclasses.replace(self, files=files, about=described)


@dataclass(frozen=True, kw_only=True)
class CommandTraining:
    """A user's own command with a candidate's edits."""

    script: Observed
    edits: Edits
    values: Mapping[str, KnobValue]
    folder: Path
    carried: frozenset[str] = frozenset()
    """Keys of the configuration that the candidate's trial saw arrive from the user's files."""
    files_read: Mapping[str, str] = field(default_factory=dict)
    """Path of a file that the script reads its configuration from -> its text with the edits."""

    # ------------------------------------------------ DeepSpeed's configuration

    @cached_property
    def config(self) -> dict[str, Any]:
        """As the user wrote it, every "auto" kept, with the edits in it."""
        script = self.script
        written: Mapping[str, Any] = script.description.get("config_written") or script.config
        config: dict[str, Any] = copy.deepcopy(dict(written))
        self.edits.apply(config)
        for key, name in {**SIZES, "train_batch_size": SIZES[next(iter(SIZES))]}.items():
            # What Trainer fills in by itself, from the arguments that are edited as well.
            if script.is_trainer and written.get(key) == AUTO and name in script.arguments:
                config[key] = AUTO
        return config

    @property
    def config_text(self) -> str:
        """The same as a file: the user's own text where nothing changes, if they have one."""
        return self._edited_config or canonical_json(self.config)

    @property
    def is_config_written_anew(self) -> bool:
        """Whether the user has a file of it, whose form and comments are lost."""
        return bool(self.script.description.get("config_file")) and not self._edited_config

    @cached_property
    def _edited_config(self) -> str | None:
        file = self.script.description.get("config_file")
        if not file or not Path(file).exists():
            return None
        with contextlib.suppress(AutotuneError):
            text = read_text(Path(file))
            found = parsed(text, Path(file))
            return edit(text, changes_between(found.data, self.config), found.syntax)
        return None

    # ------------------------------------------------ Trainer's arguments

    @cached_property
    def argument_file(self) -> tuple[Path, Parsed] | None:
        """The file of the framework's arguments that the command names.

        None: it names none that can be read.
        """
        for word in self.script.command:
            name = word.rpartition("=")[2]
            path = Path(self.script.folder, name)
            if not name.endswith(_DATA) or str(path) == self.script.description.get("config_file"):
                continue
            try:
                found = parsed(read_text(path), path)
            except AutotuneError:
                continue
            if has_arguments(found.data):
                return path, found
        return None

    @cached_property
    def edited_argument_file(self) -> str | None:
        """Path of that file where an export has it with the edits in it, for the command to read.

        It names `ds_config.json`, unless the script reads its configuration by itself.
        """
        if not self.script.is_trainer or self.takes_arguments or self.argument_file is None:
            return None
        return os.path.abspath(self.argument_file[0])

    @property
    def names_config_in_arguments(self) -> bool:
        """True if that file brings the configuration."""
        is_handed_out = self.edited_argument_file in self.files_read
        return is_handed_out and not self.script.sources_of_config

    def arguments_in_file(self) -> list[tuple[list[str], Any]]:
        """Edits of Trainer's arguments in that file: path of keys and value of each.

        Recomputation is called there as it stands there.
        """
        there = {} if self.argument_file is None else self.argument_file[1].data
        outside, found = self.arguments_outside_files(), list[tuple[list[str], Any]]()
        for argument, chosen in self.edits.arguments.items():
            name, value = as_argument_of(self.script.framework, argument, chosen)
            if name in RECOMPUTE_NAMES:
                name = next((other for other in RECOMPUTE_NAMES if other in there), name)
            if argument not in outside:
                found.append(([name], value))
        return found

    # ------------------------------------------------ the command

    @cached_property
    def words(self) -> list[str]:
        """The command, every placeholder filled in."""
        return self.script.filled(self.values)

    @property
    def in_words(self) -> dict[str, KnobValue]:
        return {
            name: self.values[name]
            for name, word in self.script.placeholders.items()
            if name in self.values and not is_text_of(word, self.values[name])
        }

    @cached_property
    def parts(self) -> LineParts:
        """Where the launcher's words are, and where the script's."""
        return parts_of(self.words)

    def command(self) -> list[str]:
        words = self.words
        for path, name in self.names_of_files.items():
            words = self._with_file(words, path, name)
        if self.names_config:
            words = self._with_file(words, self.script.description["config_file"], CONFIG_FILE)
        elif self.takes_file and any(self.in_file()):  # it comes before a file of arguments
            words = self.with_argument(words, "deepspeed", f"{HERE}/{CONFIG_FILE}")
        for name, value in self.edits.arguments.items():
            if self.takes(name):
                words = self.with_argument(words, name, value)
        return words

    def in_code(self) -> Iterator[tuple[str, Any]]:
        """Edits that the command line cannot carry: its script sets them in its own code."""
        yield from self.arguments_in_code()
        for key, value in self.left_to_code().items():
            yield self._where(key), value

    def arguments_in_code(self) -> Iterator[tuple[str, Any]]:
        where = "TrainingArguments in your code"
        if self.script.description.get("parses_arguments"):
            where = f"the words that {self.words[0]} starts your script with"
        for name, value in self.edits.arguments.items():
            if not self.takes(name) and self.edited_argument_file not in self.files_read:
                yield f"{where}: {name}", value

    def left_to_code(self) -> dict[str, Any]:
        """Edits of the configuration that neither a file nor a word of the command brings."""
        return {key: value for key, value in self.in_file() if not self._is_carried(key)}

    def _is_carried(self, key: str) -> bool:
        if self.script.description.get("config_file") or self.names_config_in_arguments:
            return True
        if key not in self.carried:
            return self.takes_file
        place = self.script.place_of(key)
        if place is None or self.script.is_set_by_word(key):
            return True  # it came by the words of the command
        return place[0] in self.files_read

    def in_place(self) -> dict[str, str]:
        """`CommandFiles.in_place`: a path that the code has, or what Hydra reads by itself."""
        config = self.script.description.get("config_file")
        names = {config: CONFIG_FILE} if config else self.names_of_files
        is_told = self.names_config_in_arguments or (config and self.takes_file)
        return {
            names[path]: path
            for path, changes in self.changes_of_files().items()
            if changes and path in names and not is_told and not self.script.names(path)
        }

    def changes_of_files(self) -> dict[str, list[tuple[list[str], Any]]]:
        """Edits that the user's own files bring: path -> keys and value of each."""
        edits, config = dict(self.in_file()), self.script.description.get("config_file")
        if config:
            return {config: [(key.split("."), value) for key, value in edits.items()]}
        found = self.script.in_files({k: edits[k] for k in edits if k in self.carried})
        return {one["file"]: found.get(one["file"], []) for one in self.script.sources_of_config}

    def changed_files(self) -> dict[Path, list[tuple[list[str], Any]]]:
        """The same, and edits of the file of the framework's arguments."""
        found = {Path(file): [*values] for file, values in self.changes_of_files().items()}
        if self.argument_file is not None and (changes := self.arguments_in_file()):
            found.setdefault(self.argument_file[0], []).extend(changes)
        return found

    def arguments_outside_files(self) -> dict[str, KnobValue]:
        """Edits of Trainer's arguments that no file of arguments brings."""
        is_in_file = self.argument_file is not None
        return {
            name: value
            for name, value in self.edits.arguments.items()
            if not is_in_file or self.is_flag(name)
        }

    def _where(self, key: str) -> str:
        is_of_file = key in self.carried or self.script.is_set_by_word(key)
        place = self.script.place_of(key) if is_of_file else None
        if place is None:
            return ": ".join(self.script.place_outside_files(key))
        return f"{os.path.relpath(place[0], self.script.folder)}: {'.'.join(place[1])}"

    @cached_property
    def names_of_files(self) -> dict[str, str]:
        """Path of each of `files_read` -> its name in the export."""
        names: dict[str, str] = {}
        for path in self.files_read:
            folders = (os.path.dirname(first) for first in self.files_read)
            folder = next(one for one in folders if path.startswith(one + os.sep))
            name = os.path.relpath(path, folder)
            if name in names.values():
                name = f"{os.path.basename(folder)}-{name}"
            names[path] = name
        return names

    def _with_file(self, words: list[str], path: str, name: str) -> list[str]:
        found = []
        for word in words:
            flag, equals, named = word.rpartition("=")
            is_it = named and os.path.abspath(os.path.join(self.script.folder, named)) == path
            found.append(f"{flag}{equals}{HERE}/{name}" if is_it else word)
        return found

    @cached_property
    def names_config(self) -> bool:
        """True if a word of the command is DeepSpeed's file."""
        config = self.script.description.get("config_file", "")
        return bool(config) and self.script.names(config)

    @property
    def is_set_up_by_accelerate(self) -> bool:
        """Whether `accelerate launch` sets DeepSpeed up, by settings and not by a file."""
        script = self.script
        is_accelerates = script.framework == self.parts.kind == "accelerate"
        is_in_code = script.description.get("brings_plugin") or script.sources_of_config
        return is_accelerates and not is_in_code and not self.names_config

    @property
    def takes_file(self) -> bool:
        """True if Trainer's argument `deepspeed` on the command line brings the configuration.

        To a script of DeepSpeed's own a flag of that name is a switch.
        """
        is_read = self.script.is_trainer and not self.script.sources_of_config
        return is_read and self.takes("deepspeed")

    @property
    def takes_arguments(self) -> bool:
        """True if the command line takes any of Trainer's arguments."""
        seen = self.script.description
        parses = seen.get("parses_arguments") and seen.get("is_given_words", True)
        return self.script.is_trainer and bool(parses or self.script.framework in _PROGRAMS)

    def takes(self, name: str) -> bool:
        """True if the command line takes one of Trainer's arguments, or names it."""
        return self.takes_arguments or self.is_flag(name)

    def is_flag(self, name: str) -> bool:
        """True if a flag of that name, or a setting `NAME=`, stands in the command."""
        name, _ = as_argument_of(self.script.framework, name, value=True)
        given = {word.partition("=")[0] for word in self.words if "=" in word}
        given |= {f"--{flag}" for flag, _ in flags_of(self.words)}
        plain = {word.lstrip("-").replace("-", "_") for word in given if word.startswith("--")}
        return name in plain or (self.script.framework == "llama-factory" and name in given)

    def in_file(self) -> Iterator[tuple[str, Any]]:
        """Edits of DeepSpeed's configuration but for what Trainer fills in from its arguments."""
        for key, value in self.edits.configuration.items():
            if self.config.get(key) != AUTO:
                yield key, value

    def with_argument(self, words: list[str], name: str, value: Any) -> list[str]:
        framework = self.script.framework
        name, value = as_argument_of(framework, name, value)
        text = str(value)
        if framework == "llama-factory":
            others = [word for word in words if word.partition("=")[0] != name]
            return [*others, f"{name}={text.lower() if isinstance(value, bool) else text}"]
        if framework == "axolotl":
            end = words.index("--") if "--" in words else len(words)  # the rest: the launcher's
            return [*with_flags(words[:end], {name.replace("_", "-"): text}), *words[end:]]
        return with_flags(words, {name: text})


def with_flags(words: Sequence[str], values: Mapping[str, str | None]) -> list[str]:
    """A command line in which flags have values, each where it stands if it does; None: it goes.

    Dashes in a name count as underscores, also where the flag stands.
    """
    wanted = {name.replace("-", "_"): text for name, text in values.items()}
    found, stands, has_value = list[str](), set[str](), False
    for word in words:
        if has_value and not word.startswith("--"):
            has_value = False
            continue
        flag, equals, _ = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        is_named = word.startswith("--") and name in wanted
        has_value = is_named and not equals
        text = wanted[name] if is_named else None
        if text is not None:
            found += [f"{flag}={text}"] if equals else [flag, text]
            stands.add(name)
        elif not is_named:
            found.append(word)
    for name, text in values.items():
        if text is not None and name.replace("-", "_") not in stands:
            found += [f"--{name}", text]
    return found
