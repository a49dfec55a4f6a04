"""Numbers of a file as DeepSpeed's own reader has them.

It reads with hjson, which takes 5e8 and 2.0 for whole numbers (hjson/decoder.py).
"""

from collections.abc import Mapping
from typing import Any

_AS_THEY_ARE = frozenset((int, str, bool, type(None)))
_MOST = 1e10
"""Size from which the reader leaves a number as it is."""


def as_read(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration as DeepSpeed's reader makes it; the same object where nothing changes."""
    return _read(config)  # type: ignore[no-any-return]


def _read(value: Any) -> Any:
    kind = type(value)
    if kind in _AS_THEY_ARE:  # nearly every value: asking for a Mapping takes far longer
        return value
    if kind is float:
        return int(value) if value.is_integer() and abs(value) < _MOST else value
    if kind is dict or isinstance(value, Mapping):
        made = {name: _read(inner) for name, inner in value.items()}
        return made if any(made[name] is not value[name] for name in made) else value
    if isinstance(value, list):
        items = [_read(inner) for inner in value]
        return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
    return value
