"""What `check` prints: worst first, whole words, a diff to copy; and its forms for programs."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from autotune.base.errors import RenderError
from autotune.check.run import CheckRun, Unread
from autotune.engines.deepspeed.sources.consumers import Consumer
from autotune.report.check.text import print_check, print_run
from autotune.report.check.tools import github_lines, sarif_log
from tests.check.files import AUTO, checked, write
from tests.engines.deepspeed.rules.cases import NEWEST
from tests.report import told

BROKEN: dict[str, Any] = {
    "gradient_cliping": 1.0,
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 2, "overlap_com": True, "offload_param": {"device": "cpu"}},
}


def printed(report, width=80, *, fixed=False, terminal=False):
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None)
    print_check(console, report, fixed=fixed)
    return out.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("width", [80, 160])
def test_no_line_is_too_long_and_no_word_is_cut(tmp_path, monkeypatch, width, terminal):
    monkeypatch.chdir(tmp_path)
    report = checked(write(Path(), BROKEN))
    text = printed(report, width, terminal=terminal)
    assert max(map(len, text.splitlines())) <= width
    words = text.split()
    for found in report.found:
        assert set(found.violation.message.split()) <= set(words)


def test_the_worst_comes_first_and_the_last_line_counts(tmp_path):
    lines = printed(checked(write(tmp_path, BROKEN))).splitlines()
    heads = [line.split("  ")[:2] for line in lines if "ds_config.json:" in line[:-1]]
    said = [(head[0].rpartition("/")[2], head[1]) for head in heads if len(head) == 2]
    assert said == [
        ("ds_config.json:6:5", "error"),
        ("ds_config.json:2:3", "warning"),
        ("ds_config.json:7:5", "warning"),
    ]
    assert lines[-1] == "1 error, 2 warnings: it would not run"


def test_the_last_line_tells_what_is_fixed_from_what_is_left(tmp_path):
    def last(config):
        return printed(checked(write(tmp_path, config)), fixed=True).splitlines()[-1]

    one = {"train_micro_batch_size_per_gpu": 1, "gradient_cliping": 1.0}
    assert last(one) == "1 fixed, nothing left: it would run"
    left = "2 fixed; 1 warning left: it would run"
    assert last(BROKEN) == left, "a section is not taken away unasked"
    open_question = one | {"zero_optimization": {"stage": "two"}}
    assert last(open_question) == "1 error, 1 warning: it would not run"


@pytest.mark.parametrize(
    ("version", "is_said"), [("99.0.0", True), (f"{NEWEST}+cpu", False), ("0.18.9", False)]
)
def test_a_release_that_the_rules_do_not_know_is_said(tmp_path, version, is_said):
    report = checked(write(tmp_path, AUTO), version=version)
    said = f"DeepSpeed {version} is newer than {NEWEST}"
    assert (said in printed(report, 300)) is is_said
    assert report.to_dict(fixed=False)["version_note"].startswith(said) is is_said


def test_a_pipe_gets_the_diff_as_it_is(tmp_path):
    ones = ", ".join("1" * 99)
    text = f'{{"train_batch_size": "1", "not_known": [{ones}]}}'
    report = checked(write(tmp_path, text))
    assert f"\n-{text}\n" in report.diff
    assert f"\n{report.diff}" in printed(report)


@pytest.mark.parametrize("terminal", [False, True])
def test_what_would_steer_a_terminal_is_escaped(tmp_path, terminal):
    text = (
        '{"train_micro_batch_size_per_gpu": 1, '
        '"a\\u001b[2J\\u0007": 1, "b\\ud800": 1, "c\x9b\u202e": 1}'
    )
    out = printed(checked(write(tmp_path, text)), terminal=terminal)
    findings = out.partition("the fix (")[0]
    assert "a\\x1b[2J\\x07" in findings
    assert "b\\ud800" in findings
    assert "c\\x9b\\u202e" in findings
    seen = out if terminal else findings  # a pipe gets the diff as it is
    assert all(c.isprintable() or c == "\n" for c in seen)
    assert out.encode("utf-8")


def test_a_clean_file_and_what_is_known_later(tmp_path):
    text = printed(checked(write(tmp_path, AUTO)), 300)
    assert 'known at run time only ("auto"): bf16.enabled, gradient_accumulation_steps' in text
    assert text.splitlines()[-1] == "nothing found: it would run"


def test_a_file_that_is_not_edited_says_why(tmp_path):
    twice = '{"train_batch_size": 1, "fp16": {}, "fp16": {}, "gradient_cliping": 1.0}'
    report = checked(write(tmp_path, twice), consumer=Consumer.TRAINER)
    assert "no diff: a key stands there twice" in printed(report, fixed=True)


def _run(*reports, **more):
    form = {"fixed": False, "quiet": False, "strict": False} | more
    return told.printed(
        print_run, CheckRun(reports=reports, others=[Path("package.json")]), **form
    )


def test_several_files_end_with_a_line_over_all(tmp_path):
    clean = checked(write(tmp_path, {"train_micro_batch_size_per_gpu": 1}))
    broken = checked(write(tmp_path, BROKEN))
    warned = checked(
        write(tmp_path, {"train_micro_batch_size_per_gpu": 1, "gradient_cliping": 1.0})
    )
    last = " ".join(_run(clean, broken, warned).rpartition("\n\n")[2].split())
    assert last == (
        "3 configurations checked (1 more file holds no DeepSpeed configuration): "
        "1 would not run; 1 has warnings"
    )
    open_ = checked(write(tmp_path, {"train_batch_size": 8}))
    assert " ".join(_run(open_, clean).split()).endswith(": 1 not judged in full")
    assert "1 has warnings, which fail here" in " ".join(_run(warned, strict=True).split())
    quiet = _run(clean, broken, warned, quiet=True)
    assert "schema.unknown_key" in quiet
    assert "warning" not in quiet
    assert not _run(clean, warned, quiet=True)


def test_what_is_ignored_is_counted_and_fails_nothing(tmp_path):
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_cliping": 1.0}
    config |= {"_autotune_ignore": ["schema.*"]}
    report = checked(write(tmp_path, config))
    assert report.found == ()
    assert printed(report).splitlines()[-1] == (
        "nothing found (1 more ignored, as you asked): it would run"
    )


def test_choices_are_printed_with_the_flag_that_takes_them(tmp_path):
    section = "deepspeed_config: {zero_stage: 1, offload_param_device: cpu}"
    yaml = f"distributed_type: DEEPSPEED\n{section}\n"
    text = printed(checked(write(tmp_path, yaml, "accelerate.yaml")), fixed=True)
    assert "--choose offload.param_needs_stage_3=1  remove offload_param_device\n" in text
    assert text.splitlines()[-1] == "1 warning: it would run"


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
