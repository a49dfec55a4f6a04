"""Toy plug-ins, each a package of its own that autotune does not know, search as others do."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from autotune.app.exports import export_study
from autotune.contract import NODE_FILE, RANKS_DIR, Role
from autotune.fleet.transports.base import Transport
from autotune.record.study import Study
from autotune.testing import (
    DialectContract,
    EngineContract,
    FleetContract,
    LauncherContract,
    SamplerContract,
    TransportContract,
    WorkloadContract,
)
from tests.command_line import autotune
from tests.hasty import HASTY
from tests.report.test_terminal import exportable
from tests.trials import CPU

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent.parent / "autotune"

JOB = (
    *("--model", "tiny-gpt2", "--seq-len", "16", "--global-batch", "16", "--world", "2"),
    *("--precision", "fp32", "--study", "toy"),
)

QUICK = (
    *("--trials", "1", "--space", "smoke", "--no-diagnose"),
    *("--guard-steps", "0", "--budget", "15s"),
)
"""Real ranks, for what a plug-in does to them alone."""
SIMULATED = ("--fleet", "simulate:2xH100")


def search(results: Path, *flags: str) -> tuple[dict[str, Any], Study]:
    """Run a search as a user would: its answer and its record."""
    ran = subprocess.run(
        [*(sys.executable, "-P", HASTY, "search", "--json", "--results", results), *JOB, *flags],
        cwd=results,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout), Study(results, "toy")


class TestBackwards(SamplerContract):
    name = "toy-backwards"


class TestIni(DialectContract):
    name = "toy-ini"


class TestLoop(LauncherContract):
    name = "toy-loop"


class TestSharded(EngineContract):
    name = "toy-sharded"
    space = "zero"


class TestShardedFiles(DialectContract):
    name = "toy-sharded-files"


class TestShort(WorkloadContract):
    name = "toy-short"


class TestTwinTransport(TransportContract):
    def make(self) -> Transport:
        from toy_fleet import TwinTransport

        return TwinTransport(CPU)


@pytest.mark.real
class TestTwins(FleetContract):
    name = "toy-twins"
    # The search below runs such trials.
    test_a_trial_ends_with_a_result_that_says_where_it_is_from = None  # type: ignore[assignment]


@pytest.mark.real
def test_the_toy_fleet_trains_the_toy_workload_on_gangs_of_two_nodes(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("workload: toy-short", encoding="utf-8")
    answer, study = search(tmp_path, "--fleet", "toy-twins", "--job", str(job), *QUICK)
    assert answer["best"] is not None
    assert answer["origin"] == "measured"
    ran = [t for t in study.trials() if t.result is not None and t.result.outcome.is_measured]
    for trial in ran:
        assert trial.result.devices == ["twin-0:0", "twin-1:0"]
        for node in range(2):
            assert (trial.folder / RANKS_DIR / NODE_FILE.format(node=node)).exists()
    for trial in study.trials():
        assert trial.spec.workload.name == "toy-short"
        assert "recompute" not in trial.spec.identity.knobs, "nothing in the script applies it"
    text = (HERE / "workload" / "toy_workload_script.py").read_text(encoding="utf-8")
    assert (study.best_folder / "train.py").read_text(encoding="utf-8") == text


def rendered(folder: Path, job: Path, dialect: str, *knobs: str) -> Path:
    """Files of a candidate, as the command line writes them."""
    words = ("render", "--job", job, "--to", dialect, "--out", folder / "out")
    settings = (word for knob in ("micro_batch=4", *knobs) for word in ("--set", knob))
    done = autotune(*map(str, words), *settings, folder=folder)
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_the_toy_dialect_is_written_with_the_toy_launcher(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("{model: tiny-gpt2, seq_len: 64, global_batch: 16, world: 2}", encoding="utf-8")
    out = rendered(tmp_path, job, "toy-ini", "zero.stage=2")
    assert "zero.stage = 2" in (out / "knobs.ini").read_text(encoding="utf-8")
    assert "seq 2); do RANK=$rank python show.py" in (out / "loop.sh").read_text(encoding="utf-8")
    marker = json.loads((out / "autotune_export.json").read_text(encoding="utf-8"))
    assert (marker["dialect"], marker["launcher"]) == ("toy-ini", "toy-loop")


@pytest.mark.parametrize("dialect", ["deepspeed", "accelerate", "lightning"])
def test_a_workload_without_settings_has_a_readme(tmp_path: Path, dialect: str) -> None:
    job = tmp_path / "job.yaml"
    lines = "{model: tiny-gpt2, seq_len: 64, global_batch: 16, world: 2, workload: toy-short}"
    job.write_text(lines, encoding="utf-8")
    assert (rendered(tmp_path, job, dialect) / "README.md").exists()


def test_a_study_is_handed_out_with_the_toy_launcher(tmp_path: Path) -> None:
    study = exportable(tmp_path / "results")
    out = tmp_path / "out"
    export_study(study, out, launcher="toy-loop")
    assert "RANK=$rank python train.py" in (out / "loop.sh").read_text(encoding="utf-8")
    assert not (out / "launch.sh").exists()
    assert "sh loop.sh" in (out / "README.md").read_text(encoding="utf-8")
    marker = json.loads((out / "autotune_export.json").read_text(encoding="utf-8"))
    assert (marker["dialect"], marker["launcher"]) == ("deepspeed", "toy-loop")


def test_the_toy_engine_is_searched_by_the_toy_sampler(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("{engine: toy-sharded, space: smoke, sampler: toy-backwards}", encoding="utf-8")
    answer, study = search(tmp_path, *SIMULATED, "--job", str(job), "--trials", "3")
    assert answer["best"] is not None
    specs = [trial.spec for trial in study.trials()]
    assert {spec.engine.name for spec in specs} == {"toy-sharded"}
    assert all(spec.identity.knobs["zero.stage"] != 0 for spec in specs), "its rule refuses that"
    tried = [spec.identity.knobs for spec in specs if spec.identity.role is Role.SEARCH]
    # The first candidates of a space have the lowest stage, the last ones the highest.
    assert [knobs["zero.stage"] for knobs in tried] == [3] * len(tried)
    assert len(tried) >= 3


def test_nothing_below_autotune_names_the_toys() -> None:
    words = set()
    for path in HERE.glob("*/pyproject.toml"):
        project = tomllib.loads(path.read_text(encoding="utf-8"))
        words.add(project["project"]["name"])
        words.update(project["tool"]["setuptools"]["py-modules"])
        for offered in project["project"]["entry-points"].values():
            words.update(offered)
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not [word for word in words if word in text], path
