"""Python processes that have torch and an engine at once, for what the tests ask of them.

A start of Python that imports them takes eight seconds of a processor, a fork next to nothing: one
process imports what they import, and forks for each question a process with its own folder,
environment, limits and output. Ranks of an engine have such a process of their own. What only a
start of Python could show is not asked here: whoever changes a variable that Python or a library
reads when it is loaded gets a process of its own.
"""

import contextlib
import functools
import gc
import importlib
import json
import os
import resource
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import autotune
from autotune.base.guarded_process import run_guarded, temporary_root
from autotune.engines.deepspeed.extensions import environment as extensions_environment

PROBES = ("autotune.tracing.child", "autotune.job.model_probe")
"""Modules that the program asks in a process of their own."""
_MODELS = ("transformers.models.gpt2.modeling_gpt2", "transformers.models.llama.modeling_llama")
"""Modules of the models that most tests ask of."""
_LONGEST_S = 900
"""Time of a code."""
_READ_AT_THE_START = (
    *("PYTHON", "LD_", "LANG", "LC_", "OMP_", "MKL_", "CUDA_HOME"),
    *("TORCH", "PYTORCH", "HF_", "TRANSFORMERS_", "USE_", "ACCELERATE_"),
)
"""How variables begin that Python or a module reads when it is loaded."""
OF_RANKS = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
"""Variables of ranks on a CPU."""
_SET_BY_LIBRARIES = ("TORCHINDUCTOR_CACHE_DIR", "PYTORCH_NVML_BASED_CUDA_CHECK")
"""Those that torch and accelerate set themselves, once a test of this process imports them."""


def run_probe(
    command: Sequence[str],
    *,
    timeout_s: float,
    input: str = "",
    data_bytes: int = 0,
    env: dict[str, str] | None = None,
    server: Mapping[str, Any] | None = None,
) -> subprocess.CompletedProcess[str]:
    """As `autotune.base.guarded_process.run_guarded`, without a start of Python for a probe.

    Args:
        command: And the others: as there.
        server: What `forker` says in another process; None: this process's own.
    """
    environment = dict(os.environ if env is None else env)
    server = server or forker()
    is_probe = list(command[:3]) == [sys.executable, "-P", "-m"] and command[3] in PROBES
    if not is_probe or _at_the_start(environment) != server["at_the_start"]:
        return run_guarded(
            command, timeout_s=timeout_s, input=input, data_bytes=data_bytes, env=env
        )
    done = ask(
        {
            "module": command[3],
            "arguments": command[4:],
            "input": input,
            "data_bytes": data_bytes,
            "variables": environment,
        },
        timeout_s=timeout_s,
        address=server["address"],
    )
    return subprocess.CompletedProcess(list(command), done.returncode, done.stdout, done.stderr)


def run_code(
    code: str, *arguments: str, folder: Path, variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """As `python -c CODE ARGUMENTS` in a folder, with these variables besides this process's."""
    told = {"code": code, "arguments": arguments, "folder": str(folder)}
    told["variables"] = {**os.environ, **variables}
    return ask(told, timeout_s=_LONGEST_S, address=forker()["address"])


def ask(
    request: Mapping[str, Any], *, timeout_s: float, address: str
) -> subprocess.CompletedProcess[str]:
    """Run a module, or code, in a forked process.

    Args:
        request: `module` or `code`; `arguments`, `variables`, `input` and `data_bytes`.
        timeout_s: Time for it.
        address: Of the process that forks.

    Raises:
        subprocess.TimeoutExpired: It took longer.
    """
    told = {"folder": str(Path.cwd()), "timeout_s": timeout_s, **request}
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(address)
        link.sendall(json.dumps(told).encode())
        link.shutdown(socket.SHUT_WR)
        with link.makefile("rb") as file:
            answer = json.loads(file.read())
    if answer["returncode"] is None:
        raise subprocess.TimeoutExpired(str(request.get("module")), timeout_s)
    return subprocess.CompletedProcess("", **answer)


@functools.cache
def forker(engine: str = "") -> dict[str, Any]:
    """The `address` of the process that forks, and the variables that it has `at_the_start`.

    It imports at its first question, and ends with this process.

    Args:
        engine: Whose ranks on a CPU it forks; empty: it forks probes and code.
    """
    folder = tempfile.mkdtemp(prefix="forker-", dir=temporary_root())
    address = f"{folder}/asked"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(16)
    command = [sys.executable, "-P", __file__, str(listener.fileno()), folder, engine]
    variables = {**_FIRST, **OF_RANKS, **extensions_environment("cpu")} if engine else _FIRST
    process = subprocess.Popen(
        command,
        cwd="/",
        env=variables,
        stdin=subprocess.PIPE,  # it ends with this process, when this pipe does
        stdout=subprocess.DEVNULL,
        pass_fds=[listener.fileno()],
        start_new_session=True,  # what a test sends to its own group is not for this one
    )
    _KEPT.append(process)
    listener.close()
    return {"address": address, "at_the_start": _at_the_start(variables)}


_KEPT: list[subprocess.Popen[bytes]] = []
"""What would end if nothing named it."""


def _at_the_start(variables: Mapping[str, str]) -> dict[str, str]:
    found = {n: v for n, v in variables.items() if n.startswith(_READ_AT_THE_START)}
    for name in _SET_BY_LIBRARIES:
        found.pop(name, None)
    # Where the package is, which the program puts before all.
    root = str(Path(autotune.__file__).parents[1])
    paths = found.pop("PYTHONPATH", "").split(os.pathsep)
    return {**found, "PYTHONPATH": os.pathsep.join(path for path in paths if path != root)}


_FIRST = dict(os.environ)
"""The variables before any test changed one."""


def main() -> None:
    """Fork for requests until the parent has ended; a forked process returns and is the module."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    has_imported = False
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready:
            shutil.rmtree(sys.argv[2], ignore_errors=True)
            return
        link, _ = listener.accept()
        if not has_imported:
            _import(sys.argv[3])
            has_imported = True
        if os.fork() == 0:
            listener.close()
            _handle(link)
        link.close()


def _import(engine: str) -> None:
    if engine:
        driver = importlib.import_module(f"autotune.trial.engines.{engine}")
        driver.load_code("cpu")
        driver.load_model_code({"config": {"model_type": "llama"}, "lora": {}})
    else:
        for name in (*PROBES, *_MODELS):
            importlib.import_module(name)
        with contextlib.suppress(ImportError):
            importlib.import_module("peft")
    if (n_threads := len(os.listdir("/proc/self/task"))) != 1:
        raise RuntimeError(f"{n_threads} threads, and only one may fork")
    gc.freeze()  # what looks for garbage copies no page of all this


def _handle(link: socket.socket) -> None:
    """Fork what is asked for, and answer with what it left; it never returns."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with link.makefile("rb") as file:
            request = json.loads(file.read())
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            files[0].write(request.get("input", "").encode())
            files[0].seek(0)
            own = stack.enter_context(tempfile.TemporaryDirectory(prefix="forked-"))
            if (pid := os.fork()) == 0:
                link.close()
                _run(request, [file.fileno() for file in files], own)
            status = _wait(pid, request["timeout_s"])
            said = {}
            for name, file in zip(("stdout", "stderr"), files[1:], strict=True):
                file.seek(0)
                said[name] = file.read().decode()
        returncode = None if status is None else os.waitstatus_to_exitcode(status)
        link.sendall(json.dumps({"returncode": returncode, **said}).encode())
        code = 0
    finally:
        os._exit(code)


def _wait(pid: int, timeout_s: float) -> int | None:
    """Status of a process, or None where it took longer and was killed, with its group."""
    handle = os.pidfd_open(pid)
    ready, _, _ = select.select([handle], [], [], timeout_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return status if ready else None


def _run(request: Mapping[str, Any], files: Sequence[int], own: str) -> None:
    """Be the module that is asked for; its exit is this one's."""
    code = 1
    try:
        os.setsid()
        for number, file in enumerate(files):
            os.dup2(file, number)
        if most := request.get("data_bytes", 0):
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["variables"], AUTOTUNE_SCRATCH=own, TMPDIR=own)
        tempfile.tempdir = None
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [path for path in paths if path and path not in sys.path]
        sys.argv = [request.get("module", "-c"), *request["arguments"]]
        sys.modules.pop(request.get("module", ""), None)  # it is `__main__` here
        code = _exit_of(request)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _exit_of(request: Mapping[str, Any]) -> int:
    try:
        if "module" in request:
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        else:
            exec(compile(request["code"], "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    main()
