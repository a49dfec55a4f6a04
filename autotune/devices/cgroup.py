"""What a container or a batch system does to this process: limits and kills, cgroup v1 and v2."""

from collections.abc import Iterator
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def memory_limit_bytes() -> int | None:
    """The lowest memory limit of this process's cgroup and those above it; None for no limit."""
    names = ("memory.max", "memory.limit_in_bytes")
    texts = [_read(folder / name) for folder in _folders("memory") for name in names]
    return min((int(text) for text in texts if text.isdigit()), default=None)


def oom_kills() -> int | None:
    """How often the kernel has killed a process of this one's cgroup for memory; None: not said.

    A kill counts in its victim's group, whichever limit was reached, and a trial's ranks are in
    the group of their parent. The groups above hold other people's processes, so they are asked
    only where the own one does not count.
    """
    names = ("memory.events", "memory.oom_control")
    for folder in _folders("memory"):
        for name in names:
            for line in _read(folder / name).splitlines():
                word, _, count = line.partition(" ")
                if word == "oom_kill" and count.isdigit():
                    return int(count)
    return None


def cpu_quota() -> float | None:
    """The fewest cores that the CPU quotas of this process amount to; None for no limit."""
    quotas = []
    for folder in _folders("cpu"):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if not quota:
            quota = _read(folder / "cpu.cfs_quota_us")  # -1: no limit
            period = _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _folders(controller: str) -> Iterator[Path]:
    """This process's cgroup and those above it, in both hierarchies.

    In a container the mount's root is the process's own cgroup, whatever its path says, so every
    folder up to the root is looked at, there or not.
    """
    for line in _read(_MEMBERSHIP).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _MOUNT / controller if controllers else _MOUNT
        folder = root / path.lstrip("/")
        yield from (parent for parent in (folder, *folder.parents) if parent.is_relative_to(root))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
