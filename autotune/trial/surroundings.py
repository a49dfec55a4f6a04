"""Surroundings of a CPU rank while it measures: other load, stolen time, CPU quotas.

The figures come from /proc/stat of the cores that the rank may use, at both ends of the measured
steps. Time in interrupts is left out, since it includes gloo's own packets. GPU ranks are not
watched, bound to cores or not, so that all candidates are judged alike.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from autotune.base.keeper import below
from autotune.contract import Surroundings

_STAT = Path("/proc/stat")
_PROCESSES = Path("/proc")
_MEMBERSHIP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Watch:
    """Reads the clocks of some cores twice."""

    def __init__(self, cores: set[int]) -> None:
        self._cores = cores
        self._first: dict[str, float] | None = None

    def begin(self) -> None:
        self._first = _read(self._cores) if self._cores else None

    def end(self) -> Surroundings | None:
        """Load since `begin`; None where it cannot be told."""
        first = self._first
        if first is None or (last := _read(self._cores)) is None:
            return None
        # The kernel's counters may run backwards where a virtual machine is moved.
        passed = {name: max(0.0, last[name] - first[name]) for name in first}
        return Surroundings(cores=sorted(self._cores), **passed)


def _read(cores: set[int]) -> dict[str, float] | None:
    """Seconds on each clock since any moment, as `Surroundings` names them."""
    try:
        busy, stolen = _ticks(_STAT.read_text(encoding="utf-8"), cores)
    except (OSError, ValueError):
        return None
    ended = _times(os.getpid())[1]  # by their parent, which has waited for them
    return {
        "elapsed_s": time.perf_counter(),
        "busy_s": busy / _TICKS_PER_S,
        "stolen_s": stolen / _TICKS_PER_S,
        "throttled_s": _throttled_s(),
        "children_s": (ended + sum(sum(_times(pid)) for pid in below(os.getpid()))) / _TICKS_PER_S,
    }


def _ticks(stat: str, cores: set[int]) -> tuple[int, int]:
    """Ticks in user, nice and system of some cores, and those stolen; proc(5) has the columns."""
    busy = stolen = 0
    for line in stat.splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in cores:
            busy += sum(int(ticks) for ticks in columns[:3])
            stolen += int(columns[7]) if len(columns) > 7 else 0
    return busy, stolen


def _times(pid: int) -> tuple[int, int]:
    """Ticks of a process, and of its children that have ended; 0 where it has ended itself."""
    columns = text_of(_PROCESSES / str(pid) / "stat").rpartition(")")[2].split()
    used, waited_for = columns[11:13], columns[13:15]
    return sum(map(int, used)), sum(map(int, waited_for))


def _throttled_s() -> float:
    """Seconds for which a quota held up this cgroup or one above it, both hierarchies; 0: none."""
    longest_s = 0.0
    for folder in cgroup_folders("cpu"):
        words = text_of(folder / "cpu.stat").split()
        with suppress(ValueError):
            counts = dict(zip(words[::2], map(int, words[1::2]), strict=False))
            in_v2_s = counts.get("throttled_usec", 0) / 1e6
            longest_s = max(longest_s, in_v2_s, counts.get("throttled_time", 0) / 1e9)
    return longest_s


def cgroup_folders(controller: str) -> Iterator[Path]:
    """This process's cgroup and those above it, in both hierarchies.

    In a container the mount's root is the process's own cgroup, whatever its path says, so every
    folder up to the root is looked at, there or not.
    """
    for line in text_of(_MEMBERSHIP).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _CGROUPS / controller if controllers else _CGROUPS
        lowest = root / path.lstrip("/")
        yield from (folder for folder in (lowest, *lowest.parents) if folder.is_relative_to(root))


def text_of(path: Path) -> str:
    """Text of one of the kernel's files; empty: it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
