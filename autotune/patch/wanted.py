"""What a patch brings: a candidate, as it was rendered, and what the values of its knobs mean."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.base.errors import JobError
from autotune.contract import KnobValue
from autotune.engines.base import Engine
from autotune.engines.deepspeed.script import ScriptEngine
from autotune.export.base import Handout
from autotune.export.command_files import training_of
from autotune.space.candidate import Candidate
from autotune.space.knob import Context
from autotune.space.knobs import canonical
from autotune.trial.engines.deepspeed import CONFIG_FILE

REMOVED = None
"""The value of a key that goes."""
IN_CODE = "your code, which sets it"
"""The place of one of Trainer's arguments that no file and no flag brings."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A candidate to put into files."""

    candidate: Candidate
    config: Mapping[str, Any]
    """Its ds_config, as a trial gets it."""
    context: Context
    """Without what a base configuration sets: the files say it themselves."""
    variables: Mapping[str, str]
    """Environment variables of its ranks."""
    own: Candidate | None = None
    """A user's command as it is, which the candidate is an edit of; None: there is none."""
    in_code: frozenset[str] = frozenset()
    """Trainer's arguments that the script of such a command sets itself."""
    in_words: Mapping[str, KnobValue] = field(default_factory=dict)
    """Knobs that stand in such a command as words of its script's own -> their values."""

    own_files: "Mapping[Path, Sequence[FileChange]]" = field(default_factory=dict)
    """Files that such a command takes its configuration from -> what changes in them."""
    own_left: "Sequence[Left]" = ()
    """What none of those files brings."""

    def alone(self, name: str, value: KnobValue | None) -> KnobValue | None:
        """What a knob is with some value, the others being the candidate's.

        Args:
            name: The knob.
            value: As a file has it; None: the file says nothing.
        """
        others = {n: v for n, v in self.candidate.values.items() if n != name}
        given = others if value is None else {**others, name: value}
        return canonical(given, self.context).get(name)

    @property
    def keeps_batch(self) -> bool:
        """Whether the batch is that of the command as it is."""
        own, candidate = self.own, self.candidate
        return own is not None and own.micro_batch == candidate.micro_batch

    def is_own(self, name: str) -> bool:
        """Whether a knob is as the user's command has it already."""
        return self.own is not None and self.candidate.get(name) == self.own.get(name)

    def is_untouched(self, name: str) -> bool:
        """Whether a knob is what it would be if nobody chose it, or what the command has."""
        return self.is_own(name) or self.candidate.get(name) == self.alone(name, None)


def wanted_of(handout: Handout, engine: Engine) -> Wanted:
    """What a handout brings into a user's files; `engine` is bound to its job.

    Raises:
        JobError: It configures an engine whose files are not patched.
    """
    if CONFIG_FILE not in handout.files:
        raise JobError(
            f"--patch: a configuration of {handout.engine} is not written into others' files",
            "export it to a new folder with --out",
        )
    wanted = Wanted(
        candidate=handout.candidate,
        config=json.loads(handout.files[CONFIG_FILE]),
        context=replace(engine.context, base={}),
        variables=handout.variables,
    )
    if not isinstance(engine, ScriptEngine):
        return wanted
    own = training_of(handout, Path())
    files: dict[Path, Sequence[FileChange]] = {}
    left: list[Left] = []
    if own.script.framework == "deepspeed" or own.script.sources_of_config:
        for file, changes in own.changes_of_files().items():
            path = Path(file)
            files[path] = [FileChange(path=path, at=tuple(at), value=v) for at, v in changes]
        for key, value in own.left_to_code().items():
            what = str(FileChange(path=Path(), at=(key,), value=value))
            where, name = own.script.place_outside_files(key)
            left.append(Left(what=what, place=where if name == key else f"{where}: {name}"))
    return replace(
        wanted,
        own=engine.own,
        own_files=files,
        own_left=left,
        in_code=frozenset(name for name in own.edits.arguments if not own.takes(name)),
        in_words=own.in_words,
    )


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """One value of one file."""

    path: Path
    """The file that it belongs into."""
    at: tuple[str, ...]
    """Its key there; of a launch line, the flag or the variable."""
    value: Any
    """None: the key goes."""
    of: str = "data"
    """What of the file: its data, or the `script`, the `launcher` or the `variables` of its
    launch line."""

    def __str__(self) -> str:
        name = ".".join(self.at)
        return f"{name} is left out" if self.value is None else f"{name}={said(self.value)}"


@dataclass(frozen=True, kw_only=True)
class Left:
    """What a file cannot carry."""

    what: str
    place: str
    """Where it belongs."""

    def __str__(self) -> str:
        return f"{self.what}: {self.place}"


def said(value: Any) -> str:
    """A value as messages show it."""
    if value is True or value is False:
        return str(value).lower()
    return str(value)
