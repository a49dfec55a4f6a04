"""Names of keys in messages: a command was given `--seq-len`, a function `seq_len`."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_function: ContextVar[str] = ContextVar("function", default="")
"""Function of the Python API that runs; empty: a command runs."""


@contextmanager
def called(function: str) -> Iterator[None]:
    """Name keys as arguments of a function of the Python API, in this thread."""
    token = _function.set(function)
    try:
        yield
    finally:
        _function.reset(token)


def is_call() -> bool:
    """True where a function of the Python API runs, and no command."""
    return bool(_function.get())


def flag(key: str) -> str:
    """A key as it was given: `--seq-len`, or `seq_len`."""
    return key if _function.get() else f"--{key.replace('_', '-')}"


def switch(key: str, *, on: bool = True) -> str:
    """A key that turns something on or off: `--trace`, or `trace=True`."""
    if _function.get():
        return f"{key}={on}"
    return flag(key if on else f"no_{key}")


def listed(command: str) -> str:
    """Says where all keys of a command are listed."""
    if function := _function.get():
        return f"help(autotune.{function}) lists them"
    return f"`autotune {command} --help` lists them"
