"""What is built is imported as it is; anything else is torch's to compile."""

import shutil
from pathlib import Path

import pytest
from markupsafe import _speedups  # small, and compiled as an extension is
from torch.utils import cpp_extension

from autotune.trial.prebuilt import BUILT_FILE, load_as_built


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what torch was asked to compile."""
    asked: list[str] = []
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(cpp_extension, "load", lambda name, *_args, **_kwargs: asked.append(name))
    return asked


def test_what_is_built_is_imported_whatever_lock_lies_there(tmp_path, compiled) -> None:
    (tmp_path / "_speedups").mkdir()
    shutil.copy(_speedups.__file__, tmp_path / "_speedups" / "_speedups.so")
    (tmp_path / "_speedups" / BUILT_FILE).touch()
    (tmp_path / "_speedups" / "lock").touch()
    load_as_built()
    module = cpp_extension.load("_speedups", sources=["any.cpp"])
    assert module.__file__ == str(tmp_path / "_speedups" / "_speedups.so")
    assert compiled == []


def test_a_library_whose_build_did_not_end_well_is_compiled(tmp_path, compiled) -> None:
    (tmp_path / "_speedups").mkdir()
    (tmp_path / "_speedups" / "_speedups.so").write_bytes(b"half of it")
    load_as_built()
    cpp_extension.load("_speedups", sources=["any.cpp"])
    assert compiled == ["_speedups"]


def test_without_a_folder_of_ours_nothing_changes(compiled, monkeypatch) -> None:
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR")
    original = cpp_extension.load
    load_as_built()
    assert cpp_extension.load is original
    assert compiled == []
