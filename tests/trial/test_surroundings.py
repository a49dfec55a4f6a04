"""What a rank reads of its cores: other processes, stolen time, quotas."""

import os

import pytest

from autotune.trial import surroundings
from autotune.trial.surroundings import Watch

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def stat(*, user: float, system: float = 0.0, softirq: float = 0.0, steal: float = 0.0) -> str:
    """/proc/stat of two cores, in seconds of the second; the first is busy with another job."""

    def line(name, *seconds):
        return " ".join([name, *(str(round(s * TICKS_PER_S)) for s in seconds)])

    cores = [
        line("cpu0", 500, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        line("cpu1", user, 0, system, 7, 1, 0, softirq, steal, 0, 0),
    ]
    return "\n".join(["cpu  1 2 3", *cores, "intr 5", "ctxt 9"]) + "\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Files in the place of the kernel's; returns the function that writes them."""
    monkeypatch.setattr(surroundings, "_STAT", tmp_path / "stat")
    monkeypatch.setattr(surroundings, "_MEMBERSHIP", tmp_path / "cgroup")
    monkeypatch.setattr(surroundings, "_CGROUPS", tmp_path / "groups")
    (tmp_path / "groups" / "job").mkdir(parents=True)
    (tmp_path / "cgroup").write_text("0::/job/step\n")

    def write(*, throttled_us=0, **seconds):
        (tmp_path / "stat").write_text(stat(**seconds))
        text = f"usage_usec 5\nthrottled_usec {throttled_us}\n"
        (tmp_path / "groups" / "job" / "cpu.stat").write_text(text)

    return write


def test_only_the_own_cores_are_watched_and_interrupts_are_left_out(machine):
    watch = Watch({1})
    machine(user=10, system=1, softirq=3, steal=1)
    watch.begin()
    machine(user=12, system=1.5, softirq=9, steal=1.25, throttled_us=40_000)
    seen = watch.end()
    assert seen is not None
    assert seen.cores == [1]
    assert seen.busy_s == pytest.approx(2.5)
    assert seen.stolen_s == pytest.approx(0.25)
    assert seen.throttled_s == pytest.approx(0.04)


@pytest.mark.parametrize("text", [None, "", "cpu1 x y z\n"])
def test_what_cannot_be_read_says_nothing_or_no_load(machine, tmp_path, text):
    machine(user=1)
    if text is None:
        (tmp_path / "stat").unlink()
    else:
        (tmp_path / "stat").write_text(text)
    watch = Watch({1})
    watch.begin()
    seen = watch.end()
    assert seen is None or seen.busy_s == 0


def test_a_rank_without_cores_of_its_own_has_nothing_to_say():
    watch = Watch(set())
    watch.begin()
    assert watch.end() is None


def test_quotas_of_the_older_hierarchy_count_too(machine, tmp_path):
    (tmp_path / "cgroup").write_text("4:memory:/m\n3:cpu,cpuacct:/a/b\n0::/\n")
    folder = tmp_path / "groups" / "cpu" / "a"
    folder.mkdir(parents=True)
    (folder / "cpu.stat").write_text("nr_periods 8\nthrottled_time 250000000\n")
    assert surroundings._throttled_s() == pytest.approx(0.25)


def test_processes_below_the_rank_are_counted(machine, tmp_path, monkeypatch):
    """A rank with a worker that runs, which has one that has ended."""
    processes = tmp_path / "proc"
    monkeypatch.setattr(surroundings, "_PROCESSES", processes)
    machine(user=1)

    monkeypatch.setattr(surroundings, "below", lambda pid: [8])

    def write(pid, *, seconds, ended_s):
        times = [round(s * TICKS_PER_S) for s in (seconds, 0, ended_s, 0)]
        (processes / str(pid)).mkdir(parents=True, exist_ok=True)
        columns = " ".join(map(str, ["S", *([1] * 10), *times]))
        (processes / str(pid) / "stat").write_text(f"{pid} (a ) b) {columns} 0 0")

    write(os.getpid(), seconds=5, ended_s=2)
    write(8, seconds=1, ended_s=0)
    watch = Watch({1})
    watch.begin()
    write(os.getpid(), seconds=9, ended_s=2.5)
    write(8, seconds=2, ended_s=0.25)
    seen = watch.end()
    assert seen is not None
    assert seen.children_s == pytest.approx(0.5 + 1 + 0.25)
