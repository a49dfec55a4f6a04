"""What a trial leaves in memory under a name goes with it, and nothing of anybody else does."""

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.fleet.node.leavings import Leavings

MAKER = """
import mmap, os, sys
folder = sys.argv[1]
def file(name, size=4096):
    made = os.open(f"{folder}/{name}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.ftruncate(made, size)
    return made
print(eval(sys.argv[2]), flush=True)
sys.stdin.read()
"""

LEFT = {
    "open": "file('a')",
    "mapped": "(made := file('b'), held := mmap.mmap(made, 4096), os.close(made))[0]",
    "a queue of torch": "os.close(file(f'torch_{os.getpid()}_123_0'))",
    "a semaphore of loky": "os.close(file(f'sem.loky-{os.getpid()}-abc'))",
    "OpenMP": "os.close(file(f'__KMP_REGISTERED_LIB_{os.getpid()}_0'))",
    "a folder of joblib": "os.mkdir(f'{folder}/joblib_memmapping_folder_{os.getpid()}_x_y')",
}
STAYS = {
    "closed": "os.close(file('c'))",
    "another process's number": "os.close(file('torch_1_123_0'))",
    "its number in a name of no known form": "os.close(file(f'data_{os.getpid()}'))",
    "part of a number": "os.close(file(f'torch_{os.getpid()}0_1_1'))",
}


@pytest.fixture
def folder(tmp_path):
    return tmp_path


@pytest.fixture
def make(folder):
    made: list[subprocess.Popen[str]] = []

    def make(what: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", MAKER, str(folder), what],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        made.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield make
    for process in made:
        end(process)


def end(process) -> None:
    process.kill()
    process.communicate()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("what", LEFT)
def test_what_a_trial_left_goes(what, folder, make):
    (folder / "before").touch()
    leavings = Leavings(folder)
    process = make(LEFT[what])
    assert len(names(folder)) == 2
    leavings.look(lambda: [process.pid])
    end(process)
    leavings.remove([process.pid])
    assert names(folder) == ["before"]


@pytest.mark.parametrize("what", STAYS)
def test_what_may_be_somebody_elses_stays(what, folder, make):
    leavings = Leavings(folder)
    process = make(STAYS[what])
    leavings.look(lambda: [process.pid])
    end(process)
    leavings.remove([process.pid])
    assert len(names(folder)) == 1


def test_what_another_process_uses_stays(folder, make):
    leavings = Leavings(folder)
    service = make("file('served')")
    user = make("os.open(f'{folder}/served', os.O_RDWR)")
    leavings.look(lambda: [user.pid])
    end(user)
    leavings.remove([user.pid])
    assert names(folder) == ["served"]
    end(service)


def test_what_was_there_before_stays(folder, make):
    process = make("file('early')")
    leavings = Leavings(folder)
    leavings.look(lambda: [process.pid])
    end(process)
    leavings.remove([process.pid])
    assert names(folder) == ["early"]


def test_what_was_made_anew_by_others_stays(folder, make):
    leavings = Leavings(folder)
    process = make("file('name')")
    leavings.look(lambda: [process.pid])
    (folder / "name").rename(folder / "kept")  # its inode is not given again
    (folder / "name").touch()
    end(process)
    leavings.remove([process.pid])
    assert "name" in names(folder)


def test_nobody_is_asked_where_nothing_is_new(folder):
    Leavings(folder).look(lambda: pytest.fail("asked"))
