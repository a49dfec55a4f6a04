"""Errors a user can cause, and the exit codes that they end the program with."""

from enum import IntEnum


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
