"""Compares a configuration with the table of keys: its sections, and what its values can mean."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.base.nested import Unknown, key_in_words
from autotune.base.secrecy import HIDDEN, holds_secret
from autotune.engines.deepspeed.rules.base import Setup
from autotune.engines.deepspeed.rules.keys import SECTIONS, plain_keys
from autotune.engines.deepspeed.rules.values import REFUSED, Key, Section
from autotune.space.rule import Facts, UnknownFactError

AUTO = "auto"
"""The value that other software replaces."""

PARAMS = ("optimizer.params", "scheduler.params")
"""Sections that DeepSpeed passes on as they are to what it builds."""

_UNREADABLE = Unknown("no value of its kind")

_LONGEST = 60
"""Letters of a value that a message shows."""

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
            elif inner in PARAMS and any(map(is_auto, value.values())):
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


def known_items(content: Mapping[str, Any], section: Section) -> Iterator[tuple[str, Key, Any]]:
    """The keys of a section that DeepSpeed knows, and whose value is known, with both."""
    keys = section.keys
    for name, value in known_values(content):
        if name in keys:
            yield name, keys[name], value


def known_values(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keys of a section whose value is known, with it."""
    return ((name, value) for name, value in content.items() if not isinstance(value, Unknown))


def _content(config: Mapping[str, Any], path: str) -> Any:
    content: Any = config
    with contextlib.suppress(UnknownFactError):
        for part in path.split(".") if path else ():
            content = content.get(part) if isinstance(content, Mapping) else None
        return content
    return None


def dotted(path: str, name: object) -> str:
    """The name of a key for people."""
    return f"{path}.{key_in_words(name)}" if path else key_in_words(name)


def shown(name: object, value: Any) -> str:
    """A value as a file would say it; a secret hidden, a long one cut."""
    if holds_secret(name, value):
        return HIDDEN
    if isinstance(value, Mapping):
        return "a section"
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def as_read(config: Mapping[str, Any], version: str) -> Facts:
    """A configuration as a release reads it: converted, and `Unknown` where nobody can tell."""
    return _as_read(config, "", version)


def _as_read(content: Mapping[str, Any], path: str, version: str) -> Facts:
    section, facts = SECTIONS.get(path), Facts(content, tuple(path.split(".")) if path else ())
    for name, value in content.items():
        key = section.keys.get(name) if section is not None else None
        if isinstance(value, Unknown):
            continue
        if section is not None and key is not None and not key.accepts(value):
            if is_auto(value) and section.is_strict(version) and not key.is_raw:
                del facts[name]  # it is dropped
                continue
            taken = key.taken(value)
            taken = key.meant(value) if taken is REFUSED else taken
            facts[name] = _UNREADABLE if taken is REFUSED or is_auto(value) else taken
        elif path in PARAMS and is_auto(value):
            facts[name] = _UNREADABLE
        elif isinstance(value, Mapping):
            facts[name] = _as_read(value, f"{path}.{name}" if path else str(name), version)
    return facts


def unreadable(config: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Keys with values of the wrong type or out of range, whose meaning nobody can tell."""
    return [
        (*(path.split(".") if path else ()), str(name))
        for path, content, section in sections(config)
        for name, key, value in known_items(content, section)
        if not key.accepts(value) and (is_auto(value) or key.meant(value) is REFUSED)
    ]


def is_auto(value: Any) -> bool:
    """Whether a value is "auto", which other software fills in, but not DeepSpeed."""
    return isinstance(value, str) and value == AUTO
