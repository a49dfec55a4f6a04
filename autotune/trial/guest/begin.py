"""The start of a process below a user's own command: which ones are ranks, and what they wait for.

The command may start launchers that start launchers: only ranks have a number in their
environment. What a rank starts itself, such as workers that load data, is not one of them.
"""

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.base.keeper import has_ended
from autotune.contract import ContractError
from autotune.trial.guest import quiet
from autotune.trial.guest.edits import Edits
from autotune.trial.guest.hooks import Wrapper, call_after_imports
from autotune.trial.guest.reading import watch_reading
from autotune.trial.prebuilt import use_built

GUEST_ENV = "AUTOTUNE_GUEST_DIR"
"""Folder of the trial: set where the user's command is started, and for all below it."""
OWNER_FILE = "{rank:02d}.owner"
"""File below `RANKS_DIR`: the process that is the rank. Its children inherit the number."""
REACHED_FILE = "reached"
"""File below `RANKS_DIR`: some Python of the command has begun here, be it a rank or not."""

_TRAINING = (
    ("deepspeed", "initialize"),
    ("accelerate.accelerator", "Accelerator.__init__"),
    ("accelerate.utils.deepspeed", "HfDeepSpeedConfig.__init__"),
    ("transformers.training_args", "TrainingArguments.__post_init__"),
)
"""What a script calls first when it is about to train, by module and place; launchers do not."""


def begin() -> None:
    """Be a rank, or wait until this process turns out to be one."""
    folder = Path(os.environ[GUEST_ENV])
    with contextlib.suppress(OSError):
        (folder / "ranks" / REACHED_FILE).touch()
    with contextlib.suppress(ContractError):  # a rank says what is wrong with it
        watch_reading(Edits.of_trial(folder).files, str(folder))
    number = os.environ.get("RANK", "")
    if number.isdecimal() and "LOCAL_RANK" in os.environ:
        if take_rank(folder, int(number)):
            _be_rank(folder, int(number))
        return
    waiting = _Waiting(folder)
    calls = [(module, place, waiting.first(module, place)) for module, place in _TRAINING]
    calls.append(("deepspeed", "", lambda _: use_built()))  # `init_distributed` loads one
    calls += [("deepspeed.constants", "", _use_port), *quiet.HYDRA]
    call_after_imports([*calls, ("torch.optim.optimizer", "", waiting.on_steps)])


def _use_port(constants: ModuleType) -> None:
    """Let DeepSpeed's launcher, which reads no variable, meet at the trial's port by default."""
    if (port := os.environ.get("MASTER_PORT", "")).isdecimal():  # a script may take it away
        vars(constants)["TORCH_DISTRIBUTED_DEFAULT_PORT"] = int(port)


def take_rank(folder: Path, rank: int) -> bool:
    """Make this process the rank of that number; True for the first process that asks.

    A rank that has ended is not started again: its trial is over. Launchers that do so, as
    torchrun with --max-restarts, run out of tries.
    """
    path = folder / "ranks" / OWNER_FILE.format(rank=rank)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        pid = owner_of(path)
        if pid == os.getpid():
            return True  # it has put another program in its own place
        if pid is not None and has_ended(pid):
            print(f"autotune: rank {rank} has ended, and its trial with it", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)
        return False
    except OSError:
        return False
    os.write(handle, owner_text(os.getpid()).encode())
    os.close(handle)
    return True


def owner_text(pid: int) -> str:
    """What an owner's file holds: the process, and the machine that it is on."""
    return f"{pid} {os.uname().nodename}"


def owner_of(path: Path) -> int | None:
    """The process in an owner's file; None: it is on another machine, or not written yet."""
    with contextlib.suppress(OSError):
        pid, _, machine = path.read_text(encoding="utf-8").partition(" ")
        if pid.isdecimal() and machine == os.uname().nodename:
            return int(pid)
    return None


def _be_rank(folder: Path, rank: int) -> None:
    from autotune.trial.guest.rank import Guest

    Guest.begin(folder, rank)


class _Waiting:
    """A process without a number: a launcher, or a script that is started without one.

    It is a rank once it trains, whatever number it has got by then.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_over = False

    def first(self, module: str, place: str) -> Wrapper:
        """The wrapper of a call that trains: before the first one, this process becomes a rank."""

        def call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if self._is_over:
                return original(*args, **kwargs)
            self._become_rank()
            # What stands there by now: a rank has wrapped it as well.
            again: Any = functools.reduce(getattr, place.split("."), sys.modules[module])
            return again(*args, **kwargs)

        return call

    def on_steps(self, module: ModuleType) -> None:
        """Wait for an optimizer's step, for a script may train without DeepSpeed."""
        # It stays: torch goes through its hooks while it calls this one.
        module.register_optimizer_step_pre_hook(lambda *_: self._become_rank())

    def _become_rank(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        number = _number()
        if take_rank(self._folder, number):
            _be_rank(self._folder, number)


def _number() -> int:
    """This rank's number, by its process group or its environment; 0: it is alone."""
    group = sys.modules.get("torch.distributed")
    if group is not None and group.is_available() and group.is_initialized():
        return int(group.get_rank())
    number = os.environ.get("RANK", "")
    return int(number) if number.isdecimal() else 0
