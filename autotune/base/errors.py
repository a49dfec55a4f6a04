"""Errors a user can cause, and the exit codes that they end the program with."""

import json
import re
from enum import IntEnum
from pathlib import Path
from typing import Self

from autotune.base.flags import flag

_KEY = re.compile(r"\{--(\w+)\}")


class ExitCode(IntEnum):
    """Exit codes of the command line; scripts may rely on them."""

    FOUND = 0
    INVALID_INPUT = 2
    NOTHING_FEASIBLE = 3
    FLEET_UNAVAILABLE = 4
    CHECK_FAILED = 5
    UNDECIDED = 6
    INTERRUPTED = 130


class AutotuneError(Exception):
    """Something that the user can mend.

    Args:
        message: What is wrong: the offending value, where it came from, the arithmetic.
        hint: What is allowed and the shortest way to mend it.
    """

    exit_code: ExitCode = ExitCode.INVALID_INPUT

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @classmethod
    def of(cls, row: str, /, **values: object) -> Self:
        """The error of a row of a room's `errors.json`, such as `fleet.no_free_port`.

        A row is a message, and mostly a hint; in both `{name}` stands for a value and `{--key}`
        for a key as it was given.
        """
        room, _, name = row.rpartition(".")
        file = Path(__file__).parents[1].joinpath(*room.split("."), "errors.json")
        texts = json.loads(file.read_text(encoding="utf-8"))[name]
        filled = (_KEY.sub(lambda key: flag(key[1]), text) for text in texts)
        return cls(*(text.format(**values) for text in filled))

    def __str__(self) -> str:
        return f"{self.message}\n  fix: {self.hint}" if self.hint else self.message


class JobError(AutotuneError):
    """The job, the space or another input file is not valid."""


class RenderError(AutotuneError):
    """A template or a base configuration could not be rendered."""


class StudyError(AutotuneError):
    """The study's folder cannot be used: locked, unreadable, full."""


class NothingFeasibleError(AutotuneError):
    """No candidate is legal, or none ran."""

    exit_code = ExitCode.NOTHING_FEASIBLE


class FleetError(AutotuneError):
    """The accelerators that the job names are not there."""

    exit_code = ExitCode.FLEET_UNAVAILABLE
