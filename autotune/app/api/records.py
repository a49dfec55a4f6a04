"""`autotune.load` and `compare`: recorded studies as frames and values."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.text import Text

from autotune.app.pages import compare_studies
from autotune.app.studies import locate
from autotune.record.table import TrialTable, load_table
from autotune.report.compare.comparison import StudyComparison
from autotune.report.shown import Shown
from autotune.report.terminal.tables import print_parts


@dataclass(frozen=True, kw_only=True, repr=False)
class Compared(Shown[StudyComparison]):
    """Studies beside each other."""

    @property
    def bests(self) -> pd.DataFrame:
        """A row per study: its best, and the gain over its own baseline."""
        return pd.DataFrame(self.value.bests)

    @property
    def candidates(self) -> pd.DataFrame:
        """A row per candidate that two studies share: the ratio of the other to the first."""
        return self.value.table


def compare(*runs: str | Path | Sequence[str | Path], results: str | Path = "results") -> Compared:
    """Compare studies, by name or by folder; ratios are over the first one.

    Args:
        runs: The studies, one by one or as a list.
        results: Folder of all studies, for names.

    Raises:
        StudyError: One is not there or cannot be read, or there are too few or too many.

    Example:
        autotune.compare("before", "after").bests
    """
    studies = [one for some in runs for one in ([some] if isinstance(some, str | Path) else some)]
    found = compare_studies([str(study) for study in studies], Path(results))

    def show(console: Console) -> None:
        for warning in found.warnings:
            console.print(Text(f"warning: {warning}"))
        print_parts(console, found.parts())

    return Compared(value=found, show=show, data=found.as_dict)


def load(study: str | Path, results: str | Path = "results") -> TrialTable:
    """Load the table of a study: a pandas frame with a row per trial.

    `frame.summary` has the columns that people read first; `frame.attrs` holds the `units` and
    `meanings` of all.

    Args:
        study: Name of a study, or its folder.
        results: Folder of all studies, for a name.

    Raises:
        StudyError: There is no such study, or its record cannot be read.

    Example:
        autotune.load("my-study").summary
    """
    return load_table(locate(str(study), Path(results)).folder)
