"""What a key of the job says of itself; `JobFile` declares the keys, and every border reads them.

The command line imports this file to sort its flags, so it imports no pydantic.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum
from types import UnionType
from typing import Any, get_args

from autotune.base.flags import is_call
from autotune.base.units import typed_seconds


class Topic(StrEnum):
    """Titles of `--help` and of docs/job.md, in the order of the page."""

    JOB = "Job"
    CONFIGURATION = "Configuration"
    SEARCH = "Search"
    PRICE = "Time and price"
    DEVICES = "Devices"
    CHECKS = "Checks of the result"
    OUTPUT = "Record and output"


class InStudyName(Enum):
    """When a key counts in the default name of a study: a job of another name is another study."""

    ALWAYS = "always"
    WHERE_SET = "where set"
    """Studies of jobs without the key keep their names."""
    NEVER = "never"
    """A change of the key continues the study."""


PREDICTIONS = frozenset({"plan", "explain", "estimate"})
EVERY = PREDICTIONS | {"search", "render"}
"""Commands that read a job."""
SEARCH = frozenset({"search"})
DIAGNOSE = frozenset({"diagnose"})
FILE_ONLY: frozenset[str] = frozenset()


@dataclass(frozen=True)
class JobKey:
    """A key of the job: what `JobFile` declares, completed by its field."""

    help: str
    """One sentence, for every border."""
    group: Topic
    commands: frozenset[str] = SEARCH
    """Commands, and functions of the API, that take it; none: only a job file holds it."""
    flag: str = ""
    """Name of the flag and of the argument; empty: the key's."""
    takes: type | UnionType | None = None
    """Type of the flag and of the argument; None: the field's, or a text that the field reads."""
    unit: str = ""
    """Unit of a number; or `duration`, `size`, `section`: what the file has in its place."""
    identity: InStudyName = InStudyName.ALWAYS
    is_of_command: bool = False
    """True: a user's own training command decides the key, and a flag may not."""
    engine: str = ""
    """Engine that alone gets the key in a search of both; empty: each engine does."""
    deed: str = ""
    """What a job does with the path that the key names, such as `reads`: asked before."""

    name: str = ""
    default: Any = None
    """Ellipsis: there is none, and the key is required."""
    bounds: str = ""
    """Such as `from 1 to 8`."""

    @property
    def argument(self) -> str:
        """Type of the argument in Python, as source text."""
        kinds = get_args(self.takes) or (self.takes,)
        names = [kind.__name__ for kind in kinds]
        return " | ".join(["str", *names] if names == ["Path"] else names)

    @property
    def default_text(self) -> str:
        """The default as a file has it; empty: there is none, or it is no single word."""
        if self.default in (..., None, ()):
            return ""
        if isinstance(self.default, Enum):
            return str(self.default.value)
        if self.unit == "duration":
            return typed_seconds(self.default)
        if isinstance(self.default, float):
            return f"{self.default:g}"
        return str(self.default).lower() if isinstance(self.default, str | int) else ""

    @property
    def described(self) -> str:
        """The sentence, and the default where that is not in it."""
        is_told = not self.default_text or "by default" in self.help
        return self.help if is_told else f"{self.help} [default: {self.default_text}]"

    @property
    def about(self) -> str:
        """The sentence as a part of another one."""
        is_name = self.help[:2] != self.help[:2].capitalize()
        return (self.help if is_name else self.help[0].lower() + self.help[1:]).rstrip(".")

    @property
    def typed(self) -> str:
        """The flag as it is typed: `--seq-len`, or `--no-diagnose` where true is the default."""
        switch = "no-" if self.takes is bool and self.default else ""
        return f"--{switch}{self.flag.replace('_', '-')}"

    @property
    def named(self) -> str:
        """The key as whoever gave it names it: `--seq-len`, or `seq_len` in Python."""
        return self.flag if is_call() else self.typed
