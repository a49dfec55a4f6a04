"""Rows of knobs: where they act, by terms, and what completes a row."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.job.model import load_model
from autotune.space.knob import Context, Knob, Knobs
from autotune.space.knob_rows import read_knobs

CONTEXT = Context(
    model=load_model("gpt2").shape, world=8, global_batch=8, precision="bf16", accelerator="cuda"
)
FORMATS = ("none", "e4m3", "hybrid")
VALUES = {"pp": 2, "tp": 4, "etp": 4, "fp8": "hybrid", "kind": "full", "is_on": True}


def _is_even(values: Knobs, _: Context) -> bool:
    return int(values["tp"]) % 2 == 0


def read(tmp_path: Path, **row: object) -> Knob:
    rows = {
        **{name: {"default": 1, "help": ""} for name in ("pp", "tp", "etp", "cp")},
        "fp8": {"choices": "FORMATS", "needs_cuda": True, "help": ""},
        "kind": {"choices": ["none", "full"], "help": ""},
        "is_on": {"default": False, "help": ""},
        "asked": {"default": 0, "help": "", **row},
    }
    (tmp_path / "knobs.json").write_text(json.dumps(rows))
    return read_knobs(tmp_path / "knobs.json", Knob, sys.modules[__name__])["asked"]


@pytest.mark.cases("acts", "expected")
def test_where_a_knob_acts(tmp_path: Path, acts: str, expected: bool) -> None:
    assert read(tmp_path, acts=acts).is_active({**VALUES, "asked": 1}, CONTEXT) is expected


def test_a_number_saturates_at_a_fact(tmp_path: Path) -> None:
    knob = read(tmp_path, at_most="world")
    assert [knob.fold(value, VALUES, replace(CONTEXT, world=4)) for value in (3, 9)] == [3, 4]


def test_a_row_is_completed_from_its_choices(tmp_path: Path) -> None:
    knob = read(tmp_path, default="none", choices="FORMATS", needs_cuda=True, joins_choices=True)
    assert (knob.choices, knob.needs_cuda) == (FORMATS, FORMATS[1:])
    assert knob.check("e4m3+hybrid", where="here") == "e4m3+hybrid"
