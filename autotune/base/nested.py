"""Nested mappings: their depth and leaves, one laid over another, reading by a dotted path."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

MAX_DEPTH = 50
"""Levels of a user's file: far above any ds_config, far below what Python's stack takes."""

MISSING = object()
"""A value that is not there."""
_PLAIN_NAME = re.compile(r'[^\s."]+')
_NAME = re.compile(r'"(?:[^"\\]|\\.)*"|[^.]+')


@dataclass(frozen=True)
class Unknown:
    """A value that stands in a file, or will, and that nobody here can read."""

    why: str
    """Such as `put in at run time`."""
    written: Any = None
    """What stands there: `auto`, or a word that a shell replaces."""


def as_written(value: Any) -> Any:
    """The same with what stands in the file in place of every value that is `Unknown`."""
    if isinstance(value, Mapping):
        return {name: as_written(inner) for name, inner in value.items()}
    return value.written if isinstance(value, Unknown) else value


def is_too_deep(data: Any) -> bool:
    """Whether sections and lists are nested deeper than `MAX_DEPTH`."""
    depth, level = 0, [data]  # a recursion would run out of the stack that this protects
    while level and depth <= MAX_DEPTH:
        depth += 1
        nested = [one for one in level if isinstance(one, dict | list)]
        level = [i for one in nested for i in (one.values() if isinstance(one, dict) else one)]
    return depth > MAX_DEPTH


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `over` over `under`, section by section; neither is changed."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged


def differences(
    before: Mapping[str, Any], after: Mapping[str, Any], at: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Path of what differs, and its values; `MISSING` where it is not there."""
    for key in sorted({*before, *after}):
        old, new = before.get(key, MISSING), after.get(key, MISSING)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from differences(old, new, (*at, key))
        else:
            yield (*at, key), old, new


def clashes(
    under: Mapping[str, Any], over: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Keys that both have with different values: dotted path, (value below, value above)."""
    for path, below, above in differences(under, over):
        if MISSING not in (below, above):
            yield ".".join(path), (below, above)


def value_at(data: Mapping[str, Any], path: Sequence[str]) -> Any:
    """The value at a path of keys, None where there is none (JSON's null counts as none)."""
    value: Any = data
    for name in path:
        # A lattice looks up millions, nearly all of them in dicts.
        is_section = type(value) is dict or isinstance(value, Mapping)
        value = value.get(name) if is_section else None
    return value


def look_up(config: Mapping[str, Any], path: str) -> Any:
    """`value_at` of a dotted path."""
    return value_at(config, _keys_of(path))


@lru_cache(maxsize=4096)
def _keys_of(path: str) -> tuple[str, ...]:
    return tuple(path.split("."))


def leaves(value: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Path and value of everything that is no section with something in it."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from leaves(inner, (*at, str(name)))
    else:
        yield at, value


def nested(places: Iterable[tuple[Sequence[str], Any]]) -> dict[str, Any]:
    """Values as sections, each with the path of its keys."""
    found: dict[str, Any] = {}
    for (*sections, name), value in places:
        inner = found
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    return found


def without(config: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A copy that lacks the key at a dotted path."""
    head, _, rest = path.partition(".")
    copy = dict(config)
    if not rest:
        copy.pop(head, None)
    elif isinstance(copy.get(head), Mapping):
        copy[head] = without(copy[head], rest)
    return copy


def key_in_words(name: object) -> str:
    """A key as messages show it: quoted where it would be read for something else."""
    if name is None or isinstance(name, bool):  # YAML's
        return json.dumps(name)
    text = str(name)
    return text if _PLAIN_NAME.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def dotted(path: Iterable[object]) -> str:
    """A path of keys as messages show it; `path_of` reads it."""
    return ".".join(map(key_in_words, path))


def path_of(name: str) -> tuple[str, ...]:
    """The path that a dotted name stands for."""
    found = _NAME.findall(name)
    return tuple(json.loads(one, strict=False) if one[0] == '"' else one for one in found)


def kind_in_words(value: Any) -> str:
    """Name of a value that is no mapping, such as `a list`."""
    if value is None:
        return "null"
    kinds = {list: "a list", str: "a text", bool: "true or false", int: "a number"}
    return kinds.get(type(value), "a number" if isinstance(value, float) else "one value")
