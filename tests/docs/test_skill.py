"""The skill file is followed command by command, and each answer has the keys that it shows."""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.base.errors import ExitCode
from tests.command_line import autotune
from tests.hasty import BUDGET_ENV

PATH = Path(__file__).resolve().parents[2] / "skills" / "autotune" / "SKILL.md"
TEXT = PATH.read_text(encoding="utf-8")
GATES = (PATH.parents[2] / "docs" / "how-to" / "ci.md").read_text(encoding="utf-8")

SHORTER = {
    "--budget 20m": "--budget 10s --trials 1 --space smoke --compare best",
    "--minutes 30": "--minutes 0.02",  # the steps that a soak takes at the least
    "doctor": "doctor --no-measure",  # that of the README measures
}
"""What takes long in a command -> what is typed here."""


MAY_BE_NULL = re.findall(r"`(\w+)`", TEXT.partition("May be null:")[2].partition("\n")[0])


@dataclass(frozen=True)
class Step:
    """A command of the file."""

    command: str
    exit_code: int
    promised: Any
    """Its JSON, as the file shows it."""


def steps() -> list[Step]:
    found = []
    pattern = r"^```sh\nautotune (.+?)(?: +# exit (\d+))?\n```\n\n```json\n(.*?)^```"
    for command, code, promised in re.findall(pattern, TEXT, re.MULTILINE | re.DOTALL):
        found.append(Step(command, int(code or 0), json.loads(promised)))
    return found


def files() -> dict[str, str]:
    pattern = r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```"
    return dict(re.findall(pattern, TEXT, re.MULTILINE | re.DOTALL))


def follow(wanted: list[Step], folder: Path, **variables: str) -> list[Any]:
    """Type commands in a folder with the files of the skill; their answers."""
    answers = []
    for name, content in files().items():
        (folder / name).write_text(content, encoding="utf-8")
    for step in wanted:
        command = step.command
        for long, short in SHORTER.items():
            command = command.replace(long, short)
        done = autotune(*shlex.split(command), folder=folder, **variables)
        assert done.returncode == step.exit_code, f"{command}\n{done.stderr[-4000:]}"
        answers.append(json.loads(done.stdout))
        assert differences(step.promised, answers[-1]) == [], command
    return answers


def differences(promised: Any, answer: Any, where: str = "") -> list[str]:
    """Where an answer lacks a key that the file shows, or has a value of another type."""
    if isinstance(promised, dict) and isinstance(answer, dict):
        lost = [f"{where}.{key} is not there" for key in promised if key not in answer]
        return lost + [
            line
            for key in promised
            if key in answer
            for line in differences(promised[key], answer[key], f"{where}.{key}")
        ]
    if isinstance(promised, list) and isinstance(answer, list):
        if promised and not answer:
            return [f"{where} is empty"]
        pairs = [(shown, item) for shown in promised[:1] for item in answer]
        return [line for pair in pairs for line in differences(*pair, f"{where}[]")]
    is_null = answer is None and where.rpartition(".")[2] in MAY_BE_NULL
    if is_null or _kind(promised) == _kind(answer):
        return []
    return [f"{where} is {answer!r}, not of the type of {promised!r}"]


def _kind(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return "number" if is_number else type(value).__name__


NEEDS_DEVICES = [step for step in steps() if "--study first" in step.command]


def test_it_is_a_skill() -> None:
    """The fields and lengths of agentskills.io/specification."""
    _, head, body = TEXT.split("---\n", 2)
    about = yaml.safe_load(head)
    assert about["name"] == PATH.parent.name
    assert len(about["description"]) <= 1024
    assert len(about["compatibility"]) <= 500
    assert len(TEXT.splitlines()) < 200
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", body, re.MULTILINE)]
    assert codes == sorted(code.value for code in ExitCode)


def test_every_command_shows_its_answer() -> None:
    assert len(steps()) == TEXT.count("```sh\n")
    names = [step.command.split()[0] for step in steps()]
    order = ["doctor", "check", "plan", "search", "search", "search", "report", "report"]
    assert names == [*order, "export", "soak"]


def test_a_key_that_is_not_there_is_seen() -> None:
    promised = {"level": "ok", "findings": [{"fix": ""}]}
    assert differences(promised, {"level": "ok", "findings": [{"fix": "x", "more": 1}]}) == []
    assert differences(promised, {"level": "ok", "findings": [{}]}) == [
        ".findings[].fix is not there"
    ]
    assert differences(promised, {"level": 1, "findings": []}) == [
        ".level is 1, not of the type of 'ok'",
        ".findings is empty",
    ]
    assert differences({"price": 1.5}, {"price": None}) == []
    assert differences({"trial": 1}, {"trial": None}) != []


def test_what_needs_no_device_answers_as_shown(tmp_path: Path) -> None:
    follow([step for step in steps() if step not in NEEDS_DEVICES], tmp_path)


HASTY = {BUDGET_ENV: "1"}


@pytest.mark.real
def test_what_needs_devices_answers_as_shown(tmp_path: Path) -> None:
    answers = follow(NEEDS_DEVICES, tmp_path, **HASTY)
    assert answers[-1]["checkpoint"]["loss_deviation"] < 1e-4, "its checkpoint goes on"


@pytest.mark.thorough
@pytest.mark.real
def test_the_gate_of_ci_runs(tmp_path: Path) -> None:
    """As the page about CI writes it; its rounds are those of a final comparison."""
    searches = [step for step in NEEDS_DEVICES if "--budget" in step.command]
    (searched,) = follow(searches, tmp_path, **HASTY)
    (tmp_path / "best.json").write_text(json.dumps(searched))
    of_file, of_study = re.findall(r"^autotune (compare --against .+)$", GATES, re.MULTILINE)
    # How much a machine of tests varies is not what this asks.
    line = of_file.replace("5%", "60% --rounds 3 --json")
    done = autotune(*shlex.split(line), folder=tmp_path, **HASTY)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found = json.loads(done.stdout)
    assert (found["verdict"], found["differences"]) == ("within", {})
    assert found["now"]["n_runs"] >= 3
    state = tmp_path / "results" / "first" / "study.json"
    facts = json.loads(state.read_text())
    facts["environments"][0]["device_name"] = "another device"
    state.write_text(json.dumps(facts))
    line = of_study.replace("nightly", "first")
    done = autotune(*shlex.split(line), folder=tmp_path, **HASTY)
    assert done.returncode == 2, f"{done.stdout}\n{done.stderr}"
    assert "was measured on another device (cpu), and here is" in " ".join(done.stderr.split())
