"""Figures of forecasts that pages tell are those of the commands beside them."""

import csv
import json
import re
import shlex

import pytest

from tests.command_line import autotune
from tests.docs.test_pages import FILES, HOW_TO


def rows(text, columns):
    """Cells of the rows of tables with so many columns."""
    found = re.findall(r"^\| (.*) \|$", text, re.MULTILINE)
    return [cells for line in found if len(cells := line.split(" | ")) == columns]


def numbers(cells):
    return [float(number) for number in re.findall(r"[\d.]+", " ".join(cells))]


def test_the_table_of_adapters_is_what_estimate_writes(tmp_path):
    text = (HOW_TO / "fine-tune.md").read_text("utf-8")
    for name, content in FILES.findall(text):
        (tmp_path / name).write_text(content)
    (command,) = re.findall(r"^autotune (estimate --rows .*)$", text, re.MULTILINE)
    assert autotune(*shlex.split(command), folder=tmp_path).returncode == 0
    figures = ("step_time", "step_time_low", "step_time_high")
    names = [f"pred_{name}_s" for name in figures]
    names += [f"pred_peak_memory{end}_gb" for end in ("", "_low", "_high")]
    with (tmp_path / "predicted.csv").open(encoding="utf-8") as file:
        predicted = list(csv.DictReader(file))
    told = [row for row in rows(text, 6) if row[-1].endswith("%")]
    assert len(told) == len(predicted) == 3
    for row, answer in zip(told, predicted, strict=True):
        assert row[0].lower() == answer["name"]
        expected = [float(answer[name]) for name in names]
        expected.append(100 * float(answer["pred_fit_probability"]))
        assert numbers(row[1:]) == pytest.approx(expected, rel=0.01)


def test_the_table_of_recomputation_is_what_estimate_predicts(tmp_path):
    text = (HOW_TO.parent / "megatron.md").read_text("utf-8")
    (command,) = re.findall(r"^\| `autotune explain (.*)` with \|", text, re.MULTILINE)
    told = [row for row in rows(text, 3) if row[1].endswith(" GiB") and row[2].endswith(" s")]
    assert len(told) == 5
    flags, settings = command.split(" tp=2 ")
    for row in told:
        more = row[0].split("`")[1] if "`" in row[0] else ""
        chosen = [f"--set={one}" for one in f"tp=2 {settings} {more}".split()]
        done = autotune("estimate", *flags.split(), *chosen, "--json", folder=tmp_path)
        found = json.loads(done.stdout)
        expected = [found["pred_peak_memory_bytes"] / 2**30, found["pred_step_time_s"]]
        assert numbers(row[1:]) == pytest.approx(expected, rel=0.01)
