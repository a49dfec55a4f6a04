"""The text of a recorded JSON file, so that a new release is a readable change."""

import json
from typing import Any


def as_text(value: Any, depth: int, *, at: int = 0) -> str:
    """JSON with a line for each member down to a depth; what is deeper stands on its line."""
    if not isinstance(value, dict) or not value or at == depth:
        return json.dumps(value)
    inner = " " * (at + 1)
    lines = (
        f"{inner}{json.dumps(key)}: {as_text(one, depth, at=at + 1)}" for key, one in value.items()
    )
    text = "{\n" + ",\n".join(lines) + "\n" + " " * at + "}"
    return text if at else text + "\n"
