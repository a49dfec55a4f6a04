"""The diagnosis: what is well on this machine, what would not work, and how to mend it."""

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from packaging.version import Version

from autotune import DEFAULT_ENGINE
from autotune.base.units import format_count
from autotune.devices.in_use import REMEDY, in_use
from autotune.doctor.diagnosis import Examination, Machine, Remark, Speed, remarks
from autotune.doctor.machine import inspect_machine
from autotune.doctor.speed import TIMEOUT_S, measure_speed
from autotune.engines.base import EnginePackage, installed_engines

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
    """Each package that is asked for, and in which state it is."""
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
    """What the installed release of a package no longer has."""
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
