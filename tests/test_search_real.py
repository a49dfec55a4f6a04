"""Whole searches on real DeepSpeed: one to its end, and every rude way of ending one early."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.contract import Outcome, Role
from autotune.fleet.processes import processes_of
from autotune.record import Study, Trial
from tests.trials import wait_until

pytestmark = pytest.mark.real

MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 64,
}
OWN_BASELINE = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 0},
}


class Search:
    """`python -m autotune search` on a small model, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.study = Study(folder / "results", "it")
        (folder / "config.json").write_text(json.dumps(MODEL))
        (folder / "baseline.json").write_text(json.dumps(OWN_BASELINE))
        self._folder = folder
        self._command = [
            *(sys.executable, "-m", "autotune", "search", "--yes", "--json"),
            *("--model", "config.json", "--seq-len", "16", "--global-batch", "8"),
            *("--world", "2", "--space", "smoke", "--study", "it", "--baseline", "baseline.json"),
        ]

    def train_slowly(self) -> None:
        """A larger model: its trials are in flight for seconds, however fast they start."""
        larger = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12}
        (self._folder / "config.json").write_text(json.dumps(MODEL | larger))

    def start(self, *more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._command, *more],
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )

    def run(self, *more: str) -> tuple[int, str, str]:
        process = self.start(*more)
        stdout, stderr = process.communicate(timeout=900)
        return process.returncode, stdout, stderr

    def finished(self) -> dict[int, str]:
        """Digest of every finished trial's result, by number."""
        return {
            trial.spec.number: digest(trial)
            for trial in self.study.trials()
            if trial.result is not None and trial.result.outcome is not Outcome.LOST
        }


def digest(trial: Trial) -> str:
    return hashlib.sha256((trial.folder / "result.json").read_bytes()).hexdigest()


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
    for _ in range(10):
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
        and t.result is not None
        and not t.result.outcome.is_platform_fault
    ]
    assert len(ran) == len(set(ran)), "a candidate was run twice"
    assert json.loads(stdout.splitlines()[-1])["best"] is not None


def test_ctrl_c_once_drains_and_reports_and_a_second_search_is_refused(search):
    search.train_slowly()
    process = search.start("--trials", "6")
    wait_until(lambda: len(processes_of(search.study.folder)) >= 3, "the first trial is up")

    code, _, stderr = search.run("--trials", "6")
    assert code == 2
    assert f"process {process.pid}" in stderr

    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    assert len(search.finished()) == 1, "the running trial was drained, no other was started"
    assert json.loads(stdout.splitlines()[-1])["counts"]["ok"] == 1


def test_ctrl_c_twice_ends_at_once(search):
    search.train_slowly()
    process = search.start("--trials", "6")
    wait_until(lambda: len(processes_of(search.study.folder)) >= 3, "the first trial is up")
    process.send_signal(signal.SIGINT)
    # A second SIGINT would merge with the first while that is pending; SIGTERM asks the same.
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    process.communicate(timeout=60)
    assert time.monotonic() - began < 10
    assert process.returncode == 130
    (trial,) = search.study.trials()
    assert trial.result is not None
    assert trial.result.outcome is Outcome.CANCELLED


def test_nothing_fits_is_exit_3_with_the_nearest_change(search):
    code, stdout, stderr = search.run("--trials", "2", "--memory-limit", "1MiB")
    assert code == 3, stderr
    assert "1 MiB" in stderr
    assert "memory" in stderr
    assert "Traceback" not in stderr
    assert {t.result.outcome for t in search.study.trials()} == {Outcome.OOM}, stdout


def test_a_full_disk_is_said_and_the_search_goes_on_later(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    try:
        search = Search(disk)
        process = search.start("--trials", "1", "--budget", "30s")
        wait_until(lambda: len(processes_of(search.study.folder)) >= 3, "the first trial is up")
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        _, stderr = process.communicate(timeout=120)
        assert process.returncode == 2, stderr
        assert "No space left" in stderr
        assert "Traceback" not in stderr

        filler.unlink()
        code, stdout, stderr = search.run("--trials", "1", "--budget", "30s")
        assert code == 0, stderr
        assert json.loads(stdout.splitlines()[-1])["best"] is not None
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
