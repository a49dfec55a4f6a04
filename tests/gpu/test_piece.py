"""The folder that a piece of time on a GPU leaves, on trials of simulated devices."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pandas as pd
import pytest

from autotune.devices.hardware import Gpu
from tests.gpu import gather, piece
from tests.gpu.accept import run
from tests.gpu.piece import BEST_FILE, FILES, MACHINE_FILE, RECORD_FILE, TERMINAL_FILE, TRIALS_FILE
from tests.gpu.stages import AUTOTUNE, REPOSITORY, Stage
from tests.trials import wait_until

_JOB = ("--model", "gpt2", "--seq-len", "512", "--global-batch", "8", "--world", "1")
_RECORD = ("--results", "{work}", "--study", "small", "--json")


def stage(name: str, *command: str) -> Stage:
    return Stage(name=name, answers="a question", command=command, least_s=0, leaves="trials")


SEARCH = stage(
    "small",
    *(*AUTOTUNE, "search", *_RECORD, *_JOB, "--yes", "--no-knowledge"),
    *("--fleet", "simulate:1xH100", "--space", "smoke", "--trials", "2"),
)
REPORT = stage("read-again", *AUTOTUNE, "report", *_RECORD)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one piece left: a search."""
    folder = tmp_path_factory.mktemp("piece") / "results"
    assert run([SEARCH], folder, 120) == 0
    return folder


def test_a_piece_leaves_its_files_and_no_others(results: Path) -> None:
    files = [file for file in results.rglob("*") if file.is_file()]
    assert {file.name for file in files} <= set(FILES)
    assert all(file.parent == results for file in files)
    assert len(FILES) == 8
    table = pd.read_csv(results / TRIALS_FILE)
    assert len(table[table["outcome"] == "ok"]) > 2
    assert set(table["study"]) == {"small"}
    assert "trial 0" in (results / TERMINAL_FILE).read_text()
    with tarfile.open(results / RECORD_FILE) as archive:
        assert "small/trials/0000/spec.json" in archive.getnames()


def test_the_next_piece_reads_back_the_record(results: Path, tmp_path: Path) -> None:
    moved = tmp_path / "results"
    moved.mkdir()
    for name in (RECORD_FILE, "stages.json", "answers.json", TERMINAL_FILE):
        (moved / name).write_bytes((results / name).read_bytes())
    assert run([SEARCH, REPORT], moved, 120) == 0
    answers = json.loads((moved / "answers.json").read_text())
    assert answers["read-again"]["study"] == answers["small"]["study"]
    assert len(pd.read_csv(moved / TRIALS_FILE)) == len(pd.read_csv(results / TRIALS_FILE))


def test_what_a_killed_piece_had_measured_is_there_for_the_next(results, tmp_path) -> None:
    """It is saved while its stage runs. The rehearsal asks it of real ranks and of wheels."""
    trials = pd.read_csv(results / TRIALS_FILE)["started_at"]
    searches = (
        "import sys, tarfile, time; "
        f"tarfile.open({str(results / RECORD_FILE)!r}).extractall(sys.argv[1], filter='data'); "
        "time.sleep(600)"
    )
    script = (
        "from pathlib import Path; from tests.gpu.test_piece import run, stage; "
        f"run([stage('small', '-c', {searches!r}, '{{work}}')], Path({str(tmp_path)!r}), 600)"
    )
    piece = subprocess.Popen([sys.executable, "-c", script], cwd=REPOSITORY)
    table, last = tmp_path / TRIALS_FILE, tmp_path / BEST_FILE

    def are_saved() -> bool:
        is_whole = last.is_file() and len(pd.read_csv(table)) == len(trials)
        return is_whole and last.stat().st_mtime >= table.stat().st_mtime

    wait_until(are_saved, "they are saved")
    piece.kill()
    piece.wait()
    assert run([SEARCH], tmp_path, 120) == 0
    assert set(pd.read_csv(table)["started_at"]) >= set(trials.dropna())


def test_results_of_another_device_are_not_mixed(tmp_path, monkeypatch, capsys) -> None:
    machine = {"machine": {"devices": [{"name": "NVIDIA H200"}]}}
    (tmp_path / MACHINE_FILE).write_text(json.dumps(machine))
    here = Gpu(
        index=0,
        name="NVIDIA H100 80GB HBM3",
        uuid="GPU-1",
        memory_bytes=80 * 2**30,
        memory_used_bytes=0,
        utilization=None,
    )
    monkeypatch.setattr(piece, "visible_gpus", lambda: [here])
    assert run([stage("x", "-c", "pass")], tmp_path, 60) == 2
    assert "NVIDIA H200" in capsys.readouterr().err


def test_gathered_tables_stand_in_the_page(results: Path, tmp_path: Path) -> None:
    page, recorded = tmp_path / "gpu.md", tmp_path / "recorded"
    page.write_text(f"# A page\n{gather.BEGIN}\nfrom before\n{gather.END}\nthe rest\n")
    machine = {"machine": {"devices": [{"name": "NVIDIA H100 80GB HBM3"}]}}
    (results / MACHINE_FILE).write_text(json.dumps(machine))
    arguments = [str(results), "--recorded", str(recorded), "--page", str(page)]
    assert gather.main(arguments) == 0
    once = page.read_text()
    assert gather.main(arguments) == 0
    assert page.read_text() == once, "gathering a piece again changes nothing"
    assert once.startswith("# A page")
    assert once.endswith("the rest\n")
    assert "from before" not in once
    assert "| H100 | small |" in once
    assert "- `small-cold`" in once
    assert len(pd.read_csv(recorded / "h100-trials.csv")) == len(
        pd.read_csv(results / TRIALS_FILE)
    )


def test_a_rehearsal_is_not_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "stages.json").write_text("[]")
    machine = {"machine": {"accelerator": "cpu", "devices": [{"name": "AMD EPYC"}]}}
    (tmp_path / MACHINE_FILE).write_text(json.dumps(machine))
    with pytest.raises(SystemExit):
        gather.main([str(tmp_path), "--recorded", str(tmp_path / "recorded")])
    assert "AMD EPYC, which is no GPU" in capsys.readouterr().err
