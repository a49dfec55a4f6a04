"""Nothing that was started outlives its parent, its own end or its time, however it hangs."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from autotune.base import keeper
from autotune.base.guarded_process import (
    GuardedProcess,
    run_guarded,
    scratch_folder,
    temporary_root,
)
from autotune.contract import PARENT_ENV, SCRATCH_ENV
from tests.captured import captured
from tests.cases import data_beside

DATA = data_beside(__file__)

MARK = "AUTOTUNE_TEST_MARK"
"""Environment variable by which a test finds all that it started."""

SHAPES = DATA["SHAPES"]
"""How what a command starts may hang in the process tree."""


@pytest.fixture
def mark(tmp_path):
    yield str(tmp_path)
    left = marked(str(tmp_path))
    for process in left:
        process.kill()
    assert left == []


def marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, FileNotFoundError):
            continue
    return [process for process in found if process.pid != os.getpid()]


def wait_until(holds) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def shaped(shape: str) -> list[str]:
    inner = (
        f"{sys.executable} -c 'from autotune.base.guarded_process import GuardedProcess; "
        "import sys; GuardedProcess(sys.argv[1:]).wait()'"
    )
    return ["sh", "-c", SHAPES[shape].format(keeper=inner)]


PARENT = """
import os, sys, threading
from autotune.base.guarded_process import GuardedProcess
def start():
    global process
    process = GuardedProcess(sys.argv[1:])
starter = threading.Thread(target=start)  # a thread that ends at once
starter.start()
starter.join()
print("started", flush=True)
process.wait()
"""


PARENT_WITH_GRACE = """
import subprocess, sys
from autotune.base.guarded_process import GuardedProcess
GuardedProcess(sys.argv[2:], grace_s=float(sys.argv[1]), stdin=subprocess.PIPE).wait()
"""


def asleep(mark: str) -> bool:
    """Whether what a shape starts is there."""

    def sleeps(process: psutil.Process) -> bool:
        try:
            return "sleep" in process.name() or process.status() == psutil.STATUS_STOPPED
        except psutil.NoSuchProcess:  # a shell on the way, which has ended since
            return False

    return any(map(sleeps, marked(mark)))


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_outlives_a_killed_parent(shape, mark):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *shaped(shape)],
        env={**os.environ, MARK: mark, SCRATCH_ENV: mark},
        stdout=subprocess.PIPE,
    )
    assert parent.stdout.readline() == b"started\n"
    wait_until(lambda: asleep(mark))
    assert parent.poll() is None
    assert list(Path(mark).glob(keeper.PREFIX + "*"))
    parent.kill()
    parent.communicate()
    wait_until(lambda: not marked(mark))
    wait_until(lambda: not list(Path(mark).iterdir()))  # its temporary files went with it


@pytest.mark.parametrize(("cleans_up", "grace_s"), [(True, "20"), (False, "0.1")])
def test_a_command_may_clean_up_after_a_killed_parent(cleans_up, grace_s, mark, tmp_path):
    left = tmp_path / "left"
    script = f"touch {left}; {'read word' if cleans_up else 'sleep 600'}; rm {left}"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT_WITH_GRACE, grace_s, "sh", "-c", script],
        env={**os.environ, MARK: mark, SCRATCH_ENV: mark},
        stdout=subprocess.PIPE,
    )
    wait_until(left.exists)
    parent.kill()
    parent.communicate()
    wait_until(lambda: not marked(mark))
    assert left.exists() is not cleans_up


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_outlives_a_kill_of_the_command(shape, mark):
    process = GuardedProcess(shaped(shape), env={**os.environ, MARK: mark})
    wait_until(lambda: asleep(mark))
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert marked(mark) == []


def keepers(process: GuardedProcess) -> dict[str, psutil.Process]:
    """The two of a command that is there."""
    outer = psutil.Process(process.pid)
    # Its first child: an orphan that it adopts may have a lower number, where numbers begin anew.
    inner = min(outer.children(), key=lambda child: child.create_time())
    return {"outer": outer, "inner": inner}


@pytest.mark.parametrize(
    "shape",
    ["a child", "an orphan in a session of its own", "one that is stopped", "a keeper's own"],
)
@pytest.mark.parametrize("which", ["outer", "inner"])
def test_nothing_outlives_a_killed_keeper(which, shape, mark):
    process = GuardedProcess(shaped(shape), env={**os.environ, MARK: mark, SCRATCH_ENV: mark})
    wait_until(lambda: asleep(mark))
    keepers(process)[which].kill()
    assert process.wait() == -signal.SIGKILL
    wait_until(lambda: not marked(mark))
    wait_until(lambda: not list(Path(mark).iterdir()))


@pytest.mark.parametrize("which", ["outer", "inner"])
def test_nothing_outlives_a_killed_parent_though_a_keeper_is_stopped(which, mark):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *shaped("an orphan")],
        env={**os.environ, MARK: mark, SCRATCH_ENV: mark},
        stdout=subprocess.PIPE,
    )
    wait_until(lambda: asleep(mark))
    outer = psutil.Process(parent.pid).children()[0]
    stopped = outer if which == "outer" else outer.children()[0]
    stopped.suspend()
    parent.kill()
    parent.communicate()
    wait_until(lambda: [p.pid for p in marked(mark)] in ([], [stopped.pid]))
    wait_until(lambda: not list(Path(mark).iterdir()))
    if stopped.is_running():  # the outer one has only itself to end
        stopped.resume()
    wait_until(lambda: not marked(mark))


@pytest.mark.parametrize("clears", ["env -i", "env -i setsid"])
def test_a_daemon_without_an_environment_is_found_by_its_descent(clears, mark, tmp_path):
    pid_file = tmp_path / "pid"
    written = f"echo $$ > {pid_file}.part; mv {pid_file}.part {pid_file}"
    daemon = f"({clears} sh -c '{written}; sleep 600; true' &)"
    process = GuardedProcess(["sh", "-c", f"{daemon}; sleep 600"], env={**os.environ, MARK: mark})
    wait_until(pid_file.exists)
    found = psutil.Process(int(pid_file.read_text()))
    process.kill()
    process.wait()
    assert not found.is_running()


def test_nothing_outlives_the_end_of_the_command(mark):
    command = ["sh", "-c", "(setsid sleep 600 &); echo done; exit 5"]
    done = run_guarded(command, timeout_s=30, env={**os.environ, MARK: mark})
    assert (done.returncode, done.stdout) == (5, "done\n")


def test_its_own_clock_ends_it_though_nobody_looks(mark):
    command = ["sh", "-c", "setsid sleep 600 & wait"]
    process = GuardedProcess(command, env={**os.environ, MARK: mark}, wall_s=0.1)
    assert process.wait() == -signal.SIGKILL


def test_a_time_that_is_up_is_told(mark):
    with pytest.raises(subprocess.TimeoutExpired):
        run_guarded(["sleep", "600"], timeout_s=0.1, env={**os.environ, MARK: mark})


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 7", 7), ("kill -SEGV $$", -11), ("kill -KILL $$", -9)],
)
def test_it_ends_as_the_command_did(script, code):
    assert run_guarded(["sh", "-c", script], timeout_s=30).returncode == code


def test_what_cannot_be_started_says_so():
    done = run_guarded(["/nowhere/program"], timeout_s=30)
    assert done.returncode == 127
    assert "/nowhere/program" in done.stderr


def test_a_command_that_ends_closes_its_pipes_and_reads_its_input():
    assert run_guarded(["cat"], input="said", timeout_s=30).stdout == "said"


@pytest.mark.parametrize("raises", [False, True])
def test_the_memory_of_a_command_is_limited(raises):
    raised = (
        "import resource as r; _, hard = r.getrlimit(r.RLIMIT_DATA); "
        "r.setrlimit(r.RLIMIT_DATA, (hard, hard)); "
    )
    script = f"{raised if raises else ''}x = bytearray(300 * 2**20); print('had it')"
    command = [sys.executable, "-c", script]
    done = run_guarded(command, timeout_s=30, data_bytes=200 * 2**20)
    assert "MemoryError" in done.stderr
    assert "had it" in run_guarded(command, timeout_s=30).stdout


def test_a_command_leaves_no_core():
    script = "import resource; print(resource.getrlimit(resource.RLIMIT_CORE)[0])"
    assert run_guarded([sys.executable, "-c", script], timeout_s=30).stdout == "0\n"


def test_the_command_knows_its_parent_and_its_folder():
    script = f"echo $PPID ${PARENT_ENV} $TMPDIR ${SCRATCH_ENV}; stat -c %a $TMPDIR"
    parent, seen, tmpdir, scratch, mode = run_guarded(
        ["sh", "-c", script], timeout_s=30
    ).stdout.split()
    assert parent == seen
    assert tmpdir == scratch
    assert mode == "700"
    assert not Path(tmpdir).exists()


def test_a_keepers_folder_lies_in_that_of_the_keeper_above(tmp_path):
    above = {**os.environ, SCRATCH_ENV: str(tmp_path)}
    done = run_guarded(["sh", "-c", "echo $TMPDIR"], timeout_s=30, env=above)
    assert Path(done.stdout).parent == tmp_path


# ---------------------------------------------------------------- folders that were left


def left_behind(root: Path) -> Path:
    """A folder whose owner was killed."""
    script = (
        "import os, sys; from autotune.base.keeper import Scratch; "
        "print(Scratch(sys.argv[1]).path, flush=True); os.kill(os.getpid(), 9)"
    )
    done = captured([sys.executable, "-c", script, str(root)])
    return Path(done.stdout.strip())


def test_the_next_start_removes_what_a_killed_process_left(tmp_path):
    left = left_behind(tmp_path)
    (left / "pymp-x").mkdir()
    (left / "pymp-x" / "socket").touch()
    keeper.sweep(str(tmp_path))
    assert not left.exists()


def test_an_empty_folder_goes_once_nobody_can_be_making_it(tmp_path):
    left = left_behind(tmp_path)
    (left / ".held").unlink()  # who removed it was killed at the last step
    keeper.sweep(str(tmp_path))
    assert left.exists()
    long_ago_s = time.time() - 120
    os.utime(left, (long_ago_s, long_ago_s))
    keeper.sweep(str(tmp_path))
    assert not left.exists()


def test_the_lock_is_what_is_removed_last(tmp_path, monkeypatch):
    scratch = keeper.Scratch(str(tmp_path))
    inside = Path(scratch.path, "inside")
    inside.mkdir()
    lock = Path(scratch.path, ".held")
    had_lock = []
    remove = shutil.rmtree

    def removed(path, **options):
        had_lock.append((Path(path), lock.exists()))
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", removed)
    scratch.remove()
    assert had_lock[0] == (inside, True)
    assert list(tmp_path.iterdir()) == []


def test_what_is_in_use_stays(tmp_path):
    scratch = keeper.Scratch(str(tmp_path))
    keeper.sweep(str(tmp_path))
    assert Path(scratch.path).exists()
    scratch.remove()
    assert list(tmp_path.iterdir()) == []


def not_ours(root: Path, what: str) -> Path:
    path = left_behind(root)
    if what == "readable by others":
        path.chmod(0o755)
    elif what == "another user's":
        os.chown(path, 12345, 12345)
    elif what == "without a lock":
        (path / ".held").unlink()
    elif what == "its lock is a link":
        (path / ".held").unlink()
        (path / ".held").symlink_to(root / "elsewhere")
        (root / "elsewhere").touch()
    elif what == "a link to one":
        away = root / "away"
        path.rename(away)
        path.symlink_to(away)
    else:
        (path / ".held").unlink()
        path.rmdir()
        path.touch()
    return path


@pytest.mark.parametrize(
    "what",
    [
        "readable by others",
        pytest.param(
            "another user's", marks=pytest.mark.skipif(os.getuid() != 0, reason="needs root")
        ),
        "without a lock",
        "its lock is a link",
        "a link to one",
        "a file",
    ],
)
def test_what_is_not_surely_ours_stays(tmp_path, what):
    path = not_ours(tmp_path, what)
    inside = path / "inside"
    if path.is_dir():
        inside.touch()
    keeper.sweep(str(tmp_path))
    assert path.exists()
    assert inside.exists() or not path.is_dir()


def test_a_folder_for_temporary_files_goes_with_its_use(tmp_path, monkeypatch):
    monkeypatch.setenv(SCRATCH_ENV, str(tmp_path))
    with scratch_folder() as folder:
        assert folder.parent == tmp_path
        (folder / "x").touch()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_a_long_name_leaves_no_room_for_sockets(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/" + "x" * 90)
    assert temporary_root() == "/tmp"
