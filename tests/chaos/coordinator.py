"""A search that sends itself a signal: `python -m tests.chaos.coordinator SIGNAL WHEN WHAT ...`.

WHEN is `before` or `after`; WHAT is a function, `package.module:name`, or what becomes of a
file: `replace=NAME` (moved into place), `write=NAME` (written where it stands), `mkdir=NAME`. The
rest is what `python -m autotune` gets.
"""

import functools
import importlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hasty import hurry

_OF_FILES: dict[str, tuple[Any, str, int]] = {
    "replace": (os, "replace", 1),
    "write": (Path, "write_text", 0),
    "mkdir": (Path, "mkdir", 0),
}
"""Where such a call is, and which of its arguments is the file."""


def main() -> None:
    """Arm the signal, then search, with short trials."""
    hurry()
    number, when, what = signal.Signals[sys.argv[1]], sys.argv[2], sys.argv[3]
    del sys.argv[1:4]
    kind, _, name = what.partition("=")
    if name:
        owner, attribute, at = _OF_FILES[kind]
        _arm(owner, attribute, number, when, lambda args: Path(args[at]).name == name)
    else:
        module, _, path = what.partition(":")
        *owners, attribute = path.split(".")
        owner = functools.reduce(getattr, owners, importlib.import_module(module))
        _arm(owner, attribute, number, when, lambda _: True)
    from autotune.cli import main as search  # after it is armed: it imports what it calls

    search()


def _arm(
    owner: Any,
    attribute: str,
    number: signal.Signals,
    when: str,
    is_it: Callable[[tuple[Any, ...]], bool],
) -> None:
    """Make the first matching call send the signal, once."""
    call = getattr(owner, attribute)
    is_armed = True

    def fire() -> None:
        nonlocal is_armed
        if is_armed:
            is_armed = False
            os.kill(os.getpid(), number)

    @functools.wraps(call)
    def armed(*args: Any, **kwargs: Any) -> Any:
        matches = is_it(args)
        if matches and when == "before":
            fire()
        answer = call(*args, **kwargs)
        if matches and when == "after":
            fire()
        return answer

    setattr(owner, attribute, armed)


if __name__ == "__main__":
    main()
