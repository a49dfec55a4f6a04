"""Look at the machine: packages, programs, accelerators, extensions, limits. Changes nothing.

As a program it answers what there is, for `doctor --fleet`.
"""

import importlib.util
import os
import platform
import resource
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from autotune.base.errors import FleetError
from autotune.base.guarded_process import run_guarded, scratch_folder
from autotune.devices.hardware import (
    find_accelerator,
    torch_cuda_version,
    usable_memory_bytes,
    version_of,
    visible_gpus,
)
from autotune.devices.in_use import watch_devices
from autotune.doctor.diagnosis import Machine
from autotune.engines.base import installed_engines
from autotune.fleet.node.answers import answer

PACKAGES = ("transformers", "optuna", "pydantic", "pandas", "pyarrow", "nvidia-ml-py", "numpy")
TOOLS = ("gcc", "g++", "ninja", "nvcc", "numactl", "ssh", "pdsh")
_COMPILE_S = 60.0
_LIBAIO_PROGRAM = "#include <libaio.h>\nint main(void) { return io_submit(0, 0, 0); }\n"


def inspect_machine() -> Machine:
    """Collect the facts; about a second, in which it watches how busy the cores are."""
    problem = fix = ""
    accelerator: str | None = None
    try:
        accelerator, _ = find_accelerator()
    except FleetError as error:
        problem, fix = error.message, error.hint
    engines = installed_engines()
    needed = [package.name for engine in engines for package in engine.packages]
    compiled = [build.compiled(accelerator or "cpu") for build in engines]
    return Machine(
        python=platform.python_version(),
        packages={name: version_of(name) for name in ("torch", *needed, *PACKAGES)},
        tools={name: _path_of(name) for name in TOOLS},
        uncompiled=uncompiled_folder("torch"),
        has_python_headers=(Path(sysconfig.get_path("include")) / "Python.h").exists(),
        has_libaio=has_libaio(),
        accelerator=accelerator,
        accelerator_problem=problem,
        accelerator_fix=fix,
        torch_cuda=torch_cuda_version(),
        n_gpus=len(visible_gpus()),
        devices=watch_devices(accelerator),
        load_average=os.getloadavg()[0],
        memory_bytes=usable_memory_bytes(),
        memlock_bytes=_memlock_bytes(),
        shm_bytes=_shm_bytes(),
        extensions_folder=os.pathsep.join(
            _once(build.folder for build in compiled if build.folder)
        ),
        extensions_built=_once(name for build in compiled for name in build.built),
        extensions_missing=_once(n for c in compiled for n in c.missing) if accelerator else (),
        stale_locks=_once(path for build in compiled for path in build.stale_locks),
        misread=tuple(build for of_engine in compiled for build in of_engine.misread),
    )


def _once(names: Iterable[str]) -> tuple[str, ...]:
    """Engines that stand on one another compile the same."""
    return tuple(dict.fromkeys(names))


def _path_of(tool: str) -> str | None:
    if found := shutil.which(tool):
        return found
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    nvcc = Path(home) / "bin" / "nvcc"  # where torch looks too
    return str(nvcc) if tool == "nvcc" and nvcc.exists() else None


def uncompiled_folder(package: str) -> str:
    """The folder of a package that every process compiles again; empty where none has to.

    pip compiles what it installs; uv and `pip install --no-compile` leave that to the first
    import, and that keeps nothing under PYTHONDONTWRITEBYTECODE or in a folder of others.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return ""
    cached = Path(importlib.util.cache_from_source(spec.origin))
    folder = next(parent for parent in cached.parents if parent.is_dir())
    is_keeping = not sys.dont_write_bytecode and os.access(folder, os.W_OK)
    return "" if cached.exists() or is_keeping else str(Path(spec.origin).parent)


def has_libaio() -> bool:
    """Try it as DeepSpeed's builder does: compile and link, with the user's own flags."""
    compiler = shutil.which("gcc")
    if compiler is None:
        return False
    flags = shlex.split(f"{os.environ.get('CFLAGS', '')} {os.environ.get('LDFLAGS', '')}")
    with scratch_folder() as folder:
        command = [compiler, "-x", "c", "-", *flags, "-laio", "-o", str(folder / "probe")]
        try:
            done = run_guarded(command, input=_LIBAIO_PROGRAM, timeout_s=_COMPILE_S)
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0


def _memlock_bytes() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def _shm_bytes() -> int | None:
    try:
        return shutil.disk_usage("/dev/shm").total
    except OSError:
        return None


if __name__ == "__main__":
    answer(inspect_machine)
