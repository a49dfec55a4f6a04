"""How a module answers that a transport has started on a node: one line of JSON behind a mark.

`python -m autotune.fleet.node.answers FILE` tells what a file holds there, and so whether a folder
is shared with the coordinator.
"""

import dataclasses
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from autotune.base.errors import AutotuneError, FleetError
from autotune.contract import ContractError, from_json

MARK = "autotune-answer: "
_MOST_CHARACTERS = 100
Answer = TypeVar("Answer")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileText:
    """The beginning of a file; empty where there is none."""

    text: str


def answer(find: Callable[[], Any]) -> None:
    """Print a dataclass that is found, or what is in the way, for `read_answer`."""
    try:
        data = dataclasses.asdict(find())
    except AutotuneError as error:
        data = {"error": error.message, "hint": error.hint}
    print(MARK + json.dumps(data), flush=True)


def read_answer(line: str, kind: type[Answer]) -> Answer | FleetError:
    """What a node has answered: an error where it could not, or that is no such answer."""
    try:
        data = json.loads(line.removeprefix(MARK))
        if "error" in data:
            return FleetError(data["error"], data.get("hint", ""))
        found: Answer = from_json(kind, data)
        return found
    except (ValueError, ContractError) as error:
        return FleetError(f"an answer that cannot be read: {error}")


def _read_file(path: str) -> FileText:
    text = ""
    with suppress(OSError, UnicodeDecodeError), Path(path).open(encoding="utf-8") as file:
        text = file.read(_MOST_CHARACTERS)
    return FileText(text=text)


if __name__ == "__main__":
    answer(lambda: _read_file(sys.argv[1]))
