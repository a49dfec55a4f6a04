"""Ranks that end well, fail, go without a word, and keep a store for one another."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.contract import PARENT_ENV
from autotune.fleet.node.processes import NodePart, ranks_command
from autotune.trial.launcher import EXIT_FILE
from autotune.trial.rendezvous import listen_on
from tests.captured import captured
from tests.trials import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]

SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
import torch.distributed
from autotune.contract import RANKS_DIR
from autotune.trial import launcher, rendezvous
from autotune.trial.rendezvous import LOOPBACK, RankStore, Rendezvous, listen_on

FOLDER = Path(sys.argv[1])
launcher._GRACE_S = 0.3
rendezvous._OTHERS_WAIT_S = 1.0

def timed_leave(store):
    began_s = time.monotonic()
    store.leave()
    return time.monotonic() - began_s

def opened():
    store = RankStore()
    store.open()
    return store

def both_leave(rank):
    return timed_leave(opened())

def first_goes(rank):
    store = opened()
    if rank == 0:
        time.sleep(0.3)
        os._exit(0)
    time.sleep(1.0)
    return timed_leave(store)

def second_goes(rank):
    store = opened()
    if rank == 1:
        os._exit(0)
    return timed_leave(store)

def script_renames(rank):
    store = opened()
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"):
        del os.environ[name]
    return timed_leave(store)

def nobody_opens(rank):
    return timed_leave(RankStore())

def second_fails(rank):
    if rank == 1:
        os._exit(3)
    time.sleep(60)

def second_is_killed(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)

def first_does_not_mind(rank):
    if rank == 1:
        time.sleep(0.3)
        os._exit(3)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)

def descriptors(rank):
    n_before = len(os.listdir("/proc/self/fd"))
    store = opened()
    here = [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]
    handed_on = [f for f in here if os.path.exists(f"/proc/self/fd/{f}") and os.get_inheritable(f)]
    store.leave()
    return n_before, len(handed_on)

def become(case):
    rank = int(os.environ["RANK"])
    answer = case(rank)
    (FOLDER / f"{case.__name__}.{rank}").write_text(json.dumps(answer))
    os._exit(0)

def run(case):
    with listen_on(0) as probe:
        port = probe.getsockname()[1]
    here = Rendezvous(address=LOOPBACK, port=port, world=2, node=0, n_nodes=1)
    folder = FOLDER / case.__name__
    (folder / RANKS_DIR).mkdir(parents=True)
    began_s = time.monotonic()
    code = launcher.run_ranks(folder, here, become, case)
    exits = folder / RANKS_DIR / launcher.EXIT_FILE.format(node=0)
    answers = [FOLDER / f"{case.__name__}.{rank}" for rank in (0, 1)]
    return {
        "code": code,
        "exits": json.loads(exits.read_text()) if exits.exists() else None,
        "answers": [json.loads(f.read_text()) if f.exists() else None for f in answers],
        "seconds": time.monotonic() - began_s,
    }

CASES = (both_leave, first_goes, second_goes, script_renames, nobody_opens, second_fails,
         second_is_killed, first_does_not_mind, descriptors)
print(json.dumps({case.__name__: run(case) for case in CASES}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("forks")
    done = captured([sys.executable, "-c", SCRIPT, str(folder)], cwd=REPOSITORY, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.mark.parametrize("case", ["both_leave", "script_renames", "nobody_opens"])
def test_ranks_that_end_well_do_not_wait(found: dict[str, Any], case: str) -> None:
    assert (found[case]["code"], found[case]["exits"]) == (0, None)
    assert max(found[case]["answers"]) < 0.9, "less than a rank waits for one that says nothing"


def test_nobody_waits_for_a_first_rank_that_is_gone(found: dict[str, Any]) -> None:
    _, left_s = found["first_goes"]["answers"]
    assert left_s < 0.9


def test_the_first_rank_waits_for_a_while_for_one_that_went_without_a_word(found) -> None:
    left_s, _ = found["second_goes"]["answers"]
    assert 0.9 < left_s < 20


@pytest.mark.parametrize(
    ("case", "exits"),
    [
        ("second_fails", {"1": 3}),
        ("second_is_killed", {"1": -signal.SIGKILL}),
        ("first_does_not_mind", {"1": 3}),
    ],
)
def test_a_rank_that_fails_ends_the_others_and_is_named_alone(found, case, exits) -> None:
    assert (found[case]["code"], found[case]["exits"]) == (1, exits)
    assert found[case]["seconds"] < 30


def test_no_rank_hands_on_what_the_launcher_listens_on(found: dict[str, Any]) -> None:
    (n_first, *first_hands_on), (n_second, *second_hands_on) = found["descriptors"]["answers"]
    assert n_first == n_second + 1, "the first one has it alone"
    assert (first_hands_on, second_hands_on) == ([0], [0])


def launcher(folder: Path, port: int, module: str) -> subprocess.Popen[str]:
    (folder / "ranks").mkdir(exist_ok=True)
    python_path = os.pathsep.join([str(REPOSITORY), str(folder)])
    return subprocess.Popen(
        ranks_command(NodePart(folder=str(folder), devices=["0", "1"], module=module), port),
        env={**os.environ, "PYTHONPATH": python_path, PARENT_ENV: str(os.getpid())},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def port() -> int:
    with listen_on(0) as probe:
        found: int = probe.getsockname()[1]
    return found


def test_a_port_that_somebody_has_is_told(tmp_path: Path) -> None:
    with listen_on(0) as taken:
        process = launcher(tmp_path, taken.getsockname()[1], "this")
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors.startswith("launcher: OSError: [Errno 98] Address already in use")


def test_a_module_that_is_not_there_fails_in_the_rank(tmp_path: Path, port: int) -> None:
    process = launcher(tmp_path, port, "no_such_module")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "No module named no_such_module" in errors
    codes = json.loads((tmp_path / "ranks" / EXIT_FILE.format(node=0)).read_text())
    assert 1 in codes.values()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ranks_end_with_their_launcher(tmp_path: Path, port: int, number: int) -> None:
    (tmp_path / "waits.py").write_text(
        "import os, pathlib, signal, time\n"
        "name = f'began.{os.environ[\"RANK\"]}'\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "pathlib.Path(__file__).with_name(name).write_text(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    process = launcher(tmp_path, port, "waits")
    began = [tmp_path / f"began.{rank}" for rank in (0, 1)]
    wait_until(lambda: all(f.exists() and f.read_text() for f in began), "the ranks began")
    ranks = [psutil.Process(int(file.read_text())) for file in began]
    time.sleep(0.1)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == (128 + number if number == signal.SIGTERM else -number)
    wait_until(lambda: not any(rank.is_running() for rank in ranks), "a rank is left")
