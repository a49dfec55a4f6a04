"""Whose a job file is, and what it would run and read, found out without doing it."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.job import origin
from autotune.job.job import read_job_file
from autotune.job.origin import code_of, deeds_of, is_inside


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    (folder / "below").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_inside_is_the_folder_and_below_with_links_followed(here: Path) -> None:
    mine, theirs = here / "below" / "job.yaml", here.parent / "elsewhere" / "job.yaml"
    for file in (mine, theirs, here / "job.yaml"):
        file.touch()
    (here / "link.yaml").symlink_to(theirs)
    (here / "linked").symlink_to(theirs.parent)
    (theirs.parent / "back.yaml").symlink_to(mine)
    (here.parent / "here-too").mkdir()
    alike = here.parent / "here-too" / "job.yaml"
    alike.touch()
    assert [is_inside(file, here) for file in (mine, here / "job.yaml")] == [True, True]
    assert is_inside(theirs.parent / "back.yaml", here)
    assert is_inside(Path("below/../below/job.yaml"), Path())
    for outside in (
        *(theirs, here / "link.yaml", here / "linked" / "job.yaml", alike),
        *(here / ".." / "elsewhere" / "job.yaml", Path("../elsewhere/job.yaml")),
    ):
        assert not is_inside(outside, here), outside


def test_a_file_of_another_user_is_not_one_s_own(here, monkeypatch) -> None:
    file = here / "job.yaml"
    file.touch()
    owners = {str(here): 0, str(file): 4711}
    monkeypatch.setattr(origin, "_owner", lambda path: owners[os.path.realpath(path)])
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert not is_inside(file, here)
    owners[str(here)] = 4711  # who owns the folder put the file there, and is another all the same
    assert not is_inside(file, here)
    monkeypatch.setattr(os, "getuid", lambda: 0)  # as in a container
    assert is_inside(file, here)
    file.chmod(0o666)
    assert not is_inside(file, here)
    file.chmod(0o644)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    owners[str(here)], owners[str(file)] = 0, 1000
    assert is_inside(file, here)


@pytest.mark.parametrize("mode", [0o666, 0o646, 0o602, 0o777])
def test_a_file_that_everybody_may_write_is_nobody_s(here: Path, mode: int) -> None:
    file = here / "job.yaml"
    file.touch()
    file.chmod(mode)
    assert not is_inside(file, here)
    (here / "link.yaml").symlink_to(file)
    assert not is_inside(here / "link.yaml", here)
    file.chmod(0o664)
    assert is_inside(here / "link.yaml", here)


@pytest.mark.cases("data", "deeds")
def test_what_a_job_runs_and_reads_is_listed(data: dict[str, Any], deeds: list[str]) -> None:
    found = deeds_of(data)
    assert len(found) == len(deeds)
    assert all(line.startswith(begin) for line, begin in zip(found, deeds, strict=True))
    assert deeds_of(data, without=data) == []


def test_paths_in_a_file_are_its_folder_s(here: Path) -> None:
    theirs = here.parent / "elsewhere"
    (theirs / "t").mkdir()
    (theirs / "space.yaml").touch()
    (theirs / "job.yaml").write_text("templates: t\nspace: space.yaml\nlengths: l.csv\n")
    assert deeds_of(read_job_file(theirs / "job.yaml")) == [
        f"templates: renders templates of {theirs / 't'}",
        f"space: reads {theirs / 'space.yaml'}",
        f"lengths: reads {theirs / 'l.csv'}",
    ]


def test_a_factory_s_file_is_found_and_not_imported(here: Path) -> None:
    package = here / "chosen" / "deep"
    package.mkdir(parents=True)
    for file in (here / "chosen" / "__init__.py", package / "__init__.py", package / "models.py"):
        file.write_text("raise SystemExit('imported')\n")
    (here / "alone.py").write_text("raise SystemExit('imported')\n")
    assert code_of("chosen.deep.models:build") == (
        f"imports chosen.deep.models from {package / 'models.py'} and calls build"
    )
    assert f"{here / 'alone.py'} and calls x" in str(code_of("alone:x"))
    assert f"from {here / 'chosen' / '__init__.py'}" in str(code_of("chosen:x"))
    assert "where it is found" in str(code_of("chosen.nothing:x"))
    assert "where it is found" in str(code_of("alone.below:x"))
    assert not {"chosen", "alone"} & set(sys.modules)
    # Installed packages count as well, and after the folder.
    assert "site-packages" in str(code_of("torch.nn:Linear"))
    for none in ("gpt2", "chosen", "chosen:", ":x", "a b:c", "x/y:z", 7, None, "chosen.json"):
        assert code_of(none) is None
