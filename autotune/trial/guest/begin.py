"""The start of a process below a user's own command: which ones are ranks, and what they wait for.

The command may start launchers that start launchers: only ranks have a number in their
environment. What a rank starts itself, such as workers that load data, is not one of them.
"""

import os
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.trial.guest.hooks import call_after_imports

GUEST_ENV = "AUTOTUNE_GUEST_DIR"
"""Folder of the trial: set where the user's command is started, and for all below it."""
DESCRIPTION_FILE = "description.json"
"""File below `RANKS_DIR`: what the command trains, as its first rank saw it."""
OWNER_FILE = "{rank:02d}.owner"
"""File below `RANKS_DIR`: the process that is the rank. Its children inherit the number."""


def begin() -> None:
    """Wait for the modules by which a training script reaches DeepSpeed."""
    folder = Path(os.environ[GUEST_ENV])
    number = os.environ.get("RANK", "")
    if number.isdecimal() and "LOCAL_RANK" in os.environ:
        if not take_rank(folder, int(number)):
            return
        from autotune.trial.guest.rank import Guest

        Guest.begin(folder)
        return
    # A launcher, or a script that is started without one: it is a rank once it trains.
    call_after_imports({"deepspeed": lambda module: _wait_for_training(folder, module)})


def take_rank(folder: Path, rank: int) -> bool:
    """Whether this process is the rank of that number: the first that says so."""
    path = folder / "ranks" / OWNER_FILE.format(rank=rank)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    os.write(handle, str(os.getpid()).encode())
    os.close(handle)
    return True


def _wait_for_training(folder: Path, module: ModuleType) -> None:
    """Become rank 0 when a process without a number makes an engine."""
    initialize = module.initialize

    def first_initialize(*args: Any, **kwargs: Any) -> Any:
        module.initialize = initialize  # type: ignore[attr-defined]
        os.environ.setdefault("LOCAL_RANK", "0")
        if os.environ.get("RANK", "0") == "0" and take_rank(folder, 0):
            from autotune.trial.guest.rank import Guest

            Guest.begin(folder, rank=0).on_deepspeed(module)
        return module.initialize(*args, **kwargs)

    module.initialize = first_initialize  # type: ignore[attr-defined]
