"""Changes of data, nested like it: what edits of texts are told, and what they are checked by."""

import json
from collections.abc import Mapping
from typing import Any

from autotune.space.rule import Patch

_ONE_OF_A_KIND = frozenset({str, int, bool, type(None)})
"""Types whose values are the same where Python says so."""
NULL = object()
"""A value of changes: the key stays, or comes, and is null."""


def same_data(one: Any, other: Any) -> bool:
    """Whether two values are the same, type by type, whatever the order of keys."""
    if type(one) is type(other) and type(one) in _ONE_OF_A_KIND:
        return bool(one == other)
    # Most are in the same order, too, and need not be sorted.
    return repr(one) == repr(other) or plain(one) == plain(other)


def plain(value: Any) -> str:
    """A value as text: to Python, 16.0 is 16 and 1 is True."""
    try:
        return json.dumps(value, sort_keys=True, default=repr)
    except TypeError:  # keys of YAML may be of several types, which Python does not sort
        return json.dumps(_with_text_keys(value), sort_keys=True, default=repr)


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {repr(name): _with_text_keys(inner) for name, inner in value.items()}
    return [_with_text_keys(one) for one in value] if isinstance(value, list) else value


def with_changes(data: Mapping[str, Any], changes: Patch) -> dict[str, Any]:
    """Data after changes."""
    after = dict(data)
    for name, value in changes.items():
        if isinstance(value, Mapping):
            section = after.get(name)
            after[name] = with_changes(section if isinstance(section, Mapping) else {}, value)
        elif value is None:
            after.pop(name, None)
        else:
            after[name] = None if value is NULL else value
    return after


def changes_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The changes with which one mapping becomes another."""
    found: dict[str, Any] = dict.fromkeys(name for name in before if name not in after)
    for name, new in after.items():
        old = before.get(name)
        if isinstance(new, Mapping):
            inner = changes_between(old if isinstance(old, Mapping) else {}, new)
            if inner or not isinstance(old, Mapping):
                found[name] = inner
        elif name not in before or not same_data(old, new):
            found[name] = NULL if new is None else new
    return found
