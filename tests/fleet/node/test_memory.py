"""What a rank holds outside of its private data is seen, once, and nothing else is."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.contract import TRIAL_ENV
from autotune.fleet.node.memory import MemoryWatch
from autotune.fleet.node.processes import kill_all
from autotune.trial.shared_memory import LIFTED

MIB = 2**20
LIMIT = 64 * MIB
HIDDEN = 96 * MIB

RANK = """
import ctypes, mmap, os, resource, subprocess, sys, tempfile, time
sys.path.insert(0, {package!r})
from autotune.trial.descent import adopt_orphans
adopt_orphans()  # as a launcher does
if launched := os.fork():
    os.waitpid(launched, 0)
    os._exit(0)
os.write(1, b"%d " % os.getpid())
libc = ctypes.CDLL(None)
MIB, N = 2**20, 96 * 2**20
inherited = bytearray(48 * MIB)  # as of imports: below the base
data = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_DATA, (data + 64 * MIB, resource.RLIM_INFINITY))
def fill(held):
    for at in range(0, len(held), 4096):
        held[at] = 1
    return held
def ready():
    os.write(1, b"r")
def wait():
    time.sleep(600)
def hoard():
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)
    kept = bytearray(N)
    ready()
    wait()
def child(work):
    if os.fork() == 0:
        work()
        os._exit(0)
def fills():
    fill(held)
    ready()
    wait()
def rests():
    ready()
    wait()
def share():
    held = fill(mmap.mmap(-1, N))
    ready()
    wait()
def daemon(work):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            work()
        os._exit(0)
def segment():
    number = libc.shmget(0, N, 0o1600)
    libc.shmat.restype, libc.shmdt.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    at = libc.shmat(number, None, 0)
    ctypes.memset(at, 1, N)
    return number, at
""".replace("{package!r}", repr(str(Path(__file__).parents[3])))

HIDES = {
    "a shared mapping": "held = fill(mmap.mmap(-1, N)); ready()",
    "a file in memory": (
        "fd = os.memfd_create('x'); os.ftruncate(fd, N); held = fill(mmap.mmap(fd, N)); ready()"
    ),
    "a file in /dev/shm": (
        "import tempfile; file = tempfile.TemporaryFile(dir='/dev/shm'); file.truncate(N)\n"
        "held = fill(mmap.mmap(file.fileno(), N)); ready()"
    ),
    "a mapping and private data": (
        "held = fill(mmap.mmap(-1, 48 * MIB)); kept = bytearray(40 * MIB); ready()"
    ),
    "a forked child": "child(hoard)",
    "a child of a child": "child(lambda: (child(hoard), wait()))",
    "a child in a session of its own": "child(lambda: (os.setsid(), hoard()))",
    "an orphan": "child(lambda: (os.setsid(), child(hoard)))",
    "a child that shares": "child(share)",
    "many small children": (
        "def some():\n    kept = bytearray(24 * MIB); ready(); wait()\n"
        "for _ in range(4): child(some)"
    ),
    "another program": (
        "subprocess.Popen([sys.executable, '-c', "
        "'import os, time; x = bytearray(96 * 2**20); os.write(1, b\"r\"); time.sleep(600)'])"
    ),
    "a mapping that only children keep": (
        "held = mmap.mmap(-1, N)\nchild(fills); child(fills)\nheld.close()"
    ),
    "a daemon without an environment": (
        "daemon(lambda: os.execve(sys.executable, ['x', '-c', "
        "'import os, time; x = bytearray(96 * 2**20); os.write(1, b\"r\"); time.sleep(600)'], {}))"
    ),
    "a segment that is attached": "number, at = segment(); libc.shmctl(number, 0, None); ready()",
    "a thread's mapping": (
        "import threading; t = threading.Thread(target=share, daemon=True); t.start()"
    ),
    "children that write to what they had from the rank": (
        "def writes():\n    fill(inherited); ready(); wait()\nchild(writes); child(writes)"
    ),
}
"""What a rank may do that no limit of its own fails for."""

IS_FINE = {
    "nothing": "ready()",
    "private data below its limit": "kept = bytearray(40 * MIB); ready()",
    "children that do nothing": "child(rests); child(rests)",
    "another small program": "subprocess.Popen(['sh', '-c', 'echo r; sleep 600'])",
    "a mapping that is not touched": "held = mmap.mmap(-1, N); ready()",
    "a small mapping": "held = fill(mmap.mmap(-1, 24 * MIB)); ready()",
    "a data set in /dev/shm that it reads": (
        "file = open(os.environ['DATA'], 'rb'); file.read(MIB); ready()"
    ),
    "a file in memory that it has mapped": (
        "fd = os.memfd_create('x'); os.ftruncate(fd, 40 * MIB)\n"
        "held = fill(mmap.mmap(fd, 40 * MIB)); ready()"
    ),
    "a mapping that a child shares with it": (
        "held = fill(mmap.mmap(-1, 40 * MIB))\nchild(fills); child(fills)"
    ),
    "the buffers of the engine's collectives": (
        "import glob; file = open(glob.glob('/dev/shm/autotune_test_*')[0], 'r+b')\n"
        "held = fill(mmap.mmap(file.fileno(), N)); ready()"
    ),
}


READY = {"range(4)": 4, "child(fills)": 2, "child(rests)": 2, "child(writes)": 2}
"""How many say that they are ready, where it is not one; by a part of the script."""


class Rank:
    """A process that holds memory as a script says, under a watch."""

    def __init__(
        self, body: str, folder: Path, *, segments: tuple[str, ...] = (), data: str = ""
    ) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"{RANK}\n{body}\nwait()"],
            stdout=subprocess.PIPE,
            env={**os.environ, TRIAL_ENV: str(folder), "DATA": f"/dev/shm/{data}"},
            cwd=folder,
            start_new_session=True,
        )
        self.watch = MemoryWatch(limit_bytes=LIMIT, segments=segments)
        assert self.process.stdout is not None
        text = b""
        while not text.endswith(b" "):
            text += os.read(self.process.stdout.fileno(), 1)
        self.pid = int(text)
        for _ in range(max(READY.get(part, 1) for part in [*READY, ""] if part in body)):
            assert os.read(self.process.stdout.fileno(), 1) == b"r"
        self.watch.add(3, self.pid)


@pytest.fixture
def start(tmp_path):
    started: list[Rank] = []

    def start(body: str, **options) -> Rank:
        started.append(Rank(body, tmp_path, **options))
        return started[-1]

    yield start
    kill_all(tmp_path)
    for rank in started:
        rank.process.communicate()


def of_trial(folder: Path) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{TRIAL_ENV}={folder}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("how", HIDES)
def test_memory_that_hides_is_seen(how, start):
    rank = start(HIDES[how])
    assert rank.watch.look() == 3
    held = rank.watch.held()[3]
    assert LIMIT < held.total_bytes < 1.5 * HIDDEN + 8 * MIB
    assert f"over the limit of {LIMIT} bytes" in held.over


@pytest.mark.parametrize("how", IS_FINE)
def test_what_is_within_the_limit_goes_on(how, start):
    segment = Path(f"/dev/shm/autotune_test_{os.getpid()}")
    segment.touch()
    os.truncate(segment, HIDDEN)
    data = Path(f"/dev/shm/data_of_{os.getpid()}")
    data.write_bytes(bytes(HIDDEN))
    try:
        rank = start(IS_FINE[how], segments=(segment.name,), data=data.name)
        for _ in range(3):
            assert rank.watch.look() is None
    finally:
        segment.unlink()
        data.unlink()


def test_a_rank_without_either_has_no_figure_but_its_own(start):
    rank = start(IS_FINE["private data below its limit"])
    rank.watch.look()
    held = rank.watch.held()[3]
    assert (held.children_bytes, held.total_bytes, held.over) == (0, 0, "")


def test_a_child_counts_once_and_what_it_held_is_remembered(start):
    rank = start(HIDES["another program"])
    rank.watch.look()
    held = rank.watch.held()[3]
    assert HIDDEN <= held.children_bytes < HIDDEN + 24 * MIB
    for pid in of_trial(rank.folder):
        if pid != rank.pid:
            os.kill(pid, signal.SIGKILL)
    rank.watch.look()
    assert rank.watch.held()[3].children_bytes == held.children_bytes


def test_a_limit_that_was_taken_off_is_none(start):
    rank = start(HIDES["a shared mapping"])
    resource.prlimit(rank.pid, resource.RLIMIT_DATA, (LIFTED, resource.RLIM_INFINITY))
    assert rank.watch.look() is None


@pytest.mark.parametrize("raised", [resource.RLIM_INFINITY, 2**50])
def test_a_limit_that_somebody_raised_still_counts(raised, start):
    rank = start(
        "import signal\n"
        "def grow(*_):\n    global held; held = fill(mmap.mmap(-1, N)); ready()\n"
        "signal.signal(signal.SIGUSR1, grow); ready()"
    )
    assert rank.watch.look() is None
    resource.prlimit(rank.pid, resource.RLIMIT_DATA, (raised, resource.RLIM_INFINITY))
    os.kill(rank.pid, signal.SIGUSR1)
    assert os.read(rank.process.stdout.fileno(), 1) == b"r"
    assert rank.watch.look() == 3


def test_an_ended_rank_holds_nothing(start):
    rank = start(HIDES["a shared mapping"])
    os.kill(rank.pid, signal.SIGKILL)
    rank.process.wait()
    assert rank.watch.look() is None


def test_a_process_that_has_not_grown_is_not_read_again(start, monkeypatch):
    from autotune.fleet.node import memory

    # Both have begun by now; a shell would start its program between two looks.
    rank = start(IS_FINE["children that do nothing"])
    rank.watch._clock = lambda: 100.0
    reads: list[int] = []
    read = memory._share_of
    monkeypatch.setattr(memory, "_share_of", lambda pid: (reads.append(pid), read(pid))[1])
    for _ in range(5):
        rank.watch.look()
    assert len(reads) == len(set(reads)) == 2
    rank.watch._clock = lambda: 103.0
    rank.watch.look()
    assert sorted(reads) == sorted([*set(reads)] * 2)


def test_orphans_of_another_trial_are_not_its_own(start, tmp_path):
    rank = start(HIDES["an orphan"])
    other = MemoryWatch(limit_bytes=LIMIT, segments=())
    mine = start(IS_FINE["nothing"])
    other.add(0, mine.pid)
    assert other.look() is None
    assert rank.watch.look() == 3
