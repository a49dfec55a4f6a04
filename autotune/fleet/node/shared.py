"""Tells what a file holds here, and so whether a folder is shared with the coordinator.

`python -m autotune.fleet.node.shared FILE` answers it.
"""

import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from autotune.fleet.node.answers import answer

_MOST_CHARACTERS = 100


@dataclass(frozen=True, kw_only=True)
class FileText:
    """The beginning of a file; empty where there is none."""

    text: str


def read_file(path: str) -> FileText:
    """The beginning of a file here."""
    text = ""
    with suppress(OSError, UnicodeDecodeError), Path(path).open(encoding="utf-8") as file:
        text = file.read(_MOST_CHARACTERS)
    return FileText(text=text)


if __name__ == "__main__":
    answer(lambda: read_file(sys.argv[1]))
