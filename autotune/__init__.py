"""Find the DeepSpeed configuration that trains a model fastest in the memory there is.

Nothing is imported here before it is needed: ranks of a trial import `autotune.trial` and pay for
everything that is loaded with this file.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pandas import DataFrame

__version__ = "0.1.0"

DEFAULT_ENGINE = "deepspeed"
"""Name of the engine where nobody names one: commands and ranks read it here for nothing."""


def load(study: "str | Path", results: "str | Path" = "results") -> "DataFrame":
    """The table of a study as a pandas frame, one row per trial.

    Columns are those of docs/table.md; `frame.attrs` holds their `units` and `meanings`.

    Args:
        study: Name of a study, or its folder.
        results: Folder of all studies, for a name.

    Raises:
        autotune.base.errors.StudyError: There is no such study, or its record cannot be read.
    """
    from pathlib import Path  # not before it is asked for: ranks pay for it

    from autotune.app.studies import locate
    from autotune.record.table import load_table  # pandas

    return load_table(locate(str(study), Path(results)).folder)
