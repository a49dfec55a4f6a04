"""The diagnosis: what works here and what would not; as a program it answers `doctor --fleet`."""

import importlib.util
import os
import platform
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

from autotune import DEFAULT_ENGINE
from autotune.base.errors import FleetError
from autotune.base.guarded_process import run_guarded, scratch_folder
from autotune.base.units import format_count
from autotune.devices.hardware import (
    find_accelerator,
    torch_cuda_version,
    usable_memory_bytes,
    version_of,
    visible_gpus,
)
from autotune.devices.in_use import REMEDY, in_use, watch_devices
from autotune.doctor.diagnosis import Examination, Machine, Remark, Speed, remarks
from autotune.engines.base import EnginePackage, installed_engines
from autotune.fleet.base import THIS_MACHINE
from autotune.fleet.node.answers import answer
from autotune.fleet.transports.base import Node
from autotune.fleet.transports.local import LocalTransport
from autotune.probe.measuring import ProbeRequest, measure
from autotune.probe.points import Point

MAX_CORES = 16
"""Cores that take part at the most, evenly spread: each is a process that imports torch."""
TIMEOUT_S = 60.0


def measure_speed(accelerator: str, devices: Sequence[int]) -> Speed:
    """Run the matrix product and the all-reduce: gloo over cores, NCCL over GPUs.

    The devices are core numbers, or the indices of all visible GPUs. If a process failed or hung,
    there is a `problem` and no figures.
    """
    chosen = _spread(devices, MAX_CORES) if accelerator == "cpu" else tuple(devices)
    started_at_s = time.monotonic()
    gpus = () if accelerator == "cpu" else visible_gpus()
    uuids = {gpu.index: gpu.uuid for gpu in gpus}
    names = tuple(uuids.get(device, str(device)) for device in chosen)
    node, found = Node(name=THIS_MACHINE, devices=names), dict[str, Any]()
    wanted = ProbeRequest(precisions=(), only="speed")
    try:
        measured = measure(LocalTransport(node), [node], wanted, accelerator, timeout_s=TIMEOUT_S)
    except FleetError as error:
        found = {"problem": error.message, "fix": error.hint}
    else:
        for point in measured.points:
            if point.kind == "matmul":
                found["matmul"] = f"{point.shape[0]} x {point.shape[2]} {point.dtype}"
                found["matmul_flops"] = tuple(point.flops / s for s in point.seconds)
            elif point.kind == "all_reduce":
                found["all_reduce_bytes"] = point.size_bytes
                found["all_reduce_busbw"] = _busbw(point)
    return Speed(devices=chosen, wall_s=time.monotonic() - started_at_s, **found)


def _busbw(reduced: Point) -> float:
    n = len(reduced.ranks)
    return 2 * (n - 1) / n * reduced.size_bytes / reduced.slowest_s


def _spread(devices: Sequence[int], at_most: int) -> tuple[int, ...]:
    n = min(len(devices), at_most)
    return tuple(devices[i * len(devices) // n] for i in range(n))


SLOW = 0.10
"""How far below the median a device may be."""
LOW_MEMLOCK_BYTES = 2**30
LOW_SHM_BYTES = 2**30


def diagnose(*, measure: bool = True, note: Callable[[str], None] = lambda _: None) -> Examination:
    """Examine this machine; a few seconds, and at most a minute where communication hangs.

    To measure is to run the matrix product and the all-reduce, in processes of their own. `note`
    is told each part before it begins.
    """
    note("looking at packages, compiled extensions and devices")
    machine = inspect_machine()
    runs = measure and machine.packages["torch"] is not None and machine.accelerator is not None
    devices = [device.index for device in machine.devices]
    if runs:
        note(
            f"measuring a matrix product and an all-reduce on {_counted(machine)}: "
            f"about 10 s, at most {TIMEOUT_S:.0f}"
        )
    speed = measure_speed(machine.accelerator or "", devices) if runs else None
    return Examination(machine=machine, speed=speed, findings=conclude(machine, speed))


def conclude(
    machine: Machine, speed: Speed | None, *, is_node: bool = False
) -> tuple[Remark, ...]:
    """All findings, in the order in which one would mend them.

    Without `speed` nothing was measured. A node of a fleet trains, and the search runs elsewhere.
    """
    lacking = [tool for tool in ("g++", "ninja") if machine.tools.get(tool) is None]
    if machine.accelerator == "cuda" and machine.tools.get("nvcc") is None:
        lacking.append("nvcc")
    if not machine.has_python_headers:
        lacking.append("Python.h")
    values = {
        "machine": machine,
        "is_node": is_node,
        "versions": [*_versions(machine)],
        "uncompiled_parent": str(Path(machine.uncompiled).parent),
        "kinds": sorted({device.name for device in machine.devices}),
        "devices": _counted(machine),
        "lacking": lacking,
        "in_use": in_use(
            machine.devices, machine.load_average if machine.accelerator == "cpu" else None
        ),
        "remedy": REMEDY,
        "removed": [*_removed(machine)],
        "low_memlock_bytes": LOW_MEMLOCK_BYTES,
        "low_shm_bytes": LOW_SHM_BYTES,
        "speed": speed,
        "slow_share": SLOW,
    }
    if speed is not None and not speed.problem:
        median = statistics.median(speed.matmul_flops)
        values["median_flops"] = median
        values["slow"] = [
            f"{device} ({flops / median - 1:+.0%})"
            for device, flops in zip(speed.devices, speed.matmul_flops, strict=True)
            if flops < (1 - SLOW) * median
        ]
    return tuple(remarks("machine", values))


def engine_packages() -> dict[str, EnginePackage]:
    """Packages that the installed engines need, by name."""
    return {package.name: package for engine in installed_engines() for package in engine.packages}


def minimum_versions() -> dict[str, str]:
    """Releases that pyproject.toml asks for, and those that engines of others need."""
    engines = {name: package.least for name, package in engine_packages().items()}
    ours = {"transformers": "5.0", "optuna": "5.0"}
    return {"python": "3.11", "torch": "2.5", **engines, **ours}


def _versions(machine: Machine) -> Iterator[dict[str, Any]]:
    packages = engine_packages()
    optional = {
        package.name: engine.name
        for engine in installed_engines()
        if engine.name != DEFAULT_ENGINE
        for package in engine.packages
    }
    installed = {"python": machine.python, **machine.packages}
    for name, minimum in minimum_versions().items():
        version, tried = installed.get(name), packages[name].tried if name in packages else ()
        state = ""
        if version is None:
            state = "optional" if name in optional else "missing"
        elif Version(version) < Version(minimum):
            state = "old"
        elif tried and Version(version).release > Version(tried[-1]).release:
            state = "newer"
        pip = f"pip install '{name}>={minimum}'"
        yield {
            "name": name,
            "version": version,
            "minimum": minimum,
            "tried": tried,
            "engine": optional.get(name, ""),
            "state": state,
            "install": f"use Python {minimum} or newer" if name == "python" else pip,
        }


def _removed(machine: Machine) -> Iterator[dict[str, Any]]:
    for package in engine_packages().values():
        version = machine.packages.get(package.name)
        gone = [
            (release, feature)
            for release, feature in package.removed
            if version is not None and Version(version) >= Version(release)
        ]
        if gone:
            yield {
                "name": package.name,
                "title": package.title,
                "version": version,
                "features": [feature for _, feature in gone],
                "since": gone[0][0],
            }


def _counted(machine: Machine) -> str:
    kind = "GPU" if machine.accelerator == "cuda" else "core"
    return format_count(len(machine.devices), kind)


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
