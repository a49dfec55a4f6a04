"""The short form of the fuzzing, and that it can fail."""

import functools
import random
import subprocess
import sys

from autotune import model
from autotune.errors import JobError
from autotune.render import bounds
from tests.chaos import fuzz
from tests.chaos.mutations import TEXTS, dump_json, mutate
from tests.chaos.readers import Reader, make_readers


def test_no_reader_answers_a_broken_file_with_a_traceback():
    command = [sys.executable, "-m", "tests.chaos.fuzz", "--inputs", "320", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_broken_is_valid_before(tmp_path, monkeypatch):
    monkeypatch.setattr(model, "_probe", model._probe)  # which `make_readers` replaces
    monkeypatch.setattr(bounds, "MAX_CPU_S", bounds.MAX_CPU_S)
    for reader in make_readers(tmp_path):
        reader.path.write_bytes(reader.seed)
        reader.read(reader.path)


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


def test_an_error_that_says_what_is_wrong_is_an_answer(tmp_path):
    def read(path):
        raise JobError(f"{path}: no", "mend it")

    assert fuzz.fuzz(reader_of(tmp_path, read), range(20), seed=0) == ([], 20)


def test_an_input_that_takes_too_long_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz, "MAX_SECONDS", 0.05)

    def read(path):
        while True:
            pass

    monkeypatch.setattr(fuzz, "_SHRINKS", 0)
    failures, _ = fuzz.fuzz(reader_of(tmp_path, read), range(2), seed=0)
    assert all("TookTooLongError" in failure.said for failure in failures)


def test_the_same_seed_draws_the_same_inputs():
    seed = b'{"a": {"b": [1, 2, {"c": "d"}]}}'
    drawn = [[mutate(seed, random.Random(n), dump_json) for n in range(200)] for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) > 120
    assert set(drawn[0]) & set(TEXTS)
