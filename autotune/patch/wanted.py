"""What a patch brings: a candidate, as it was rendered, and what the values of its knobs mean."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.base.errors import JobError
from autotune.contract import KnobValue
from autotune.export.base import Handout
from autotune.space.candidate import Candidate
from autotune.space.knob import Context
from autotune.space.knobs import canonical
from autotune.trial.engines.deepspeed import CONFIG_FILE

REMOVED = None
"""The value of a key that goes."""


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

    def alone(self, name: str, value: KnobValue | None) -> KnobValue | None:
        """What a knob is with some value, the others being the candidate's.

        Args:
            name: The knob.
            value: As a file has it; None: the file says nothing.
        """
        others = {n: v for n, v in self.candidate.values.items() if n != name}
        given = others if value is None else {**others, name: value}
        return canonical(given, self.context).get(name)

    def is_untouched(self, name: str) -> bool:
        """Whether a knob is what it would be if nobody chose it."""
        return self.candidate.get(name) == self.alone(name, None)


def wanted_of(handout: Handout, context: Context) -> Wanted:
    """What a handout brings into a user's files.

    Raises:
        JobError: It configures an engine whose files are not patched.
    """
    if CONFIG_FILE not in handout.files:
        raise JobError(
            f"--patch: a configuration of {handout.engine} is not written into others' files",
            "export it to a new folder with --out",
        )
    return Wanted(
        candidate=handout.candidate,
        config=json.loads(handout.files[CONFIG_FILE]),
        context=replace(context, base={}),
        variables=handout.variables,
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
