"""A warm template: a process that has imported what trials import, and forks their ranks.

`python -m autotune.trial.warm CHANNEL ENGINE ACCELERATOR MODEL`, started by its node. The start of
a trial is nearly all imports. Here they are paid once. Each trial has processes of its own, forked
from this one, which runs a single thread and never computes or trains: no trial's state reaches
the next. What a process reads when it starts or imports (its environment) is the
template's, so the node keeps one template per environment.
"""

import ctypes
import gc
import json
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from autotune.base.keeper import end_with_parent, keeping
from autotune.contract import PARENT_ENV, TRIAL_ENV
from autotune.trial import wrapper
from autotune.trial.engines.base import driver_of
from autotune.trial.launcher import in_a_child, run_ranks
from autotune.trial.rendezvous import Rendezvous

READY = b"ready"
"""Message of the template once it has imported everything."""
STARTED = b"s"
"""First message of a trial's launcher; its exit code follows when it has ended."""
FILES_PASSED = 3
"""Files of every request: the trial's stdout and stderr, and where its launcher answers."""
MAX_REQUEST_BYTES = 64 * 1024
_DRIVERS_THREAD = "cuda"
"""How the name begins of a thread that CUDA's driver has once its library is loaded, as the import
of DeepSpeed does. It waits, and forked processes compute (H200, driver 580.159, torch 2.11)."""
_LONGEST_FIRST_USE_S = 60
"""Seconds after which a first use of a GPU hangs."""


def main() -> None:
    """Import everything, then fork a trial for each request until the node hangs up.

    Raises:
        RuntimeError: Importing left threads behind, in whose locks a fork would hang, or has
            initialized CUDA, which then refuses forked processes.
    """
    end_with_parent(int(os.environ[PARENT_ENV]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator decides what Ctrl-C means
    channel = socket.socket(fileno=int(sys.argv[1]))
    # What a rank imports in its own phases; heavy.
    from autotune.trial import diagnose, memory, stopwatch  # noqa: F401

    driver = driver_of(sys.argv[2])
    driver.load_code(sys.argv[3])
    driver.load_model_code(json.loads(sys.argv[4]))
    gc.freeze()  # a rank that looked for garbage would copy 100 MiB of what is imported
    _refuse_unless_children_can_compute(sys.argv[3])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody here waits for a trial's launcher
    # Until here its output went to the logs of the trial that it was started for.
    _redirect(os.open(os.devnull, os.O_WRONLY), 1, 2)
    channel.send(READY)
    while True:
        message, files, *_ = socket.recv_fds(channel, MAX_REQUEST_BYTES, FILES_PASSED)
        if not message:
            return
        _fork_launcher(json.loads(message), files, channel)
        for file in files:
            os.close(file)


def _refuse_unless_children_can_compute(accelerator: str) -> None:
    others = [task for task in Path("/proc/self/task").iterdir() if task.name != str(os.getpid())]
    names = [(task / "comm").read_text().strip() for task in others]
    if left := [name for name in names if not name.startswith(_DRIVERS_THREAD)]:
        raise RuntimeError(f"importing left threads ({', '.join(left)}), and only one may fork")
    if accelerator == "cuda" and not _child_computes():
        raise RuntimeError("importing initialized CUDA, which refuses forked processes then")


def _child_computes() -> bool:
    """Whether a forked process can use a GPU, shown by one that does."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(_LONGEST_FIRST_USE_S)
        in_a_child(_use_gpu)
    return os.waitpid(pid, 0)[1] == 0


def _use_gpu() -> int:
    import torch  # imported by the driver's code

    return int(torch.ones(2, device="cuda").sum().item() != 2)


def _fork_launcher(request: dict[str, Any], files: list[int], channel: socket.socket) -> None:
    template = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:  # that trial starts cold; the others go on
        os.write(files[1], f"no warm start: {error}\n".encode())
        return
    if pid == 0:
        channel.close()
        in_a_child(_launch, request, files, template)


def _launch(request: dict[str, Any], files: list[int], parent: int) -> int:
    """Fork the ranks of one trial, wait for them, and return the exit code of the trial.

    Args:
        request: `folder`, the fields of its `rendezvous` and the trial's own `environment`.
        files: See `FILES_PASSED`.
        parent: The template's process id.
    """
    folder, stdout, stderr, status = Path(request["folder"]), *files
    _redirect(stdout, 1)
    _redirect(stderr, 2)
    _show_trial(request["folder"])
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        os.write(status, STARTED)
    except BrokenPipeError:
        return 1  # cancelled before its turn came
    code = 1
    try:
        with keeping(parent):
            os.environ.update(request["environment"])
            tempfile.tempdir = None  # it is the template's, where that has asked for it
            code = run_ranks(folder, Rendezvous(**request["rendezvous"]), _become, folder, status)
    finally:
        os.write(status, str(code).encode())
    return code


def _become(folder: Path, status: int) -> NoReturn:
    os.close(status)  # its end says that the launcher has ended
    sys.argv = [wrapper.__file__, str(folder)]
    if "numpy" in sys.modules:  # torch's is seeded by the workload, and Python's at a fork
        sys.modules["numpy"].random.seed()
    wrapper.main(folder)


def _redirect(source: int, *targets: int) -> None:
    """Make the target descriptors copies of the source, and close the source."""
    for target in targets:
        os.dup2(source, target)
    os.close(source)


def _show_trial(folder: str) -> None:
    """Write the trial's folder into the environment as the kernel shows it to other processes.

    `/proc/PID/environ` is the memory that the environment had when the process began. The sweep
    for what a trial left behind reads it there, and the node has left room in it.
    """
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    place = libc.getenv(TRIAL_ENV.encode())
    value = os.fsencode(folder) + b"\0"
    if len(value) > len(os.environ[TRIAL_ENV]):
        raise ValueError(f"{folder}: longer than the room for it")
    ctypes.memmove(place, value, len(value))
    os.environ[TRIAL_ENV] = folder


if __name__ == "__main__":
    main()
