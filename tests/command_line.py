"""The command line as users get it, without a start of Python for each command.

A start and its imports take seconds, a fork next to nothing: one process imports what commands
import, and forks for each of them a process with its own folder, environment and output.
"""

import functools
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.base import child_process
from tests import forked_children, unsynced
from tests.hasty import BUDGET_ENV, hurry, hurry_checks

_LONGEST_S = 300
"""Time of a command."""
_SETTINGS = {"DS_ACCELERATOR": "cpu", "COLUMNS": "80"}
_READ_AT_THE_START = (
    *("PYTHON", "DS_ACCELERATOR", "COLUMNS", "TERM", "LANG", "LC_", "OMP_"),
    *("NO_COLOR", "FORCE_COLOR", BUDGET_ENV),
)
"""How variables begin that Python or a module reads when it is loaded."""


def autotune(
    *arguments: str, folder: Path, python: Path = Path(sys.executable), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command line on CPU, as a pipe sees it; `python` may be another environment's."""
    variables = {**os.environ, **_SETTINGS, **environment}
    first = {n: v for n, v in variables.items() if n.startswith(_READ_AT_THE_START)}
    ask = _forker(python, tuple(sorted(first.items())))
    told = {"arguments": arguments, "folder": str(folder), "variables": variables}
    is_forked = child_process.run_guarded is forked_children.run_probe
    is_forked = is_forked and python == Path(sys.executable)
    answer = ask({**told, "forker": forked_children.forker() if is_forked else None})
    return subprocess.CompletedProcess(arguments, **answer)


class _Forker:
    """The process that forks, which ends with this one."""

    def __init__(self, python: Path, variables: Mapping[str, str]) -> None:
        """Start it."""
        self._process = subprocess.Popen(
            [python, "-m", __name__],
            cwd=Path(__file__).parents[1],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # what a test sends to its own group is not for this one
        )

    def __call__(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Run one command."""
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


@functools.cache
def _forker(python: Path, first: tuple[tuple[str, str], ...]) -> _Forker:
    """One for all commands of a Python with these variables."""
    others = {n: v for n, v in os.environ.items() if not n.startswith(_READ_AT_THE_START)}
    return _Forker(python, {**others, **dict(first)})


def main() -> None:
    """Answer requests until their pipe is closed; a forked process returns and is a command."""
    unsynced.leave_disks_alone()
    if BUDGET_ENV in os.environ:
        hurry()
    import autotune.app.check
    import autotune.app.run
    import autotune.cli  # noqa: F401  what most commands import

    if BUDGET_ENV in os.environ:
        hurry_checks()
    gc.freeze()  # a command that looks for garbage copies no page of what is imported
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nowhere, number)
    for line in requests:
        request = json.loads(line)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            if (pid := os.fork()) == 0:
                requests.close()
                answers.close()
                _become(request, out.fileno(), errors.fileno())
                return
            status = _wait(pid)
            said = {}
            for name, file in (("stdout", out), ("stderr", errors)):
                file.seek(0)
                said[name] = file.read().decode().replace("\r\n", "\n")
        answers.write(json.dumps({"returncode": os.waitstatus_to_exitcode(status), **said}) + "\n")
        answers.flush()


def _become(request: Mapping[str, Any], out: int, errors: int) -> None:
    """Run the command in this process; its exit is this one's."""
    os.dup2(out, 1)
    os.dup2(errors, 2)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    sys.argv = ["autotune", *request["arguments"]]
    sys.path[0] = request["folder"]
    if server := request["forker"]:  # what the command asks a process of its own is a fork too
        child_process.run_guarded = functools.partial(forked_children.run_probe, server=server)
    runpy.run_module("autotune", run_name="__main__", alter_sys=True)


def _wait(pid: int) -> int:
    signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
    signal.alarm(_LONGEST_S)
    _, status = os.waitpid(pid, 0)
    signal.alarm(0)
    return status


if __name__ == "__main__":
    main()
