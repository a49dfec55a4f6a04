"""Limits of both cgroup hierarchies, read from a made-up tree."""

from pathlib import Path

import pytest

from autotune.devices import cgroup
from autotune.trial import surroundings


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(surroundings, "_CGROUPS", tmp_path / "mount")
    monkeypatch.setattr(surroundings, "_MEMBERSHIP", tmp_path / "membership")
    return tmp_path


def write(tree: Path, membership: str, files: dict[str, str]) -> None:
    (tree / "membership").write_text(membership)
    for name, text in files.items():
        path = tree / "mount" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def test_v2_takes_the_lowest_limit_on_the_way_up(tree: Path) -> None:
    write(
        tree,
        "0::/job/step\n",
        {
            "job/memory.max": "1000",
            "job/step/memory.max": "max",
            "job/cpu.max": "max 100000",
            "job/step/cpu.max": "150000 100000",
        },
    )
    assert cgroup.memory_limit_bytes() == 1000
    assert cgroup.cpu_quota() == 1.5


def test_v1_has_a_folder_per_controller(tree: Path) -> None:
    write(
        tree,
        "5:memory:/box\n4:cpu,cpuacct:/box\n3:pids:/\n",
        {
            "memory/box/memory.limit_in_bytes": "4096",
            "memory/memory.limit_in_bytes": "9223372036854771712",
            "cpu/box/cpu.cfs_quota_us": "200000",
            "cpu/box/cpu.cfs_period_us": "100000",
            "cpu/cpu.cfs_quota_us": "-1",
            "cpu/cpu.cfs_period_us": "100000",
        },
    )
    assert cgroup.memory_limit_bytes() == 4096
    assert cgroup.cpu_quota() == 2.0


def test_in_a_container_the_mount_is_the_own_cgroup(tree: Path) -> None:
    write(tree, "0::/not/shown/here\n", {"memory.max": "77", "cpu.max": "100000 100000"})
    assert cgroup.memory_limit_bytes() == 77
    assert cgroup.cpu_quota() == 1.0


def test_no_cgroup_is_no_limit(tree: Path) -> None:
    assert cgroup.memory_limit_bytes() is None
    assert cgroup.cpu_quota() is None
    assert cgroup.oom_kills() is None


@pytest.mark.cases("membership", "files")
def test_only_kills_in_the_own_group_count(tree, membership, files):
    write(tree, membership, files)
    assert cgroup.oom_kills() == 1
