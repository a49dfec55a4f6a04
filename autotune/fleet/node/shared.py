"""Tells what a file holds here, and so whether a folder is shared with the coordinator.

`python -m autotune.fleet.node.shared FILE` prints a line of JSON behind `MARK`.
"""

import json
import sys
from contextlib import suppress
from pathlib import Path

MARK = "autotune-shared: "
_MOST_CHARACTERS = 100


def main(path: str) -> None:
    """Print the beginning of a file; nothing of one that is not there."""
    text = ""
    with suppress(OSError, UnicodeDecodeError), Path(path).open(encoding="utf-8") as file:
        text = file.read(_MOST_CHARACTERS)
    print(MARK + json.dumps({"text": text}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
