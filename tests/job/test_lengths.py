"""The lengths of a job: every form is read, and what is wrong is said with its place."""

import itertools
import statistics
from pathlib import Path
from typing import Any

import pytest

from autotune.base.errors import JobError
from autotune.job.job import make_job, read_job_file
from autotune.job.lengths import FIXED, Lengths, parse_lengths

SOUND: dict[str, Any] = {"model": "tiny-gpt2", "seq_len": 64, "global_batch": 8, "world": 2}


def complaint(lengths: Any, **changes: Any) -> JobError:
    with pytest.raises(JobError) as caught:
        make_job({**SOUND, "lengths": lengths, **changes}, where="job.yaml")
    return caught.value


def test_the_forms() -> None:
    assert parse_lengths("fixed") == FIXED
    assert parse_lengths("packed").as_spec() == {"kind": "packed"}
    found = parse_lengths({"histogram": {32: 3, 8: 1}, "pad_to_multiple": 8})
    assert found.as_spec() == {
        "kind": "histogram",
        "histogram": [[8, 1.0], [32, 3.0]],
        "pad_to_multiple": 8,
    }
    assert parse_lengths(found.as_yaml()) == found
    assert FIXED.as_spec() == {}


def test_a_csv_file_is_relative_to_the_job(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("length,count\n32,10\n8,5\n32,5\n\n")
    (tmp_path / "job.yaml").write_text("lengths: lengths.csv\n")
    (tmp_path / "inline.yaml").write_text("lengths: {histogram: lengths.csv}\n")
    for name in ("job.yaml", "inline.yaml"):
        found = parse_lengths(read_job_file(tmp_path / name)["lengths"])
        assert found.histogram == ((8, 5.0), (32, 15.0))


@pytest.mark.cases("lengths", "says")
def test_what_is_wrong_is_said_with_its_place(lengths: Any, says: str) -> None:
    error = complaint(lengths)
    assert error.message.startswith("job.yaml: lengths")
    assert says in error.message
    assert error.hint


def test_a_bad_line_of_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_bytes(b"8,\xb6\n")
    assert "lengths.csv: is no text: byte 3 is not UTF-8" in complaint(str(path)).message
    for text, says in (
        ("8,1\n16;2\n", "line 2: '16;2' is not length,count"),
        ("8,1\n16,2,3\n", "line 2"),
        ("128.0,9000\n256,10\n", "line 1: '128.0,9000' is not length,count"),
        ("128;9000\n256,10\n", "line 1: '128;9000' is not length,count"),
        ("length,count\n", "holds no lengths"),
        ("8,-1\n", "8: -1.0 is not a weight"),
    ):
        path.write_text(text)
        error = complaint(str(path))
        assert str(path) in error.message
        assert says in error.message


def test_the_lengths_are_part_of_what_a_study_is() -> None:
    names = {
        make_job({**SOUND, **change}, where="x").study
        for change in (
            {},
            {"lengths": "packed"},
            {"lengths": {"histogram": {8: 1, 32: 1}}},
            {"lengths": {"histogram": {8: 1, 32: 2}}},
        )
    }
    assert len(names) == 4
    assert make_job({**SOUND, "lengths": "fixed"}, where="x").study in names


def test_a_description_says_what_a_batch_cannot_show() -> None:
    lengths = Lengths(kind="histogram", histogram=((8, 0.9), (16, 0.09), (64, 0.01)))
    assert lengths.describe(10) == (
        "3 lengths from 8 to 64 tokens, mean 9, in a batch of 10 9; too rare for it: 64"
    )
    assert "too rare" not in lengths.describe(100)
    assert FIXED.describe(8) == ""


def test_the_mean_padded_length_is_that_of_all_micro_batches() -> None:
    lengths = Lengths(
        kind="histogram", histogram=((5, 3.0), (9, 2.0), (16, 1.0)), pad_to_multiple=4
    )
    drawn = [5, 5, 5, 9, 9, 16]
    for size in (1, 2, 3, 6):
        padded = [-(-max(each) // 4) * 4 for each in itertools.combinations(drawn, size)]
        assert lengths.mean_padded(6, size) == pytest.approx(statistics.fmean(padded))
    assert lengths.longest_padded == 16
    assert lengths.mean_tokens(6, 32) == pytest.approx(statistics.fmean(drawn))
    assert FIXED.mean_tokens(6, 32) == 32
