"""Names that hold secrets: what stands under them is neither recorded nor shown."""

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
"""Stands where a secret did."""

_SECRET = re.compile(r"(TOKEN|SECRET|PASSW|CREDENTIAL|KEY$|AUTH)", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether a variable or a key of this name is taken to hold a secret."""
    return _SECRET.search(name) is not None


def holds_secret(name: str, value: Any) -> bool:
    """Whether a key with this value is taken to hold a secret: a number or a switch is none."""
    return is_secret(name) and isinstance(value, str | list)


def masked(section: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a section with `***` for its secrets, at any depth."""
    return {key: _masked(key, value) for key, value in section.items()}


def _masked(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return masked(value)
    return HIDDEN if holds_secret(key, value) else value
