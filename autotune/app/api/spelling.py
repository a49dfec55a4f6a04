"""Errors in the words of a call: commands say `--seq-len`, a caller in Python wrote `seq_len`."""

import inspect
import re
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, ParamSpec, TypeVar, Unpack, get_args, get_origin

from autotune.base.errors import AutotuneError, JobError
from autotune.base.names import did_you_mean
from autotune.job.job import keys_of

P = ParamSpec("P")
R = TypeVar("R")

_FLAG = re.compile(r"--(?:no-)?[a-z][a-z-]*[a-z]")
_HELP = re.compile(r"`autotune \w+ --help` lists them")


def spelled_for_callers(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, whose errors name its arguments instead of flags.

    Raises:
        JobError: An argument is none of the function's; else what the function raises.
    """
    name, kinds = function.__name__, dict(_arguments(function))

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        for given in kwargs:
            if given not in kinds:
                meant = did_you_mean(given, kinds, most=2, alike=0.6)
                if given == "set" and "settings" in inspect.signature(function).parameters:
                    meant = f'settings come first: autotune.{name}("zero.stage=3", ...). '
                raise JobError(
                    f"{name}({given}=...): there is no such argument",
                    f"{meant}help(autotune.{name}) lists them",
                )
        try:
            return function(*args, **kwargs)
        except AutotuneError as error:
            error.message = _in_python(error.message, name, kinds)
            error.hint = _in_python(error.hint, name, kinds)
            error.args = (error.message,)
            raise

    called.__doc__ = f"{inspect.getdoc(function)}{_listed(function)}"
    return called


def _listed(function: Callable[..., Any]) -> str:
    """Arguments of `**flags`, which a signature does not name, as the end of a docstring."""
    signature, keys = inspect.signature(function), keys_of(function.__name__)
    lines = [
        f"    {name}: {kind}. {keys[name].help if name in keys else ''}".rstrip(". ")
        for name, kind in _arguments(function)
        if name not in signature.parameters
    ]
    return "\n".join(["", "", "Flags:", *lines]) if lines else ""


def _arguments(function: Callable[..., Any]) -> Iterator[tuple[str, str]]:
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


def _in_python(text: str, name: str, kinds: dict[str, str]) -> str:
    def spelled(found: re.Match[str]) -> str:
        flag = found[0].removeprefix("--").replace("-", "_")
        for argument, value in ((flag, "True"), (flag.removeprefix("no_"), "False")):
            if argument in kinds:
                return f"{argument}={value}" if kinds[argument] == "bool" else argument
        return found[0]

    text = _HELP.sub(f"help(autotune.{name}) lists them", text)
    return _FLAG.sub(spelled, text)
