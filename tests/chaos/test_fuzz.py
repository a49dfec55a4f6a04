"""The short form of the fuzzing, and that it can fail."""

import functools
import re
import sys
from pathlib import Path

import pytest

from autotune.job import model
from tests.captured import captured
from tests.chaos import fuzz
from tests.chaos.mutations import NO_FILES, dump_json, mutate
from tests.chaos.readers import Reader, make_readers

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    """All of them; what `make_readers` replaces is put back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "_probe", model._probe)
        yield make_readers(tmp_path_factory.mktemp("readers"), report_every=1)


def test_every_reader_that_security_names_is_fuzzed(readers):
    named = re.findall(r"fuzzed as `([^`]+)`", (REPOSITORY / "SECURITY.md").read_text("utf-8"))
    assert named
    assert {*named} <= {reader.name for reader in readers}


def test_no_reader_answers_a_broken_file_with_a_traceback():
    command = [sys.executable, "-m", "tests.chaos.fuzz", "--inputs", "160", "--seed", "7"]
    done = captured(command, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_broken_is_valid_before(readers):
    for reader in readers:
        reader.path.write_bytes(reader.seed)
        reader.read(reader.path)


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_is_answered_and_nobody_waits_for_it(readers, kind):
    failed = [said for reader in readers if (said := fuzz.spoilt(reader, kind)[1])]
    assert not failed


def reader_of(tmp_path, read):
    seed = b'{"a": 1, "b": [2, 3]}'
    draw_one = functools.partial(mutate, seed, dump=dump_json)
    return Reader(name="one", path=tmp_path / "file", seed=seed, read=read, mutate=draw_one)


def test_what_fails_is_made_small(tmp_path):
    def read(path):
        if path.is_file() and b"2" in path.read_bytes():
            raise KeyError("two")

    failures, _ = fuzz.fuzz(reader_of(tmp_path, read), range(30), seed=0)
    assert failures
    assert {failure.text for failure in failures} <= {b"2", None}
    assert all("KeyError" in failure.said for failure in failures)


def test_an_input_that_takes_too_long_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz, "MAX_SECONDS", 0.05)

    def read(path):
        while True:
            pass

    monkeypatch.setattr(fuzz, "_SHRINKS", 0)
    failures, _ = fuzz.fuzz(reader_of(tmp_path, read), range(2), seed=0)
    assert all("TookTooLongError" in failure.said for failure in failures)
