"""The answer of the doctor: what is there, how fast it is, and what follows from that."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from autotune.base.templates import Encoded, tell
from autotune.devices.in_use import Device


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"
    """Something does not work here, or figures may be off; a search runs."""
    FAIL = "fail"
    """A search cannot run, or would hang, until it is mended."""


@dataclass(frozen=True, kw_only=True)
class Remark:
    """One thing worth saying."""

    level: Level
    subject: str
    """Subject in a word or two: `torch`, `stale locks`, `all-reduce`."""
    message: str
    fix: str = ""
    """The shortest way to mend it; empty where there is nothing to mend."""


_FIX = "\x02"
"""Stands before a fix: no value holds it, since filters spell what cannot be seen."""


def remarks(template: str, values: Mapping[str, Any]) -> list[Remark]:
    """The remarks of a template, whose facts begin with their level: see `machine.j2`."""
    found = []
    for name, text in tell(template, {**values, "fix": Encoded(_FIX)}):
        level, _, subject = name.partition(" ")
        message, _, fix = (part.strip() for part in text.partition(_FIX))
        found.append(Remark(level=Level(level), subject=subject, message=message, fix=fix))
    return found


def worst(findings: Iterable[Remark]) -> Level:
    """The worst level of some findings; `ok` where there are none."""
    levels = {finding.level for finding in findings}
    return next((level for level in (Level.FAIL, Level.WARN) if level in levels), Level.OK)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The state that was found."""

    python: str
    packages: Mapping[str, str | None]
    """Package -> installed version, None where it is missing."""
    tools: Mapping[str, str | None]
    """Program -> its path, None where it is missing."""
    uncompiled: str
    """Folder of a package whose files each process compiles again, as none can or may keep what
    it compiled; empty where there is none."""
    has_python_headers: bool
    has_libaio: bool
    """Whether a program that uses libaio compiles and links."""
    accelerator: str | None
    """`cpu` or `cuda`; None if `DS_ACCELERATOR` asks for what is not there."""
    accelerator_problem: str
    accelerator_fix: str
    torch_cuda: str | None
    """The CUDA version that torch is built for."""
    n_gpus: int
    """GPUs that the driver shows to this process, used or not."""
    devices: tuple[Device, ...]
    load_average: float
    """Load of the last minute: processes that ran or wanted to."""
    memory_bytes: int
    """Memory of the host, or what the cgroup leaves of it."""
    memlock_bytes: int | None
    """Memory that a process may pin; None for no limit."""
    shm_bytes: int | None
    """Size of /dev/shm; None if there is none."""
    extensions_folder: str
    extensions_built: tuple[str, ...]
    extensions_missing: tuple[str, ...]
    """Needed by trials on this accelerator, and not built yet."""
    stale_locks: tuple[str, ...]
    misread: tuple[tuple[str, str], ...] = ()
    """What an engine's compiler makes of the environment: what is wrong, and the fix."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """A matrix product on each device, all at the same time, and an all-reduce over all."""

    devices: tuple[int, ...]
    """Indices of the devices that took part."""
    wall_s: float
    """Seconds that the measurement took, start of the processes included."""
    matmul: str = ""
    matmul_flops: tuple[float, ...] = ()
    """2 n^3 / median seconds of a product, of each device."""
    all_reduce_bytes: int = 0
    """Size of the reduced buffer."""
    all_reduce_busbw: float | None = None
    """Bus bandwidth in bytes/s: 2 (n - 1) / n * size / median seconds of the slowest rank; None
    with one device. Source: nccl-tests, doc/PERFORMANCE.md."""
    problem: str = ""
    """Why there are no figures; the line that says so."""
    fix: str = ""
    """What to do about that problem."""


@dataclass(frozen=True, kw_only=True)
class Examination:
    """Everything the doctor has to say."""

    machine: Machine
    speed: Speed | None
    """None if it was not measured: not asked for, or no device to measure."""
    findings: tuple[Remark, ...]

    @property
    def level(self) -> Level:
        return worst(self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {"level": self.level, **dataclasses.asdict(self)}
