import csv
import io
import math
import re

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.base.text import (
    bounded,
    cell,
    csv_text,
    lines,
    markdown,
    markdown_code,
    named,
    shortened,
    texts_on_one_line,
    visible,
)
from tests.cases import data_beside

DATA = data_beside(__file__)

ACTING = DATA["ACTING"]


@pytest.mark.parametrize("text", ACTING.values(), ids=ACTING)
def test_what_acts_is_shown_as_its_escape(text):
    line = visible(f"a{text}b")
    assert line.startswith("a\\")
    assert line.endswith("b")
    assert line.isprintable()
    assert lines(f"a{text}b") == line
    assert texts_on_one_line({f"a{text}b": [f"a{text}b", 1]}) == {line: [line, 1]}
    for there in (markdown(text), markdown_code(text), str(cell(f"a{text}b"))):
        assert all(c.isprintable() for c in there)


@pytest.mark.parametrize("text", ["plain", "é", "日本語", "+1.5 GiB", "│ 5 µs — 😀", "a b"])
def test_what_only_shows_itself_stays(text):
    assert visible(text) == lines(text) == text


def test_lines_and_tabs_stay_only_where_there_may_be_several():
    assert lines("a\n\tb") == "a\n\tb"
    assert visible("a\n\tb") == "a\\n\\tb"


@given(st.text())
def test_nothing_is_lost_and_a_second_time_changes_nothing(text):
    line = visible(text)
    assert visible(line) == line
    assert line.encode("utf-8").decode("utf-8").isprintable()
    assert len(line) >= len(text)


@pytest.mark.parametrize(
    "text",
    ["**bold**", "[link](http://x)", "<img src=x>", "a|b", "# head\n# head", "~~x~~", "`x`"],
)
def test_markdown_of_others_is_text(text):
    line = markdown(text)
    assert "\n" not in line
    bare = line.replace("\\\\", "")
    for mark in "*_[]<>|#`~":
        assert bare.count(mark) == bare.count(f"\\{mark}")


@pytest.mark.parametrize(
    "text", ["see https://evil.example/x", "WWW.evil.example", "&lt;img&gt;", "$\\ce{x}$"]
)
def test_markdown_of_others_is_no_link_no_formula_and_no_letter_by_number(text):
    line = markdown(text)
    assert re.search(r"(?<!\\)[$&]|https?:|www\.", line, re.IGNORECASE) is None


FORMULAS = DATA["FORMULAS"]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_cell_that_a_spreadsheet_would_run_is_text(text):
    assert cell(text).startswith("'")


@pytest.mark.parametrize("text", ["a;=1+1", "a;-2", "a\t@SUM(A1)", "a\n=1", "a; +1"])
def test_a_cell_that_another_separator_ends_holds_no_formula(text):
    """Where the comma is the decimal point, a semicolon ends a cell."""
    assert re.search(r"[;\t\n]\s*[=+@-]", cell(text)) is None
    assert cell(text).replace("'", "") == text


@pytest.mark.parametrize(
    "value", [-3, -3.5, "-3", "+3.5e-7", "-inf", None, True, "a=b", "x@y", ""]
)
def test_numbers_and_other_texts_stay_in_their_cells(value):
    assert cell(value) == value


def test_a_table_as_csv_holds_no_formula_and_keeps_its_numbers():
    frame = pd.DataFrame(
        {"n": [-3, 4], "x": [-0.5, math.nan], "=name": ["=1+1", None], "flag": [True, False]}
    )
    text = csv_text(frame)
    rows = list(csv.reader(io.StringIO(text)))
    assert rows == [
        ["n", "x", "'=name", "flag"],
        ["-3", "-0.5", "'=1+1", "True"],
        ["4", "", "", "False"],
    ]
    assert list(frame.columns) == ["n", "x", "=name", "flag"]


def test_lists_in_messages_end():
    assert named(["a", "b"]) == "a, b"
    assert named([str(n) for n in range(80_000)], most=2) == "0, 1, 79,998 more"
    assert len(named("x" * 10_000 for _ in range(80_000))) < 10_000
    assert shortened("x" * 300).endswith("... (300 characters)")
    assert bounded("short") == "short"
    assert len(bounded("x" * 10**6)) < 9_000
