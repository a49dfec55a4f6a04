"""Findings for other tools: workflow commands of GitHub, and SARIF."""

import json
from pathlib import Path

import pytest

from autotune.base.errors import RenderError
from autotune.check.run import CheckRun, Unread
from autotune.report.check.tools import github_lines, sarif_log
from tests.check.files import checked, write

TEXT = """\
{
  "train_micro_batch_size_per_gpu": 1,
  "zero_optimization": {
    "stage": 2,
    "overlap_com": true
  },
  "wandb": {"enabled": true, "api_key": "hush"}
}
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = checked(write(Path(), TEXT, "100%, a:b.json"))
    gone = Unread(
        path=Path("gone.json"), error=RenderError("gone.json: cannot be read", "name it")
    )
    return CheckRun(reports=[report], unread=[gone])


def test_a_command_of_github_names_the_place_and_escapes(run):
    lines = list(github_lines(run))
    first = next(line for line in lines if "schema.unknown_key" in line)
    head = "::error file=100%25%2C a%3Ab.json,line=5,col=5,title=schema.unknown_key::"
    assert first.startswith(head)
    assert "overlap_comm" in first
    assert "%0Afix: " in first
    assert lines[-1].startswith("::error file=gone.json,line=1,title=cannot be read::")
    assert all("\n" not in line for line in lines)
    assert "hush" not in "".join(lines)


def test_sarif_names_rules_places_and_levels(run):
    log = sarif_log(run)
    assert log["version"] == "2.1.0"
    (told,) = log["runs"]
    rules = [rule["id"] for rule in told["tool"]["driver"]["rules"]]
    for result in told["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        assert result["message"]["text"]
    wrong = next(one for one in told["results"] if one["ruleId"] == "schema.unknown_key")
    place = wrong["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "100%25%2C%20a%3Ab.json"
    assert place["region"] == {"startLine": 5, "startColumn": 5}
    assert "hush" not in json.dumps(log)


def test_what_is_no_character_is_printed_as_its_escape(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = '{"train_micro_batch_size_per_gpu": 8, "\\ud800": 3}'
    report = checked(write(Path(), text, "plain.json"))
    (line,) = github_lines(CheckRun(reports=[report]))
    assert "\\ud800 is not a key" in line.encode().decode()


def test_what_is_not_judged_stands_in_every_format(tmp_path):
    report = checked(write(tmp_path, {"train_batch_size": 8}, "open.json"))
    run = CheckRun(reports=[report])
    (told,) = report.to_dict(fixed=False)["not_judged"]
    (line,) = github_lines(run)
    assert line.startswith("::notice file=")
    log = sarif_log(run)["runs"][0]
    (result,) = log["results"]
    assert log["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "file.not_judged"
    assert result["level"] == "note"
    assert all(told["what"] in text for text in (line, result["message"]["text"]))


def test_a_file_whose_name_is_no_text_has_an_address_in_sarif():
    error = RenderError("cannot be read", "name it")
    gone = CheckRun(reports=[], unread=[Unread(path=Path("x\udcff.json"), error=error)])
    (result,) = sarif_log(gone)["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place == {"uri": "x%FF.json"}


def test_what_steers_a_terminal_is_escaped_in_a_command_of_github(tmp_path):
    text = '{"train_batch_size": 2, "a\\u001b[31mb": 1}'
    lines = list(github_lines(CheckRun(reports=[checked(write(tmp_path, text))])))
    assert any(r"a\x1b[31mb" in line for line in lines)
    assert not any("\x1b" in line for line in lines)
