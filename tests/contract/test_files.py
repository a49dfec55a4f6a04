"""Files of a trial are read within bounds, and what is no file is never opened."""

import errno
import os
import sys
from pathlib import Path

import pytest

from autotune.contract import (
    ContractError,
    NotAFileError,
    is_count,
    read_bounded,
    read_json,
    read_text,
    write_json,
)
from autotune.contract.files import mode_of
from tests.captured import captured
from tests.cases import data_beside
from tests.chaos.mutations import NO_FILES

DATA = data_beside(__file__)

NOT_FILES = DATA["NOT_FILES"]


@pytest.mark.parametrize("kind", NOT_FILES)
def test_what_is_no_file_is_not_opened(tmp_path, monkeypatch, kind):
    path = tmp_path / "file"
    NO_FILES[kind](path)

    def opened(*_args, **_options):
        raise AssertionError("it was opened, which wakes or waits")

    monkeypatch.setattr(os, "open", opened)
    with pytest.raises(NotAFileError) as caught:
        read_bounded(path)
    assert caught.value.strerror == f"is {NOT_FILES[kind]}, not a file"
    with pytest.raises(ContractError, match=NOT_FILES[kind]):
        read_json(path)


@pytest.mark.parametrize("size", [4, 5, 6, 2**40])
def test_no_more_is_read_than_is_allowed(tmp_path, size):
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(size)
    if size <= 5:
        assert read_bounded(path, 5) == bytes(size)
        return
    with pytest.raises(OSError, match="is larger than 5 bytes") as caught:
        read_bounded(path, 5)
    assert caught.value.errno == errno.EFBIG


def test_a_file_that_says_no_size_is_bounded_as_well():
    with pytest.raises(OSError, match="larger"):
        read_bounded(Path("/proc/self/maps"), 5)


def test_a_pipe_that_a_shell_hands_over_is_read_to_its_end():
    command = (
        "from pathlib import Path; from autotune.contract import read_text; "
        "print(read_text(Path('/dev/stdin')))"
    )
    done = captured([sys.executable, "-c", command], input="by a pipe")
    assert done.stdout.strip() == "by a pipe", done.stderr


@pytest.mark.parametrize("name", ["a\0b", "", "no/such/file", "a" * 5000])
def test_a_name_that_no_file_has_is_an_error_of_the_system(tmp_path, name):
    with pytest.raises(OSError, match=r".") as caught:
        read_bounded(tmp_path / name)
    assert caught.value.errno


def test_text_that_is_not_utf8_is_replaced(tmp_path):
    (tmp_path / "log").write_bytes(b"a\xffb")
    assert read_text(tmp_path / "log") == "a\ufffdb"


@pytest.mark.parametrize("kind", [kind for kind in NO_FILES if kind != "a folder"])
def test_a_file_takes_the_place_of_whatever_stood_there(tmp_path, kind):
    path, target = tmp_path / "file.json", tmp_path / "target"
    NO_FILES[kind](path)
    write_json(path, {"a": 1})
    assert not path.is_symlink()
    assert read_json(path) == {"a": 1}
    assert path.stat().st_mode & 0o7000 == 0
    assert not target.exists()


def test_a_file_is_as_open_as_the_one_before_and_never_runs_as_its_owner(tmp_path):
    path = tmp_path / "file.json"
    path.touch()
    path.chmod(0o6640)
    assert mode_of(path) == 0o640
    os.umask(mask := os.umask(0o022))
    assert mode_of(tmp_path / "new") == 0o666 & ~mask
    assert mode_of(tmp_path) == 0o666 & ~mask, "a folder lends a file no mode"


@pytest.mark.cases("text", "is_one")
def test_a_count_is_a_few_digits(text, is_one):
    assert is_count(text) == is_one
