"""Calls of the Python API: their arguments are checked, listed, and named in errors."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, Unpack, get_args, get_origin

from autotune.base.errors import JobError
from autotune.base.flags import called, listed
from autotune.base.names import did_you_mean
from autotune.job.job import keys_of

R = TypeVar("R")


def for_callers(function: Callable[..., R]) -> Callable[..., R]:
    """The function as callers have it: a path is a text, None is not given.

    Raises:
        JobError: An argument is none of the function's; else what the function raises.
    """
    name, kinds = function.__name__, dict(arguments_of(function))

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> R:
        for given in kwargs:
            if given not in kinds:
                meant = did_you_mean(given, kinds, most=2, alike=0.6)
                if given == "set" and "settings" in inspect.signature(function).parameters:
                    meant = f'settings come first: autotune.{name}("zero.stage=3", ...). '
                with called(name):
                    none = f"{name}({given}=...): there is no such argument"
                    raise JobError(none, meant + listed(name))
        given_values = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in kwargs.items()
            if value is not None
        }
        with called(name):
            return function(*args, **given_values)

    call.__doc__ = f"{inspect.getdoc(function)}{_flags(function)}"
    return call


def each_of(value: str | Sequence[str]) -> list[str]:
    """Values of an argument that may have several; a text is one value, not its letters."""
    return [value] if isinstance(value, str) else list(value)


def arguments_of(function: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """Names and types of the arguments, those of typed `**flags` and keys of a job one by one."""
    for parameter in inspect.signature(function).parameters.values():
        kind = parameter.annotation
        if get_origin(kind) is Unpack:
            keys = keys_of(function.__name__)
            for name, typed in get_args(kind)[0].__annotations__.items():
                if name not in keys:
                    yield name, inspect.formatannotation(typed)
            yield from ((name, key.argument) for name, key in keys.items())
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            yield parameter.name, inspect.formatannotation(kind)


def _flags(function: Callable[..., Any]) -> str:
    """Arguments of `**flags`, which a signature does not name, as the end of a docstring."""
    signature, keys = inspect.signature(function), keys_of(function.__name__)
    lines = [
        f"    {name}: {kind}. {keys[name].described if name in keys else ''}".rstrip(". ")
        for name, kind in arguments_of(function)
        if name not in signature.parameters
    ]
    return "\n".join(["", "", "Flags:", *lines]) if lines else ""
