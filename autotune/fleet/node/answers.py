"""How a module answers that a transport has started on a node: one line of JSON behind a mark."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any, TypeVar

from autotune.base.errors import AutotuneError, FleetError
from autotune.contract import ContractError, from_json

MARK = "autotune-answer: "
Answer = TypeVar("Answer")


def answer(find: Callable[[], Any]) -> None:
    """Print a dataclass that is found, or what is in the way, for `read_answer`."""
    try:
        data = dataclasses.asdict(find())
    except AutotuneError as error:
        data = {"error": error.message, "hint": error.hint}
    print(MARK + json.dumps(data), flush=True)


def read_answer(line: str, kind: type[Answer]) -> Answer:
    """What a node has answered.

    Raises:
        FleetError: It could not, and says why; or that is no such answer.
    """
    try:
        data = json.loads(line.removeprefix(MARK))
        if "error" not in data:
            found: Answer = from_json(kind, data)
            return found
    except (ValueError, ContractError) as error:
        raise FleetError(f"an answer that cannot be read: {error}", "") from error
    raise FleetError(data["error"], data.get("hint", ""))
