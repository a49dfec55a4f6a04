"""Names that hold secrets: what stands under them is neither recorded nor shown."""

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
"""Stands where a secret did."""

_WORDS = ("TOKEN", "SECRET", "PASSW", "CREDENTIAL", "KEY", "AUTH")
_SECRET = re.compile("|".join(_WORDS).replace("KEY", "KEY$"), re.IGNORECASE)

_STRING = r'"((?:[^"\\\n]|\\.)*)"'
_PAIR = re.compile(rf"({_STRING}\s*:\s*)(?:{_STRING}|\[[^\[\]]*\])")


def is_secret(name: object) -> bool:
    """Whether a variable or a key of this name is taken to hold a secret."""
    return _SECRET.search(str(name)) is not None  # YAML has keys that are no text


def holds_secret(name: object, value: Any) -> bool:
    """Whether a key with this value is taken to hold a secret: a number or a switch is none."""
    return is_secret(name) and isinstance(value, str | list)


def masked(section: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a section with `***` for its secrets, at any depth."""
    return {
        key: masked(value)
        if isinstance(value, Mapping)
        else (HIDDEN if holds_secret(key, value) else value)
        for key, value in section.items()
    }


def masked_text(text: str) -> str:
    """A JSON text with `***` for its secret strings and lists; all else as it is written."""
    upper = text.upper()
    if not any(word in upper for word in _WORDS):  # as in almost every text, and fast
        return text
    return _PAIR.sub(lambda pair: f'{pair[1]}"{HIDDEN}"' if is_secret(pair[2]) else pair[0], text)
