"""Every command in the README, and in the page about the result, runs in its order."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.engines.deepspeed.extensions import environment as extensions_environment
from tests.captured import captured
from tests.command_line import autotune
from tests.hasty import HASTY

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
RESULT = (REPOSITORY / "docs" / "result.md").read_text(encoding="utf-8")

# The demo as it stands takes minutes: here it gets one trial and 20 s. The environment is the
# one that runs this test, so that nothing is installed.
DEMO = (
    "make demo SEARCH='--space smoke --trials 1 --budget 20s --compare best' -o .venv/.installed"
)
ACTIVATE = f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH\n"


def commands(*pages: str) -> list[str]:
    """The lines of the blocks of pages, each once."""
    blocks = re.findall(r"^```sh\n(.*?)^```", "".join(pages), flags=re.MULTILINE | re.DOTALL)
    return list(dict.fromkeys(line for block in blocks for line in block.splitlines() if line))


def test_the_first_commands_are_the_main_job_and_its_tests() -> None:
    assert commands(README)[:2] == ["make demo", "make test"]


def test_no_command_depends_on_how_many_studies_there_are() -> None:
    assert not [command for command in commands(README, RESULT) if "*" in command]


def test_the_first_screen_is_one_sentence_one_command_one_table() -> None:
    assert len(README.splitlines()) <= 112  # a screen and a half beside the demo's table
    screen = README.splitlines()[:45]
    assert any("samples/s" in line and "trial" in line for line in screen)
    assert sum(line.startswith("```sh") for line in screen) == 1


def test_the_result_tells_a_model_s_study_from_that_of_your_own_command() -> None:
    assert "launch.sh --steps 3" in RESULT
    assert "`--max_steps 3`" in RESULT, "no script of Trainer's knows --steps"
    (row,) = (line for line in RESULT.splitlines() if line.startswith("| `best/` |"))
    assert "For a model, a training script" in row
    assert "for your own command" in row


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", README)
    assert [link for link in links if not (REPOSITORY / link).exists()] == []


@pytest.mark.real
def test_every_command_runs(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    # Not a link to the whole environment: compiled extensions belong to the path of their torch.
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").write_text(ACTIVATE)
    # The demo's trials are short ones: how long they measure, the README does not say.
    (tmp_path / ".venv" / "bin" / "python").write_text(
        f'#!/bin/sh\n[ "$1 $2" = "-m autotune" ] && shift 2 && set -- -P "{HASTY}" "$@"\n'
        f'exec {sys.executable} "$@"\n'
    )
    (tmp_path / ".venv" / "bin" / "python").chmod(0o755)
    for command in commands(README, RESULT):
        if command == "make test":
            continue  # this is one of its tests
        # Without a start of Python for each; one shows that the install makes the program.
        if command.startswith("autotune ") and command != "autotune doctor":
            ran = autotune(*shlex.split(command)[1:], folder=tmp_path)
            assert ran.returncode == 0, f"{command}\n{ran.stdout[-2000:]}\n{ran.stderr[-4000:]}"
            continue
        # What is launched without autotune would compile for minutes, and a compiler that a time
        # limit ends leaves a lock that every later start waits on: it gets what is built already.
        lent = extensions_environment("cpu") if "launch.sh" in command else {}
        done = captured(
            ["bash", "-c", f". .venv/bin/activate; {DEMO if command == 'make demo' else command}"],
            cwd=tmp_path,
            env={**os.environ, **lent},
            stdin=subprocess.DEVNULL,
            timeout=400,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    for file in ("ds_config.json", "launch.sh", "README.md"):
        assert (tmp_path / "tuned" / file).is_file()
    assert (tmp_path / "chosen" / "ds_config.json").is_file()
