"""Limits and kills of a container or a batch system, by cgroup v1 and v2."""

from autotune.trial.surroundings import cgroup_folders, text_of


def memory_limit_bytes() -> int | None:
    """The lowest memory limit of this process's cgroup and those above it; None for no limit."""
    names = ("memory.max", "memory.limit_in_bytes")
    texts = [text_of(folder / name) for folder in cgroup_folders("memory") for name in names]
    return min((int(text) for text in texts if text.isdigit()), default=None)


def oom_kills() -> int | None:
    """How often the kernel has killed a process of this one's cgroup for memory; None: not said.

    A kill counts in its victim's group, whichever limit was reached, and a trial's ranks are in
    the group of their parent. The groups above hold other people's processes, so they are asked
    only where the own one does not count.
    """
    names = ("memory.events", "memory.oom_control")
    for folder in cgroup_folders("memory"):
        for name in names:
            for line in text_of(folder / name).splitlines():
                word, _, count = line.partition(" ")
                if word == "oom_kill" and count.isdigit():
                    return int(count)
    return None


def cpu_quota() -> float | None:
    """The fewest cores that the CPU quotas of this process amount to; None for no limit."""
    quotas = []
    for folder in cgroup_folders("cpu"):
        quota, _, period = text_of(folder / "cpu.max").partition(" ")
        if not quota:
            quota = text_of(folder / "cpu.cfs_quota_us")  # -1: no limit
            period = text_of(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)
