"""A table of measured runs: what is blank is unknown, and what is wrong is named."""

from pathlib import Path

import pytest

from autotune.contract import Outcome
from autotune.errors import JobError
from autotune.replay.rows import read_rows
from tests.replay.tables import row, write


def test_cells_are_read_as_numbers_only_where_they_are_asked_for(tmp_path: Path) -> None:
    table = write(tmp_path / "runs.csv", [row(tp="2.0", vocab="50k", peak_mem_gb=10.5)])
    (read,) = read_rows(table)
    assert read.count("tp") == 2
    assert read.text("vocab") == "50k"
    assert read.number("gpu_mem_gb") == 80
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
    [("ok", Outcome.OK), ("OOM", Outcome.OOM), ("OOM_or_failed", Outcome.OOM), ("formula", None)],
)
def test_what_a_run_came_to(tmp_path: Path, status: str, outcome: Outcome | None) -> None:
    (read,) = read_rows(write(tmp_path / "runs.csv", [row(status=status)]))
    assert read.outcome is outcome


@pytest.mark.parametrize(
    ("column", "value", "complaint"),
    [
        ("tp", "two", "runs.csv:2: tp: 'two' is no number"),
        ("tp", "1.5", "runs.csv:2: tp: '1.5' is no whole number of at least 1"),
        ("tp", "0", "runs.csv:2: tp: '0' is no whole number of at least 1"),
        ("tp", "inf", "runs.csv:2: tp: 'inf' is no number"),
    ],
)
def test_a_cell_that_is_no_number_is_named(
    tmp_path: Path, column: str, value: str, complaint: str
) -> None:
    (read,) = read_rows(write(tmp_path / "runs.csv", [row(**{column: value})]))
    with pytest.raises(JobError) as error:
        read.count(column)
    assert error.value.message == complaint


def test_a_time_is_above_zero(tmp_path: Path) -> None:
    (read,) = read_rows(write(tmp_path / "runs.csv", [row(step_time_s="-1")]))
    with pytest.raises(JobError, match="step_time_s: -1 is not above 0"):
        _ = read.step_time_s


def test_a_table_without_the_columns_says_which(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text("tp,pp\n1,2\n", encoding="utf-8")
    with pytest.raises(JobError, match="has no column n_layers, hidden, seq_len"):
        read_rows(table)
