"""A trial's files on a node: in place where the folder is shared, else brought and sent back."""

import base64
import os
from pathlib import Path

import pytest

from autotune.contract import RANKS_DIR, SCRATCH_ENV
from autotune.fleet.node import files
from autotune.fleet.node.files import Incoming, TrialFiles, node_folder, packed


@pytest.fixture(autouse=True)
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The node's own folder."""
    folder = tmp_path / "node"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv(SCRATCH_ENV, str(folder))
    return folder


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A trial's folder as the coordinator has written it."""
    folder = tmp_path / "0000"
    (folder / "config").mkdir(parents=True)
    (folder / "spec.json").write_text("{}")
    (folder / "config" / "ds_config.json").write_bytes(b"\xff{}")
    return folder


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_where_the_same_files_stand_the_trial_runs_there(here: Path, node: Path) -> None:
    found = TrialFiles("head", str(here), packed(here))
    assert (found.is_shared, found.folder) == (True, here)
    (here / "stdout.log").write_text("seen where it is")
    assert list(found.added()) == []
    found.remove()
    assert (here / "spec.json").exists()
    assert list(node.iterdir()) == []


def test_elsewhere_they_are_written_and_go_with_the_trial(here: Path) -> None:
    given = packed(here)
    (here / "spec.json").write_text("of another study at the same path")
    found = TrialFiles("head", str(here), given)
    assert not found.is_shared
    assert found.folder == node_folder("head", str(here))
    assert found.folder != node_folder("another head", str(here))
    assert (found.folder / "config" / "ds_config.json").read_bytes() == b"\xff{}"
    (found.folder / "old").write_text("left by one that was killed")
    assert not (TrialFiles("head", str(here), given).folder / "old").exists()
    found.remove()
    assert not found.folder.exists()


def test_what_a_trial_adds_is_sent_once_logs_in_pieces_and_reports_whole(here: Path) -> None:
    found = TrialFiles("head", str(here), packed(here))
    assert found.is_shared
    (here / "spec.json").write_text("not shared")
    found = TrialFiles("head", str(here), {"spec.json": text(b"{}")})
    assert list(found.added()) == [], "what came is not sent back"
    log, ranks = found.folder / "stdout.log", found.folder / RANKS_DIR
    ranks.mkdir()
    log.write_bytes(b"one ")
    (ranks / "00.json").write_bytes(b"{1}")
    (ranks / ".00.json.aside").write_bytes(b"{")
    sent = {name: (at, data) for name, at, data in found.added()}
    assert sent == {"stdout.log": (0, b"one "), f"{RANKS_DIR}/00.json": (0, b"{1}")}
    assert list(found.added()) == []
    with log.open("ab") as more:
        more.write(b"two")
    os.replace(_written(ranks / "next", b"{2}"), ranks / "00.json")
    sent = {name: (at, data) for name, at, data in found.added()}
    assert sent == {"stdout.log": (4, b"two"), f"{RANKS_DIR}/00.json": (0, b"{2}")}
    log.write_bytes(b"new")
    assert list(found.added()) == [("stdout.log", 0, b"new")], "one that was cut is sent anew"


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_links_and_files_that_are_too_large_stay(here: Path, monkeypatch) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 10)
    (here / "spec.json").write_text("not shared")
    found = TrialFiles("head", str(here), {"spec.json": text(b"{}")})
    (found.folder / "checkpoint").write_bytes(b"x" * 11)
    (found.folder / "secret.log").symlink_to("/etc/hostname")
    assert list(found.added()) == []


def test_pieces_make_the_same_file_again_however_often_they_come(tmp_path: Path) -> None:
    incoming = Incoming(tmp_path)
    incoming.take("stdout.log", 0, text(b"one "))
    incoming.take("stdout.log", 4, text(b"two"))
    incoming.take("stdout.log", 4, text(b"two"))
    incoming.take(f"{RANKS_DIR}/00.json", 0, text(b"{1}"))
    incoming.take(f"{RANKS_DIR}/00.json", 0, text(b"{2}"))
    assert (tmp_path / "stdout.log").read_bytes() == b"one two"
    assert (tmp_path / RANKS_DIR / "00.json").read_bytes() == b"{2}"
    assert sorted(p.name for p in (tmp_path / RANKS_DIR).iterdir()) == ["00.json"]


@pytest.mark.cases("name")
def test_a_node_writes_reports_and_logs_of_its_trial_and_nothing_else(tmp_path, name):
    with pytest.raises(ValueError, match="no report and no log"):
        Incoming(tmp_path).take(name, 0, text(b"x"))
    assert list(tmp_path.rglob("*.json")) == []


def test_a_link_where_a_file_is_expected_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("kept")
    folder = tmp_path / "trial"
    folder.mkdir()
    (folder / "stdout.log").symlink_to(other)
    with pytest.raises(OSError, match="symbolic links"):
        Incoming(folder).take("stdout.log", 0, text(b"x"))
    assert other.read_text() == "kept"
