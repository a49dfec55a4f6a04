"""The command line without a single trial: flags, plans, messages, exit codes, frozen help."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.base.data import table_beside
from autotune.base.errors import ExitCode
from autotune.base.plugins import plugin_names
from autotune.cli import flags
from tests import snapshots
from tests.cases import data_beside
from tests.command_line import autotune

DATA = data_beside(__file__)

COMMANDS = DATA["COMMANDS"]
FLAGS = table_beside(flags.__file__, "flags.json")
SMALL = ("--model", "tiny-llama", "--seq-len", "64", "--global-batch", "8", "--world", "2")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_frozen(command: str, tmp_path: Path) -> None:
    done = autotune(*filter(None, [command]), "--help", folder=tmp_path)
    assert done.returncode == 0
    snapshots.check(f"help/{command or 'autotune'}.txt", done.stdout)


@pytest.mark.parametrize(("command", "others"), [("every", {"command"}), ("export", set())])
def test_help_lists_the_dialects(command: str, others: set[str]) -> None:
    sentence = FLAGS[command]["to"]
    listed = {name.rstrip(".,:") for name in sentence.split()}
    assert set(plugin_names("dialect")) - others <= listed


def test_help_does_not_wait_for_heavy_imports(tmp_path: Path) -> None:
    code = (
        "import sys, autotune.cli; "
        "sys.exit(bool({'torch', 'optuna', 'pandas', 'pydantic'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0


def test_a_dry_run_shows_the_plan_and_runs_nothing(tmp_path: Path) -> None:
    done = autotune("search", *SMALL, "--space", "smoke", "--dry-run", folder=tmp_path)
    assert done.returncode == ExitCode.FOUND, done.stderr
    for word in (
        "study",
        "candidates are legal",
        "refused by",
        "baseline",
        "price",
        "accelerator",
    ):
        assert word in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert not list(tmp_path.iterdir())


def test_a_dry_run_as_json_adds_up(tmp_path: Path) -> None:
    done = autotune("search", *SMALL, "--space", "smoke", "--dry-run", "--json", folder=tmp_path)
    plan = json.loads(done.stdout)
    assert plan["trials"] == (
        plan["baseline_trials"] + plan["search_trials"] + plan["confirm_trials"]
    )
    assert plan["total_s"] == pytest.approx(plan["trials"] * plan["trial_s"])
    assert plan["accelerator_hours"] == pytest.approx(2 * plan["total_s"] / 3600)
    assert 0 < plan["lattice_size"] <= plan["grid_size"]
    assert plan["search_trials"] <= plan["lattice_size"]
    assert set(plan["refused"]) == set(plan["reasons"])
    best = autotune(
        *("search", *SMALL, "--space", "smoke", "--compare", "best", "--dry-run", "--json"),
        folder=tmp_path,
    )
    assert json.loads(best.stdout)["confirm_trials"] < plan["confirm_trials"]


def test_render_writes_the_files_of_one_candidate(tmp_path: Path) -> None:
    job = "model: tiny-llama\nseq_len: 64\nglobal_batch: 8\nworld: 2\n"
    (tmp_path / "job.yaml").write_text(job, encoding="utf-8")
    settings = ("--set=zero.stage=2", "--set", "micro_batch=2")
    done = autotune(
        "render", "--job", "job.yaml", *settings, "--out", "out", "--json", folder=tmp_path
    )
    assert done.returncode == ExitCode.FOUND, done.stderr
    files = json.loads(done.stdout)
    assert all((tmp_path / file).is_file() for file in files)
    config = json.loads((tmp_path / "out" / "ds_config.json").read_text(encoding="utf-8"))
    assert config["zero_optimization"]["stage"] == 2
    assert config["train_micro_batch_size_per_gpu"] == 2
    assert config["gradient_accumulation_steps"] == 2


def test_the_doctor_answers_in_json(tmp_path: Path) -> None:
    done = autotune("doctor", "--no-measure", "--json", folder=tmp_path)
    diagnosis = json.loads(done.stdout)
    assert diagnosis["level"] in ("ok", "warn", "fail")
    assert diagnosis["machine"]["accelerator"] == "cpu"


def test_no_colour_in_a_pipe(tmp_path: Path) -> None:
    done = autotune("doctor", "--no-measure", folder=tmp_path)
    assert not re.search(r"\x1b\[", done.stdout + done.stderr)
