"""Which files are checked."""

from pathlib import Path

import pytest

from autotune.base.errors import JobError
from autotune.check.targets import targets_of


@pytest.fixture
def tree(tmp_path, monkeypatch):
    for name in (
        *("configs/a.json", "configs/deep/b.yaml", "configs/c.hjson", "configs/notes.md"),
        *("configs/.hidden/d.json", "configs/node_modules/e.json", "empty/readme.txt"),
        *("configs/deep/run.sh",),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)


def looked_at(*names: str) -> list[str]:
    return [target.path.as_posix() for target in targets_of(names)]


@pytest.mark.usefixtures("tree")
def test_folders_patterns_and_files():
    below = ["configs/deep/run.sh", "configs/a.json", "configs/c.hjson", "configs/deep/b.yaml"]
    assert looked_at("configs") == below
    assert looked_at("configs/**/*.json") == ["configs/a.json", "configs/node_modules/e.json"]
    assert looked_at("configs/notes.md", "-", "not there.json") == [
        *("configs/notes.md", "-", "not there.json")
    ]


@pytest.mark.usefixtures("tree")
def test_a_file_that_is_named_twice_is_looked_at_once():
    found = targets_of(["configs", "configs/a.json"])
    assert [str(one.path) for one in found].count("configs/a.json") == 1
    assert {str(one.path): one.is_named for one in found}["configs/a.json"]


@pytest.mark.usefixtures("tree")
@pytest.mark.parametrize("name", ["empty", "configs/*.toml"])
def test_nothing_to_check_is_said(name):
    with pytest.raises(JobError, match="no file to check"):
        targets_of([name])


@pytest.mark.usefixtures("tree")
def test_a_file_named_like_a_pattern_is_that_file():
    Path("configs/[a].json").write_text("{}", encoding="utf-8")
    assert looked_at("configs/[a].json") == ["configs/[a].json"]


def test_an_empty_name_is_not_the_folder_that_one_is_in():
    with pytest.raises(JobError, match="a name is empty"):
        targets_of([""])
