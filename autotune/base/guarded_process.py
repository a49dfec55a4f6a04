"""Starts processes that never outlive this one: the only way in which this program starts any.

Exceptions are the ranks of a trial with what stands between them and their node: see
`autotune.trial.launcher`. Their node is started here.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from autotune.base import keeper
from autotune.contract import PARENT_ENV, SCRATCH_ENV

_LONGEST_ROOT = 45
"""Characters of a folder below which sockets of workers still fit: their paths have at most 107,
and a folder of ours, one of multiprocessing and a name come after it."""


class GuardedProcess(subprocess.Popen[Any]):
    """A command under a keeper, which ends with all that it started: see `autotune.base.keeper`.

    Exit codes and signals are the command's own. It has a session and a folder for temporary
    files of its own; that folder is in its environment as `SCRATCH_ENV`, and goes with it.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        wall_s: float = 0.0,
        grace_s: float = 0.0,
        data_bytes: int = 0,
        is_tmpdir: bool = True,
        **options: Any,
    ) -> None:
        """Start it.

        Args:
            command: With its arguments.
            wall_s: Seconds after which it is killed, even if nobody here looks; 0: never.
            grace_s: Seconds that it gets to end by itself if this process is killed.
            data_bytes: Private memory that each of its processes may have; 0: any.
            is_tmpdir: Whether its folder is what `TMPDIR` names as well.
            options: As of `Popen`.

        Raises:
            OSError: It cannot be started.
        """
        environment = options.get("env") or os.environ
        request = {
            "parent": os.getpid(),
            "root": environment.get(SCRATCH_ENV) or temporary_root(),
            **keeper_options(
                wall_s=wall_s, grace_s=grace_s, data_bytes=data_bytes, is_tmpdir=is_tmpdir
            ),
        }
        started = [sys.executable, "-I", "-S", keeper.__file__, json.dumps(request), *command]
        super().__init__(started, start_new_session=True, **options)

    def kill(self) -> None:
        """Kill the command and all that it started: the keeper does, and ends last."""
        self.send_signal(signal.SIGTERM)
        self.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(keeper.END_WAIT_S)


def keeper_options(
    *, wall_s: float = 0.0, grace_s: float = 0.0, data_bytes: int = 0, is_tmpdir: bool = True
) -> dict[str, Any]:
    """What a keeper is told besides its `parent` and the `root` of its folder.

    The arguments are those of `GuardedProcess`.
    """
    return {
        "wall_s": wall_s,
        "grace_s": grace_s,
        "data_bytes": data_bytes,
        "is_tmpdir": is_tmpdir,
        "parent_env": PARENT_ENV,
        "scratch_env": SCRATCH_ENV,
    }


def run_guarded(
    command: Sequence[str],
    *,
    timeout_s: float,
    input: str = "",
    data_bytes: int = 0,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and return its code with what it wrote.

    Raises:
        OSError: It cannot be started.
        subprocess.TimeoutExpired: It took longer; nothing of it is left.
    """
    process = GuardedProcess(
        command,
        # Were this program stopped meanwhile, nobody would look at the clock.
        wall_s=2 * timeout_s,
        data_bytes=data_bytes,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            stdout, stderr = process.communicate(input, timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(list(command), process.returncode, stdout, stderr)


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A private folder for temporary files.

    If this process is killed, the next one that makes such a folder removes it.

    Raises:
        OSError: It cannot be made.
    """
    scratch = keeper.Scratch(os.environ.get(SCRATCH_ENV) or temporary_root())
    try:
        yield Path(scratch.path).resolve()
    finally:
        scratch.remove()


def temporary_root() -> str:
    """The user's folder for temporary files, or /tmp where its name is too long for sockets."""
    root = os.path.realpath(tempfile.gettempdir())
    is_short = len(os.fsencode(root)) <= _LONGEST_ROOT
    return root if is_short or not os.access("/tmp", os.W_OK | os.X_OK) else "/tmp"
