"""Whole searches on real DeepSpeed: one to its end, one killed again and again, one in vain.

`tests/chaos` has the other rude ways of ending one early.
"""

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.contract import Outcome, Role
from autotune.fleet.processes import processes_of
from tests.searches import Search
from tests.trials import wait_until

pytestmark = pytest.mark.real


@pytest.fixture
def search(tmp_path):
    search = Search(tmp_path)
    yield search
    wait_until(lambda: processes_of(search.study.folder) == [], "a search left processes behind")


def test_a_search_answers_with_a_confirmed_best_and_its_files(search):
    code, stdout, stderr = search.run("--trials", "1", "--seed", "3")
    assert code == 0, stderr
    answer = json.loads(stdout.splitlines()[-1])

    assert answer["study"] == "it"
    assert sum(answer["counts"].values()) == len(search.study.trials())
    trials = {t.spec.number: t for t in search.study.trials()}
    for name in ("baseline", "best"):
        standing = answer[name]
        low, high = standing["samples_per_s_low"], standing["samples_per_s_high"]
        assert low <= standing["samples_per_s"] <= high
        assert standing["peak_memory_bytes"] > 0
        assert standing["candidate"] == trials[standing["trial"]].spec.knobs
        ds_config = json.loads(Path(search.study.root.parent, standing["ds_config"]).read_text())
        micro_batch = ds_config["train_micro_batch_size_per_gpu"]
        assert micro_batch == standing["candidate"]["micro_batch"]
    assert answer["speedup_low"] <= answer["speedup"] <= answer["speedup_high"]
    confirmed = {t.spec.candidate_hash for t in trials.values() if t.spec.role is Role.CONFIRM}
    assert trials[answer["best"]["trial"]].spec.candidate_hash in confirmed
    for path in answer["paths"].values():
        assert Path(search.study.root.parent, path).exists()

    n_trials = len(trials)
    code, stdout, _ = search.run("--trials", "1", "--seed", "3")
    assert code == 0
    assert len(search.study.trials()) == n_trials, "the same command again runs nothing twice"
    assert json.loads(stdout.splitlines()[-1])["best"] == answer["best"]


def test_kill_9_at_any_moment_loses_nothing_and_leaves_nothing(search):
    moments = random.Random(20)
    finished: dict[int, str] = {}
    for _ in range(6):
        process = search.start("--trials", "6", "--budget", "45s")
        try:
            process.wait(timeout=moments.uniform(1.0, 12.0))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.communicate()
        wait_until(lambda: processes_of(search.study.folder) == [], "an orphan is left")
        now = search.finished()
        assert finished.items() <= now.items(), "a finished trial was lost or changed"
        finished = now
        report = [sys.executable, "-m", "autotune", "report", "--study", "it", "--json"]
        if search.study.trials():
            done = subprocess.run(
                [*report, "--results", str(search.study.root)], capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            json.loads(done.stdout)

    code, stdout, stderr = search.run("--trials", "6", "--budget", "45s")
    assert code == 0, stderr
    assert finished.items() <= search.finished().items()
    ran = [
        t.spec.candidate_hash
        for t in search.study.trials()
        if t.spec.role is not Role.CONFIRM
        and t.spec.repeat_of is None  # a busy machine disturbs a trial, which is run once more
        and t.result is not None
        and not t.result.outcome.is_platform_fault
    ]
    assert len(ran) == len(set(ran)), "a candidate was run twice"
    assert json.loads(stdout.splitlines()[-1])["best"] is not None


def test_nothing_fits_is_exit_3_with_the_nearest_change(search):
    code, stdout, stderr = search.run("--trials", "2", "--memory-limit", "1MiB")
    assert code == 3, stderr
    assert "1 MiB" in stderr
    assert "memory" in stderr
    assert "Traceback" not in stderr
    assert {t.result.outcome for t in search.study.trials()} == {Outcome.OOM}, stdout
