"""A search of both engines as users run it, with Megatron's own soak and export."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from autotune.contract import Start
from autotune.fleet.node.processes import processes_of
from autotune.record.study import Study
from tests.captured import captured
from tests.hasty import HASTY
from tests.searches import MODEL, check_all_measured

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(find_spec("megatron") is None, reason="megatron-core is not installed"),
]


def autotune(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return captured(
        [sys.executable, "-P", HASTY, *words], cwd=folder, timeout=400, env=dict(os.environ)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one search of both engines has run."""
    folder = tmp_path_factory.mktemp("both")
    (folder / "config.json").write_text(json.dumps(MODEL))
    (folder / "job.yaml").write_text(
        "model: config.json\nseq_len: 16\nglobal_batch: 8\nworld: 2\nprecision: fp32\n"
        "study: it\nengine: both\ntrials: 1\nbudget: 25s\ncompare: best\n"
    )
    done = autotune("search", "--job", "job.yaml", "--yes", "--json", folder=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    (folder / "said.txt").write_text(done.stdout)
    return folder


def study_of(folder: Path, engine: str) -> Study:
    return Study(folder / "results", f"it-{engine}")


def test_each_engine_has_a_study_and_they_are_compared(folder: Path) -> None:
    said = json.loads((folder / "said.txt").read_text())
    comparison = said["comparison"]
    assert all(answer["best"] is not None for answer in said["answers"])
    assert (
        comparison["warnings"][0]
        == "engine differs (it-deepspeed deepspeed, it-megatron megatron)"
    )
    assert len(comparison["verdicts"]) == 1
    faster = "it-deepspeed: [0-9.]+x it-megatron|it-megatron: [0-9.]+x it-deepspeed"
    neither = "No proven difference. The best of it-megatron is [0-9.]+x as fast"
    assert re.match(f"(Probably )?({faster})|{neither}", comparison["verdicts"][0]["text"]), (
        comparison["verdicts"]
    )


def test_trials_of_megatron_are_measured_as_others_are(folder: Path) -> None:
    study = study_of(folder, "megatron")
    trials = study.trials()
    results = [trial.result for trial in trials if trial.result is not None]
    check_all_measured(study, trials)
    for trial, result in zip(trials, results, strict=True):
        assert result.versions["megatron-core"]
        assert result.losses
        assert result.peak_memory_bytes
        expected = trial.spec.engine.expected
        assert {name: result.read_back[name] for name in expected} == expected
    seen = [r.diagnosis for r in results if r.diagnosis is not None]
    assert seen
    for diagnosis in seen:
        assert diagnosis.problem == ""
        assert diagnosis.collectives
    assert any(trial.spec.measure.start is Start.WARM for trial in trials)
    assert processes_of(study.folder) == [], "a search left processes behind"


@pytest.mark.thorough
def test_an_export_trains(folder: Path, tmp_path: Path) -> None:
    out, job = tmp_path / "out", folder / "megatron.yaml"
    job.write_text((folder / "job.yaml").read_text().replace("both", "megatron"))
    done = autotune(
        *("render", "--job", str(job), "--out", str(out)),
        *("--set", "distributed_optimizer=true", "--set", "micro_batch=2", "--set", "tp=1"),
        folder=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    trained = captured(
        ["bash", str(out / "launch.sh"), "--steps", "2"],
        cwd=tmp_path,
        timeout=200,
        env={**os.environ, "PYTHON": sys.executable},
    )
    assert "step 1  loss" in trained.stdout, trained.stdout + trained.stderr[-3000:]
    soaked = autotune("soak", "--from", str(out), "--minutes", "0.1", "--json", folder=tmp_path)
    assert soaked.returncode == 0, soaked.stdout + soaked.stderr[-3000:]
    checkpoint = json.loads((out / "soak.json").read_text())["checkpoint"]
    assert checkpoint["loss_deviation"] <= checkpoint["loss_tolerance"]


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["tiny-qwen3-moe", "tiny-deepseek-v3", "tiny-gpt-oss"])
def test_a_mixture_is_searched_and_its_export_trains(tmp_path: Path, model: str) -> None:
    done = autotune(
        *("search", "--engine", "megatron", "--model", model, "--seq-len", "32"),
        *("--global-batch", "8", "--world", "2", "--precision", "fp32", "--study", "it"),
        *("--trials", "2", "--budget", "100s", "--no-knowledge", "--yes"),
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    done = autotune("export", "--to", "megatron-core", "--out", "out", folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    trained = captured(
        ["bash", "out/launch.sh", "--steps", "2"],
        cwd=tmp_path,
        timeout=200,
        env={**os.environ, "PYTHON": sys.executable},
    )
    assert trained.returncode == 0, trained.stderr[-3000:]
    assert "step 1" in trained.stdout
