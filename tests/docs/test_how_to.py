"""The commands of the pages that need no device run, and answer."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import Cases
from tests.command_line import autotune
from tests.hasty import HASTY

cases = Cases(__file__)

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to"
FILES = re.compile(r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = [
    (page.name, line)
    for page in sorted(HOW_TO.glob("*.md"))
    for line in re.findall(r"^autotune (.+)$", page.read_text("utf-8"), re.MULTILINE)
]
GATE = [line for _, line in COMMANDS if "best.json" in line or "--against" in line]
"""Those that need what a search found."""
JOB = cases.data["JOB"]


def test_there_are_commands() -> None:
    assert {page for page, _ in COMMANDS} >= {"no-gpu.md", "rent.md", "ci.md", "fine-tune.md"}


@pytest.mark.parametrize(("page", "line"), [one for one in COMMANDS if one[1] not in GATE])
def test_a_command_answers(page: str, line: str, tmp_path: Path) -> None:
    # With a finding, which every form of output shows.
    (tmp_path / "ds_config.json").write_text('{"train_micro_batch_size_per_gpu": 2, "zero": 1}\n')
    for name, content in FILES.findall((HOW_TO / page).read_text("utf-8")):
        (tmp_path / name).write_text(content)
    # What is searched in full is searched by other tests.
    flags = ("--dry-run",) if line.startswith("search ") else ()
    done = autotune(*shlex.split(line), *flags, folder=tmp_path)
    assert done.returncode == 0, f"{page}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert done.stdout


@pytest.mark.real
def test_a_search_and_its_gates_run_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    search, of_file, of_study = GATE

    def run(line: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-P", HASTY, *shlex.split(line)]
        return subprocess.run(
            shlex.join(words).replace("'>'", ">"),
            shell=True,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )

    done = run(search)
    assert done.returncode == 0, done.stderr
    # How much a machine of tests varies is not what this asks.
    done = run(of_file.replace("5%", "60% --rounds 3 --json"))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found = json.loads(done.stdout)
    assert (found["verdict"], found["differences"]) == ("within", {})
    assert found["now"]["n_runs"] >= 3
    state = tmp_path / "results" / "nightly" / "study.json"
    facts = json.loads(state.read_text())
    facts["environments"][0]["device_name"] = "another device"
    state.write_text(json.dumps(facts))
    done = run(of_study)
    assert done.returncode == 2, f"{done.stdout}\n{done.stderr}"
    assert "was measured on another device (cpu), and here is" in " ".join(done.stderr.split())
