"""Results of checking several files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.base.errors import AutotuneError
from autotune.check.lint import CheckExit, CheckReport


@dataclass(frozen=True, kw_only=True)
class Unread:
    """A file that could not be checked."""

    path: Path
    error: AutotuneError

    def __str__(self) -> str:
        return f"{self.error.message}\nfix: {self.error.hint}"

    def to_dict(self, key: str = "error") -> dict[str, str]:
        """The form that `--format json` prints, the message under a key."""
        return {"file": str(self.path), key: self.error.message, "fix": self.error.hint}


@dataclass(frozen=True, kw_only=True)
class CheckRun:
    """All files of one call."""

    reports: Sequence[CheckReport]
    """One for every configuration; a file may hold several."""
    unread: Sequence[Unread] = ()
    others: Sequence[Path] = ()
    """Files of folders and patterns that hold no DeepSpeed configuration."""
    not_followed: Sequence[Unread] = ()
    """Files of folders with launches that only the shell knows: this is no error."""
    is_one_file: bool = False
    """Whether the user named one file, and nothing else."""

    def exit_code(self, *, fixed: bool, strict: bool) -> CheckExit:
        """2 where one would not run, else 3 where one could not be read, else 0."""
        codes = {report.exit_code(fixed=fixed, strict=strict) for report in self.reports}
        if CheckExit.FAILS in codes:
            return CheckExit.FAILS
        return CheckExit.UNREADABLE if self.unread else CheckExit.PASSES

    def to_dicts(self, *, fixed: bool) -> list[dict[str, Any]]:
        """For JSON: configurations, files that could not be read, and those not followed."""
        reports = [report.to_dict(fixed=fixed) for report in self.reports]
        not_followed = [one.to_dict("not_followed") for one in self.not_followed]
        return [*reports, *(one.to_dict() for one in self.unread), *not_followed]
