"""Paths that others can prepare: what is used, what is passed over, what is refused."""

import os
import socket
import stat
import tempfile
from pathlib import Path

import pytest

from autotune.base.private import (
    PreparedError,
    check_code_folder,
    open_lock,
    open_new,
    refuse_prepared,
)

OTHER = 12_345
is_root = pytest.mark.skipif(os.getuid() != 0, reason="only root makes files of others")


@pytest.fixture
def around(tmp_path, monkeypatch):
    """A temporary directory as every machine has one."""
    place = tmp_path / "tmp"
    place.mkdir()
    place.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def belongs_to_another(path: Path) -> None:
    os.chown(path, OTHER, OTHER, follow_symlinks=False)


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


NO_LOCKS = {
    "a link to a file": lambda path, victim: path.symlink_to(victim),
    "a dangling link": lambda path, victim: path.symlink_to(victim.with_name("new")),
    "a link to itself": lambda path, victim: path.symlink_to(path),
    "a second name of a file": lambda path, victim: path.hardlink_to(victim),
    "a pipe": lambda path, victim: os.mkfifo(path),
    "a folder": lambda path, victim: path.mkdir(),
    "a socket": lambda path, victim: bound_socket(path),
    "a link to a device": lambda path, victim: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", NO_LOCKS)
def test_a_lock_is_a_file_and_nothing_else_is_touched(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    victim = tmp_path / "victim"
    victim.write_text("precious")
    NO_LOCKS[kind](Path("lock"), victim)
    with pytest.raises(OSError, match="lock"):
        open_lock(tmp_path / "lock")
    assert victim.read_text() == "precious"
    assert not (tmp_path / "new").exists()


def test_a_lock_that_is_there_is_opened_as_it_is(tmp_path):
    (tmp_path / "lock").write_text("123")
    handle = open_lock(tmp_path / "lock")
    assert os.read(handle, 10) == b"123"
    os.close(handle)


@is_root
@pytest.mark.parametrize("kind", ["folder", "link", "file"])
@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o1775, 0o755])
def test_what_another_made_in_an_open_folder_is_refused(tmp_path, kind, mode):
    place = tmp_path / "open"
    place.mkdir()
    path = place / "results"
    if kind == "link":
        (tmp_path / "target").mkdir()
        path.symlink_to(tmp_path / "target")
    elif kind == "folder":
        path.mkdir()
    else:
        path.touch()
    refuse_prepared(path)
    belongs_to_another(path)
    place.chmod(mode)
    if mode & stat.S_IWOTH:
        with pytest.raises(PreparedError, match=rf"{path} .*user {OTHER}"):
            refuse_prepared(path)
    else:  # who may write there is the business of those who share it
        refuse_prepared(path)


def test_what_is_not_there_is_not_prepared(tmp_path):
    refuse_prepared(tmp_path / "no" / "such" / "folder")
    (tmp_path / "file").touch()
    refuse_prepared(tmp_path / "file" / "below")


@is_root
def test_code_is_loaded_from_folders_of_this_user_alone(tmp_path):
    folder = tmp_path / "root" / "digest"
    folder.mkdir(parents=True)
    folder.chmod(0o775)
    check_code_folder(folder)
    folder.chmod(0o777)
    with pytest.raises(PreparedError, match="everybody"):
        check_code_folder(folder)
    folder.chmod(0o755)
    folder.parent.chmod(0o777)
    with pytest.raises(PreparedError, match="can be replaced by anybody"):
        check_code_folder(folder)
    folder.parent.chmod(0o1777)
    check_code_folder(folder)
    for level in (folder, folder.parent):
        belongs_to_another(level)
        with pytest.raises(PreparedError, match=f"belongs to user {OTHER}, whose code"):
            check_code_folder(folder)
        os.chown(level, 0, 0)
    link = tmp_path / "link"
    link.symlink_to(folder)
    belongs_to_another(folder)
    with pytest.raises(PreparedError, match="whose code"):
        check_code_folder(link)


@pytest.mark.parametrize("kind", [kind for kind in NO_LOCKS if kind != "a folder"])
def test_what_is_new_is_in_place_of_what_was_there(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    NO_LOCKS[kind](Path("log"), victim)
    with open(open_new(tmp_path / "log"), "w") as log:
        log.write("new")
    assert not (tmp_path / "log").is_symlink()
    assert (tmp_path / "log").read_text() == "new"
    assert victim.read_text() == "precious"
    assert not (tmp_path / "new").exists()
