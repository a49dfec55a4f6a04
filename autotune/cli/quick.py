"""Commands that start without pydantic, which Typer imports to convert any value of a flag.

That takes a fifth of the time of a short command, also where no flag was given. What needs no
conversion is taken as it is; all else, and all that is wrong, is left to Typer.
"""

import re
from collections.abc import Callable
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from autotune.cli.help import HelpfulCommand, HelpfulGroup

_NOT_CONVERTED = object()
_COUNT = re.compile(r"[0-9]{1,15}")


class _Quick:
    """For a command whose flags have no bounds, no parser and no path that must exist."""

    def get_params(self, context: Any) -> list[Any]:
        """Flags of the command, and `--help`."""
        params: list[Any] = super().get_params(context)  # type: ignore[misc]
        for param in params:
            if not isinstance(param.process_value, partial):
                param.process_value = partial(_processed, param, param.process_value)
        return params


class QuickCommand(_Quick, HelpfulCommand):
    """A command that starts without pydantic."""


class QuickGroup(_Quick, HelpfulGroup):
    """The command above them."""


def _processed(param: Any, process: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    """What `process`, the parameter's own method, makes of a value."""
    kind = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    taken = _taken(kind, value)
    if taken is _NOT_CONVERTED or (param.required and param.value_is_missing(taken)):
        return process(context, value)
    return taken if param.callback is None else param.callback(context, param, taken)


def _taken(kind: Any, value: Any) -> Any:
    """A value as the type that a function declares for it; `_NOT_CONVERTED`: Typer knows."""
    if value is None and kind in (bool, str, int, Path):
        return None
    if isinstance(value, bool) and kind is bool:
        return value
    if isinstance(value, str) and kind in (str, Path):
        return kind(value)
    if isinstance(value, str) and kind is int and _COUNT.fullmatch(value):
        return int(value)
    if kind == list[str] and (value is None or isinstance(value, list | tuple)):
        is_text = all(isinstance(one, str) for one in value or ())
        return list(value or ()) if is_text else _NOT_CONVERTED
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next((one for one in kind if value in (one, one.value)), _NOT_CONVERTED)
    return _NOT_CONVERTED
