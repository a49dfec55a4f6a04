"""A table of measured runs: what is blank is unknown, and what is wrong is named."""

from pathlib import Path

import pytest

from autotune.base.errors import JobError
from autotune.contract import Outcome
from autotune.replay.groups import group_rows
from autotune.replay.rows import read_rows
from tests.replay.tables import row, write


def test_cells_are_read_as_numbers_only_where_they_are_asked_for(tmp_path: Path) -> None:
    table = write(tmp_path / "runs.csv", [row(tp="2.0", vocab="50k", peak_mem_gb=10.5)])
    (read,) = read_rows(table)
    assert read.count("tp") == 2
    assert read.text("vocab") == "50k"
    assert read.count("gpu_mem_gb") == 80
    assert read.peak_memory_bytes == 10_500_000_000
    assert read.where == "runs.csv:2"


def test_a_peak_in_gib_is_larger(tmp_path: Path) -> None:
    table = write(tmp_path / "runs.csv", [row(peak_mem_gb=1, peak_mem_unit="GiB (reserved)")])
    assert read_rows(table)[0].peak_memory_bytes == 2**30


def test_what_is_blank_is_unknown(tmp_path: Path) -> None:
    (read,) = read_rows(write(tmp_path / "runs.csv", [row(tp="", step_time_s="", status="")]))
    assert read.count("tp") is None
    assert read.step_time_s is None
    assert read.outcome is None
    assert read.peak_memory_bytes is None


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        *(("ok", Outcome.OK), ("OK", Outcome.OK), ("OOM", Outcome.OOM), ("oom", Outcome.OOM)),
        *(("OOM_or_failed", Outcome.OOM), ("formula", None), ("ok_analytic", None)),
    ],
)
def test_what_a_run_came_to(tmp_path: Path, status: str, outcome: Outcome | None) -> None:
    (read,) = read_rows(write(tmp_path / "runs.csv", [row(status=status)]))
    assert read.outcome is outcome


def test_a_word_for_what_a_run_came_to_that_is_not_known_is_refused(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path / "runs.csv", [row(), row(status="crashed")]))
    with pytest.raises(JobError) as error:
        group_rows(rows)
    assert error.value.message == "runs.csv:3: status: 'crashed' is not known"
    assert "use ok, oom, oom_or_failed, formula, ok_analytic" in error.value.hint


@pytest.mark.cases("column", "value", "complaint")
def test_a_cell_that_is_no_number_is_named(tmp_path, column, value, complaint) -> None:
    (read,) = read_rows(write(tmp_path / "runs.csv", [row(**{column: value})]))
    with pytest.raises(JobError) as error:
        read.count(column)
    assert error.value.message == complaint


@pytest.mark.cases("column", "value", "complaint")
def test_what_cannot_have_been_measured_is_refused_before_a_search(
    tmp_path: Path, column: str, value: str, complaint: str
) -> None:
    rows = read_rows(write(tmp_path / "runs.csv", [row(), row(**{column: value})]))
    with pytest.raises(JobError) as error:
        group_rows(rows)
    assert error.value.message == f"runs.csv:3: {column}={value!r} is not {complaint}"


def test_what_does_not_count_may_say_anything(tmp_path: Path) -> None:
    table = write(tmp_path / "runs.csv", [row(), row(status="formula", peak_mem_gb=-1)])
    assert len(group_rows(read_rows(table))) == 1


def test_a_table_without_the_columns_says_which(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text("tp,pp\n1,2\n", encoding="utf-8")
    with pytest.raises(JobError, match="has no column n_layers, hidden, n_heads, seq_len"):
        read_rows(table)
