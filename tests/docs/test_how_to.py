"""The commands of the pages that need no device run, and answer."""

import re
import shlex
from pathlib import Path

import pytest

from tests.command_line import autotune
from tests.docs.test_skill import files

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to"
FILES = re.compile(r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = [
    (page.name, line)
    for page in sorted(HOW_TO.glob("*.md"))
    for line in re.findall(r"^autotune ([^>\n]+)", page.read_text("utf-8"), re.MULTILINE)
    if "--against" not in line  # `test_skill.py` runs the gate, on what a search found
]


def test_there_are_commands() -> None:
    assert {page for page, _ in COMMANDS} >= {"no-gpu.md", "rent.md", "ci.md", "fine-tune.md"}


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_command_answers(page: str, line: str, tmp_path: Path) -> None:
    # With a finding, which every form of output shows.
    (tmp_path / "ds_config.json").write_text('{"train_micro_batch_size_per_gpu": 2, "zero": 1}\n')
    (tmp_path / "job.yaml").write_text(files()["job.yaml"])
    for name, content in FILES.findall((HOW_TO / page).read_text("utf-8")):
        (tmp_path / name).write_text(content)
    # What is searched in full is searched by other tests.
    flags = ("--dry-run",) if line.startswith("search ") else ()
    done = autotune(*shlex.split(line), *flags, folder=tmp_path)
    assert done.returncode == 0, f"{page}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert done.stdout
