"""The diagnosis: what is well on this machine, what would not work, and how to mend it."""

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

from packaging.version import Version

from autotune import DEFAULT_ENGINE
from autotune.base.units import format_bytes, format_count
from autotune.doctor.diagnosis import (
    Examination,
    Machine,
    Remark,
    Speed,
    failed,
    passed,
    warned,
)
from autotune.doctor.machine import inspect_machine
from autotune.doctor.speed import TIMEOUT_S, measure_speed
from autotune.engines.base import EnginePackage, installed_engines

BUSY = 0.10
"""Share of its time, or of a GPU's memory, from which on a device is not called idle."""
SLOW = 0.10
"""How far below the median a device may be."""
LOW_MEMLOCK_BYTES = 2**30
LOW_SHM_BYTES = 2**30

_NEEDS_CUDA = (
    "ZeRO++ quantized weights and gradients (qwZ, qgZ), SuperOffload, ZenFlow at stage 3, "
    "DeepCompile, GDS, and the fused Lamb and Lion optimizers"
)


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
            f"measuring a matrix product and an all-reduce on {_counted(machine, len(devices))}: "
            f"about 10 s, at most {TIMEOUT_S:.0f}"
        )
    speed = measure_speed(machine.accelerator or "", devices) if runs else None
    return Examination(machine=machine, speed=speed, findings=conclude(machine, speed))


def conclude(machine: Machine, speed: Speed | None) -> tuple[Remark, ...]:
    """All findings, in the order in which one would mend them; no speed: nothing was measured."""
    return (
        *_versions(machine),
        *_imports(machine),
        *_accelerator(machine),
        *_extensions(machine),
        *_idle(machine),
        *(_speed(speed, len(machine.devices)) if speed else ()),
        *_features(machine),
        *_limits(machine),
    )


def conclude_of_node(machine: Machine) -> tuple[Remark, ...]:
    """Findings about a node of a fleet: it trains, and the search itself runs elsewhere."""
    return (
        *_imports(machine),
        *_extensions(machine),
        *_idle(machine),
        *_limits(machine),
    )


def engine_packages() -> dict[str, EnginePackage]:
    """Packages that the installed engines need, by name."""
    return {package.name: package for engine in installed_engines() for package in engine.packages}


def minimum_versions() -> dict[str, str]:
    """Releases that pyproject.toml asks for, and those that engines of others need."""
    engines = {name: package.least for name, package in engine_packages().items()}
    ours = {"transformers": "5.0", "optuna": "5.0"}
    return {"python": "3.11", "torch": "2.5", **engines, **ours}


def _versions(machine: Machine) -> Iterator[Remark]:
    engines = engine_packages()
    optional = {
        package.name: engine.name
        for engine in installed_engines()
        if engine.name != DEFAULT_ENGINE
        for package in engine.packages
    }
    installed = {"python": machine.python, **machine.packages}
    for name, minimum in minimum_versions().items():
        version, fix = installed.get(name), f"pip install '{name}>={minimum}'"
        if name == "python":
            fix = f"use Python {minimum} or newer"
        if version is None and name in optional:
            yield passed(name, f"not installed: no trials of {optional[name]} ({fix})")
        elif version is None:
            yield failed(name, "not installed", fix)
        elif Version(version) < Version(minimum):
            yield failed(name, f"{version} is too old: {minimum} or newer is needed", fix)
        elif name in engines and engines[name].tried:
            yield _release(engines[name], version)
        else:
            yield passed(name, version)


def _release(package: EnginePackage, version: str) -> Remark:
    tried, newest = ", ".join(package.tried), package.tried[-1]
    if Version(version).release > Version(newest).release:
        return warned(
            package.name,
            f"{version} is newer than the releases that the rules know (tried: {tried}): keys "
            "that it added or changed show in trials alone",
            f"if trials end as invalid: pip install {package.name}=={newest}",
        )
    return passed(package.name, f"{version} (tried: {tried})")


def _imports(machine: Machine) -> Iterator[Remark]:
    if machine.uncompiled:
        yield warned(
            "imports",
            f"Python keeps no compiled files of {machine.uncompiled}: each process compiles what "
            "it imports again, so that every trial starts later",
            "unset PYTHONDONTWRITEBYTECODE, or once: python -m compileall -q "
            f"{Path(machine.uncompiled).parent}",
        )


def _accelerator(machine: Machine) -> Iterator[Remark]:
    if machine.accelerator is None:
        yield failed("accelerator", machine.accelerator_problem, machine.accelerator_fix)
        return
    names = sorted({device.name for device in machine.devices})
    if machine.accelerator == "cpu" and machine.n_gpus and machine.torch_cuda is None:
        yield warned(
            "accelerator",
            f"{machine.n_gpus} GPU(s) stay unused: the installed torch is built without CUDA",
            "install a CUDA build of torch",
        )
    if len(names) > 1:
        yield warned(
            "accelerator",
            f"the GPUs differ: {', '.join(names)}; the slowest sets the pace of every trial",
            "choose GPUs of one kind with CUDA_VISIBLE_DEVICES",
        )
        return
    yield passed("accelerator", f"{_counted(machine, len(machine.devices))}: {', '.join(names)}")


def _counted(machine: Machine, n: int) -> str:
    kind = "GPU" if machine.accelerator == "cuda" else "core"
    return format_count(n, kind)


def _extensions(machine: Machine) -> Iterator[Remark]:
    for what, fix in machine.misread:
        yield warned("compiler", what, fix)
    if machine.stale_locks:
        yield warned(
            "stale locks",
            f"{', '.join(machine.stale_locks)}: a build was killed; whatever loads that extension "
            "waits for ever",
            f"rm {' '.join(machine.stale_locks)} (a search does it by itself)",
        )
    lacking = [tool for tool in ("g++", "ninja") if machine.tools.get(tool) is None]
    if machine.accelerator == "cuda" and machine.tools.get("nvcc") is None:
        lacking.append("nvcc")
    if not machine.has_python_headers:
        lacking.append("Python.h")
    missing = ", ".join(machine.extensions_missing)
    if lacking:
        what = f"cannot be built here without {', '.join(lacking)}"
        fix = "apt-get install g++ ninja-build python3-dev, and the CUDA toolkit for nvcc"
        if missing:
            yield failed("extensions", f"{missing} not built, and {what}", fix)
        else:
            yield warned("extensions", f"those needed are built; others {what}", fix)
    elif missing:
        yield warned(
            "extensions",
            f"not built yet: {missing}",
            "nothing to do: a search builds them once, in some minutes",
        )
    elif machine.extensions_built:
        built = ", ".join(machine.extensions_built)
        yield passed("extensions", f"built: {built}, in {machine.extensions_folder}")


def _idle(machine: Machine) -> Iterator[Remark]:
    busy = [
        f"{device.index} ({device.busy:.0%})"
        for device in machine.devices
        if device.busy is not None and device.busy > BUSY
    ]
    held = [
        f"{device.index} ({format_bytes(device.memory_used_bytes)})"
        for device in machine.devices
        if device.memory_bytes and (device.memory_used_bytes or 0) > BUSY * device.memory_bytes
    ]
    fix = "end what runs there, or wait: measurements of a shared device are not trustworthy"
    if busy:
        load = f"; load average {machine.load_average:.2f}" if machine.accelerator == "cpu" else ""
        yield warned("idle", f"in use by others: device {', '.join(busy)}{load}", fix)
    if held:
        yield warned("idle", f"memory in use by others: device {', '.join(held)}", fix)
    if machine.devices and not busy and not held:
        yield passed("idle", f"all {len(machine.devices)} devices are idle")


def _speed(speed: Speed, n_devices: int) -> Iterator[Remark]:
    if speed.problem:
        yield failed(
            "communication",
            f"the matrix product and all-reduce did not run: {speed.problem}",
            speed.fix,
        )
        return
    median = statistics.median(speed.matmul_flops)
    slow = [
        f"{device} ({flops / median - 1:+.0%})"
        for device, flops in zip(speed.devices, speed.matmul_flops, strict=True)
        if flops < (1 - SLOW) * median
    ]
    some = "" if len(speed.devices) == n_devices else f", {len(speed.devices)} of {n_devices}"
    measured = f"median {_flops(median)} per device ({speed.matmul}{some})"
    if slow:
        yield warned(
            "equally fast",
            f"device {', '.join(slow)} against the {measured}",
            "look for other work, heat or a power limit there; the slowest rank sets the pace",
        )
    else:
        yield passed("equally fast", f"{measured}, none more than {SLOW:.0%} slower")
    if speed.all_reduce_busbw is not None:
        yield passed(
            "all-reduce",
            f"{speed.all_reduce_busbw / 1e9:.3g} GB/s bus bandwidth "
            f"({format_bytes(speed.all_reduce_bytes)} over {len(speed.devices)} devices)",
        )


def _features(machine: Machine) -> Iterator[Remark]:
    if machine.accelerator == "cpu":
        yield warned("needs CUDA", f"not here: {_NEEDS_CUDA}", "use a machine with NVIDIA GPUs")
    if not machine.has_libaio:
        yield warned(
            "NVMe offload",
            "libaio does not compile and link: no offload to NVMe",
            "apt-get install libaio-dev (dnf install libaio-devel)",
        )
    for package in engine_packages().values():
        version = machine.packages.get(package.name)
        gone = [
            (release, what)
            for release, what in package.removed
            if version is not None and Version(version) >= Version(release)
        ]
        if gone:
            yield warned(
                "removed",
                f"{package.title} {version} no longer has {'; '.join(what for _, what in gone)}",
                f"if you need one: pip install '{package.name}<{gone[0][0]}'",
            )
    if machine.tools.get("numactl") is None:
        yield warned(
            "numactl",
            "not installed: DeepSpeed's --bind_cores_to_rank does not work",
            "apt-get install numactl",
        )
    if machine.tools.get("ssh") is None:
        yield warned(
            "ssh", "not installed: no training on several nodes", "install openssh-client"
        )
    elif machine.tools.get("pdsh") is None:
        yield warned(
            "pdsh",
            "not installed: DeepSpeed's launcher starts several nodes with it by default",
            "apt-get install pdsh, or use the launcher torchrun",
        )


def _limits(machine: Machine) -> Iterator[Remark]:
    memlock_bytes, shm_bytes = machine.memlock_bytes, machine.shm_bytes
    if memlock_bytes is not None and memlock_bytes < LOW_MEMLOCK_BYTES:
        yield warned(
            "memlock",
            f"a process may pin {format_bytes(memlock_bytes)}: offload with pin_memory and "
            "InfiniBand may fail",
            "ulimit -l unlimited (containers: --ulimit memlock=-1), or pin_memory: false",
        )
    if shm_bytes is None or shm_bytes < LOW_SHM_BYTES:
        size = "missing" if shm_bytes is None else format_bytes(shm_bytes)
        yield warned(
            "/dev/shm",
            f"{size}: ranks of one machine exchange data through it",
            "containers: --shm-size=8g or --ipc=host",
        )


def _flops(value: float) -> str:
    return f"{value / 1e12:.3g} TFLOP/s" if value >= 1e12 else f"{value / 1e9:.3g} GFLOP/s"
