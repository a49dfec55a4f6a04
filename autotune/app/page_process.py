"""Draws the page of a running search in a process of its own, whose time is not the search's.

`python -m autotune.app.page_process RESULTS STUDY`, with the pickled snapshot of the search that
starts it on its standard input.
"""

import os
import pickle
import sys
from pathlib import Path

from autotune.app.pages import line_of, write_page
from autotune.record.study import Study

_NICE = 19
"""Ranks and the search come first."""


def main(results: str, name: str) -> int:
    """Draw it; what fails is said in the last line of stderr."""
    os.nice(_NICE)
    study = Study(Path(results), name)
    try:
        write_page(study, study.page_file, snapshot=pickle.load(sys.stdin.buffer))
    except Exception as error:
        print(line_of(error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
