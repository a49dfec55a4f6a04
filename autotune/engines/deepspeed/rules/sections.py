"""Compares a configuration with the table of keys: its sections, and what its values can mean."""

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from autotune.base.nested import key_in_words
from autotune.base.secrecy import HIDDEN, holds_secret
from autotune.engines.deepspeed.rules.base import Setup
from autotune.engines.deepspeed.rules.keys import SECTIONS, plain_keys
from autotune.engines.deepspeed.rules.values import REFUSED, Key, Section
from autotune.space.rule import Patch, UnknownFactError

AUTO = "auto"
"""The value that other software replaces."""

PARAMS = ("optimizer.params", "scheduler.params")
"""Sections that DeepSpeed passes on as they are to what it builds."""

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
    """The keys of a section that DeepSpeed knows: name, description, value."""
    keys = section.keys
    if type(content) is dict and len(content) > 4 * len(keys):  # mostly unknown ones
        yield from ((name, key, content[name]) for name, key in keys.items() if name in content)
        return
    yield from ((name, keys[name], value) for name, value in content.items() if name in keys)


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


class AsRead(Mapping[str, Any]):
    """A configuration as DeepSpeed reads it: converted, and unknown where nobody can read it.

    A rule that asks for a value that is not known has nothing to say: `UnknownFactError`.
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        changes: Patch,
        unread: Collection[tuple[str, ...]],
        path: tuple[str, ...] = (),
    ) -> None:
        self._content, self._changes = content, changes
        self._unread, self._path = unread, path

    def __getitem__(self, key: str) -> Any:
        here = (*self._path, key)
        if here in self._unread:
            raise UnknownFactError(".".join(map(str, here)))
        if key not in self:
            raise KeyError(key)
        value = self._content[key]
        change = self._changes.get(key, {} if isinstance(value, Mapping) else value)
        if isinstance(change, Mapping) and isinstance(value, Mapping):
            return AsRead(value, change, self._unread, here)
        return change

    def __contains__(self, key: object) -> bool:
        # None: it is dropped.
        return key in self._content and self._changes.get(str(key), key) is not None

    def __iter__(self) -> Iterator[str]:
        return (
            key for key in self._content if key in self and (*self._path, key) not in self._unread
        )

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr(dict(self))


def as_read(config: Mapping[str, Any], version: str) -> Mapping[str, Any]:
    """A configuration as a release of DeepSpeed reads it."""
    changes: dict[str, Any] = {}
    unread: set[tuple[str, ...]] = set()
    for path, content, section in sections(config):
        parts = tuple(path.split(".")) if path else ()
        for name, key, value in known_items(content, section):
            if key.accepts(value):
                continue
            if is_auto(value) and section.is_strict(version) and not key.is_raw:
                _put(changes, parts, name, None)
                continue
            taken = key.taken(value)
            taken = key.meant(value) if taken is REFUSED else taken
            if taken is REFUSED or is_auto(value):
                unread.add((*parts, name))
            else:
                _put(changes, parts, name, taken)
    for path in PARAMS:
        given = _content(config, path)
        for name, value in given.items() if isinstance(given, Mapping) else ():
            if is_auto(value):
                unread.add((*path.split("."), name))
    return AsRead(config, changes, unread) if changes or unread else config


def _put(changes: dict[str, Any], parts: tuple[str, ...], name: str, value: Any) -> None:
    for part in parts:
        changes = changes.setdefault(part, {})
    changes[name] = value


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
