"""Files that are written: whole, under every name, and never as another user has prepared them."""

import errno
import os
import stat
import tempfile
from pathlib import Path

import pytest

from autotune.base.errors import StudyError
from autotune.base.files import try_folder, write_text, write_whole
from autotune.base.private import PreparedError
from autotune.contract import read_json, write_json

OTHER = 12_345
is_root = pytest.mark.skipif(os.getuid() != 0, reason="only root makes files of others")


def write_as_text(path: Path) -> None:
    write_text(path, '{"new": 1}', error=StudyError, hint="name another")


WRITERS = {"text": write_as_text, "json": lambda path: write_json(path, {"new": 1})}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(
    "name",
    [
        *("n" * 255, "-rf", "--out", "a\nb", "\x1b[31m", "\udcff", "\udcff" * 255, "%s{}$HOME"),
        *(
            "\u00e9" * 127,
            "x" + "\u00e9" * 127,
            "\U0001f600" * 63,
            " ",
            "~",
            "*",
            "nul",
            "." + "n" * 254,
        ),
    ],
    ids=range(16),
)
def test_a_name_that_a_disk_takes_is_written(tmp_path: Path, writer: str, name: str) -> None:
    WRITERS[writer](tmp_path / name)
    assert read_json(tmp_path / name) == {"new": 1}
    assert [*tmp_path.iterdir()] == [tmp_path / name], "nothing is left beside it"


def prepare_file(path: Path) -> None:
    path.touch()
    path.chmod(0o666)
    os.chown(path, OTHER, OTHER)


def prepare_link(path: Path, *, is_of_another: bool) -> None:
    target = path.with_name("target")
    target.write_text("precious")
    target.chmod(0o666)
    if is_of_another:
        os.chown(target, OTHER, OTHER)
    path.symlink_to(target)
    if not is_of_another:
        os.chown(path, OTHER, OTHER, follow_symlinks=False)


PREPARED = {
    "a file": prepare_file,
    "a link of theirs": lambda path: prepare_link(path, is_of_another=False),
    "a link to a file of theirs": lambda path: prepare_link(path, is_of_another=True),
    "a pipe": lambda path: os.mkfifo(path, 0o666),
    "a device": lambda path: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3)),
}


@is_root
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("kind", PREPARED)
def test_another_user_does_not_choose_who_may_write(tmp_path, writer, kind) -> None:
    path = tmp_path / "report.html"
    before = os.umask(0)
    try:
        PREPARED[kind](path)
        os.umask(0o022)
        WRITERS[writer](path)
    finally:
        os.umask(before)
    found = path.lstat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o644, os.getuid())
    assert stat.S_ISREG(found.st_mode)
    target = tmp_path / "target"
    assert not target.exists() or target.read_text() == "precious"


def test_one_s_own_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.touch()
    path.chmod(0o664)
    write_as_text(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o664


def test_a_full_disk_sends_nobody_to_another_folder(tmp_path, monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", full)
    with pytest.raises(StudyError, match="No space left") as caught:
        try_folder(tmp_path, named=tmp_path, hint="name another folder")
    assert caught.value.hint.startswith("free some space")


@is_root
def test_nothing_is_written_into_a_folder_that_another_has_prepared(tmp_path: Path) -> None:
    prepared = tmp_path / "open" / "theirs"
    prepared.mkdir(parents=True)
    prepared.parent.chmod(0o1777)
    os.chown(prepared, OTHER, OTHER)
    for folder in (prepared, prepared / "below"):
        folder.mkdir(exist_ok=True)
        with pytest.raises(PreparedError, match=f"user {OTHER}"):
            write_whole(folder / "hardware.yaml", lambda aside: aside.touch())
        with pytest.raises(StudyError, match=f"user {OTHER}"):
            write_as_text(folder / "new" / "report.html")
    assert [*prepared.iterdir()] == [prepared / "below"]
    assert not [*(prepared / "below").iterdir()]
