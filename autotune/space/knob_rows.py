"""Knobs as rows of a JSON file: the fields of a knob, with its functions by their names."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar

from autotune.contract import KnobValue
from autotune.space.knob import Context, Knob, Knobs

K = TypeVar("K", bound=Knob)

_FUNCTIONS = ("acts", "fold", "reader")
_LISTS = ("choices", "needs_cuda", "more_keys")


def read_knobs(path: Path, kind: type[K], *modules: ModuleType) -> dict[str, K]:
    """Knobs by name, in the order of the file.

    A row may have two entries besides: `left_alone`, values at which it does not act, and `why`,
    a remark for people.

    Args:
        path: The file: name -> row.
        kind: The class of the knobs.
        modules: Where functions are that rows name, without a leading underscore.
    """
    functions = {
        name.lstrip("_"): value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, FunctionType)
    }
    rows = json.loads(path.read_text(encoding="utf-8"))
    return {name: _knob(name, row, kind, functions) for name, row in rows.items()}


def _knob(name: str, row: Mapping[str, Any], kind: type[K], functions: Mapping[str, Any]) -> K:
    entries = {key: value for key, value in row.items() if key not in ("why", "left_alone")}
    for key in _FUNCTIONS:
        if key in entries:
            entries[key] = functions[entries[key]]
    for key in _LISTS:
        if key in entries:
            entries[key] = tuple(entries[key])
    if "when" in entries:
        entries["when"] = {other: tuple(values) for other, values in entries["when"].items()}
    if "default_when" in entries:
        entries["default_when"] = {(o, at): value for o, at, value in entries["default_when"]}
    if "left_alone" in row:
        entries["acts"] = _off(name, row["left_alone"], entries["acts"])
    return kind(name=name, **entries)


def _off(
    name: str, left_alone: list[KnobValue], acts: Callable[[Knobs, Context], bool]
) -> Callable[[Knobs, Context], bool]:
    return lambda values, context: values.get(name) not in left_alone and acts(values, context)
