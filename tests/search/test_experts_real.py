"""A search that spreads a mixture's experts, as users run it, and the training of its export."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.record.study import Study
from tests.captured import captured
from tests.cases import data_beside
from tests.hasty import HASTY

DATA = data_beside(__file__)

pytestmark = [pytest.mark.real, pytest.mark.thorough]

ENVIRONMENT = {**os.environ, "PYTHON": sys.executable}
SPACE = DATA["SPACE"]


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return captured(words, cwd=folder, timeout=400, env=ENVIRONMENT)


def test_spread_experts_are_found_confirmed_and_exported(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(SPACE)
    done = run(
        *(sys.executable, "-P", HASTY, "search", "--model", "tiny-qwen3-moe", "--yes", "--json"),
        *("--space", "space.yaml", "--world", "2", "--seq-len", "32", "--global-batch", "8"),
        *("--trials", "2", "--study", "it", "--no-knowledge"),
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    trials = Study(tmp_path / "results", "it").trials()
    spread = [t.result for t in trials if t.spec.identity.knobs.get("ep") == 2 and t.result]
    assert spread
    assert all(result.read_back["ep"] == 2 for result in spread)
    out = tmp_path / "out"
    done = run(
        *(sys.executable, "-P", HASTY, "render", "--model", "tiny-qwen3-moe", "--world", "2"),
        *("--seq-len", "32", "--global-batch", "8", "--out", str(out)),
        *("--set", "zero.stage=3", "--set", "ep=2", "--set", "micro_batch=2"),
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    config = json.loads((out / "ds_config.json").read_text())
    assert config["expert_parallel"] == {"enabled": True, "autoep_size": 2}
    done = run("bash", str(out / "launch.sh"), "--steps", "2", folder=out)
    assert "step 1  loss" in done.stdout, done.stdout[-2000:] + done.stderr[-3000:]
