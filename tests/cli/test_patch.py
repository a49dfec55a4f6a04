"""`export --patch`: the diff comes first, and nothing is written that nobody agreed to."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from autotune.base.errors import JobError
from autotune.cli import cli, results
from autotune.contract import Origin
from tests.report.test_terminal import exportable

THEIRS = '{\n  "train_batch_size": 64,\n  "zero_optimization": {"stage": 3}\n}\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    exportable(tmp_path / "results").update_state(origin=Origin.MEASURED)
    path = tmp_path / "ds.json"
    path.write_text(THEIRS)
    return path


def run(file: Path, *flags: str) -> Result:
    words = ["export", "--results", str(file.parent / "results"), "--patch", str(file), *flags]
    return CliRunner().invoke(cli, words)


def test_without_a_terminal_only_the_diff_is_printed(file):
    done = run(file)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"--- {file}\n+++ {file}\n")
    assert '"stage": 3' in done.stdout
    assert "nothing is written; --yes writes it" in " ".join(done.stderr.split())
    assert file.read_text() == THEIRS


def test_yes_writes_and_a_second_time_changes_nothing(file):
    assert run(file, "--yes").exit_code == 0
    after = file.read_text()
    assert after != THEIRS
    done = run(file, "--yes")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "nothing to change" in " ".join(done.stderr.split())
    assert file.read_text() == after


@pytest.mark.parametrize("answer", [True, False])
def test_a_terminal_is_asked(file, monkeypatch, answer):
    monkeypatch.setattr(results, "is_answered", lambda: True)
    monkeypatch.setattr(results, "confirm", lambda _: answer)
    assert run(file).exit_code == 0
    assert (file.read_text() != THEIRS) is answer


def test_json(file):
    done = run(file, "--json")
    told = json.loads(done.stdout)
    assert [one["file"] for one in told] == [str(file)]
    assert told[0]["written"] is False
    assert told[0]["diff"].startswith("---")
    assert file.read_text() == THEIRS


def test_nowhere_to_write(file):
    words = ["export", "--results", str(file.parent / "results")]
    done = CliRunner().invoke(cli, words)
    assert isinstance(done.exception, JobError) or done.exit_code == 2
    done = run(file, "--out", str(file.parent / "out"))
    assert isinstance(done.exception, JobError) or done.exit_code == 2
    assert not (file.parent / "out").exists()
