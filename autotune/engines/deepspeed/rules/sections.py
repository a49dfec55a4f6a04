"""Compares a configuration with the table of keys: its sections, and what its values can mean."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.engines.deepspeed.rules.base import Setup
from autotune.engines.deepspeed.rules.keys import SECTIONS, plain_keys
from autotune.engines.deepspeed.rules.values import Key, Section
from autotune.space.rule import UnknownFactError

PARAMS = ("optimizer.params", "scheduler.params")
"""Sections that DeepSpeed passes on as they are to what it builds."""

_SCALARS = frozenset({bool, int, float, str, type(None), list})


def is_plain(setup: Setup) -> bool:
    """Whether no rule about keys and their values has anything to say; the fast way to know.

    Almost every setup that is judged is one that a template rendered, so this is the hot path.
    """
    tables = plain_keys(setup.environment.deepspeed_version)
    return _is_plain(setup.ds_config, "", tables)


def _is_plain(content: Mapping[str, Any], path: str, tables: Mapping[str, Any]) -> bool:
    checks = tables[path]
    for name, value in content.items():
        check = checks.get(name)
        if check is None or not check(value):
            return False
        kind = type(value)
        if kind is dict or (kind not in _SCALARS and isinstance(value, Mapping)):
            inner = f"{path}.{name}" if path else name
            if inner in tables:
                if not _is_plain(value, inner, tables):
                    return False
            elif inner in PARAMS and "auto" in map(str, value.values()):
                return False
    return True


def sections(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Section]]:
    """Every section of a configuration that the table describes: path, content, description.

    A section of which nothing is known is left out: it must not silence findings on the others.
    """
    for path, section in SECTIONS.items():
        content = _content(config, path)
        if content and isinstance(content, Mapping):
            yield path, content, section


def _content(config: Mapping[str, Any], path: str) -> Any:
    content: Any = config
    with contextlib.suppress(UnknownFactError):
        for part in path.split(".") if path else ():
            content = content.get(part) if isinstance(content, Mapping) else None
        return content
    return None


def dotted(path: str, name: object) -> str:
    """The name of a key for people."""
    return f"{path}.{name}" if path else str(name)


def meaning(key: Key, value: Any) -> Any:
    """The value of the wanted type that a value of another type must mean; None if there is none.

    As pydantic does, it converts the text of a number or a truth value, and 0 or 1 to a truth
    value.
    """
    found: list[Any] = []
    if isinstance(value, str):
        found += [word == "true" for word in [value.strip().lower()] if word in ("true", "false")]
        for kind in (int, float):
            with contextlib.suppress(ValueError, OverflowError):
                found.append(kind(value))
    elif type(value) is bool:
        found.append(int(value))
    elif value in (0, 1) and type(value) in (int, float):
        found.append(bool(value))
    elif type(value) is float and value.is_integer():
        found.append(int(value))
    return next((one for one in found if key.accepts(one)), None)


def unreadable(config: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Where values are of the wrong type or out of range, and nobody can say what is meant."""
    return [
        (*(path.split(".") if path else ()), str(name))
        for path, content, section in sections(config)
        for name, value in content.items()
        if (key := section.keys.get(name)) is not None
        and not key.accepts(value)
        and (is_auto(value) or meaning(key, value) is None)
    ]


def is_auto(value: Any) -> bool:
    """Whether a value is "auto", which other software fills in, but not DeepSpeed."""
    return isinstance(value, str) and value == "auto"
