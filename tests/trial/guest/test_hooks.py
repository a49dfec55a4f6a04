import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from autotune.trial.guest.hooks import call_after_imports


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package of two modules on the path, which nobody has imported."""
    name = "somebodys_package"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("VALUE = 1\n")
    (tmp_path / name / "inner.py").write_text("VALUE = 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    yield name
    sys.meta_path[:] = finders
    for module in [loaded for loaded in sys.modules if loaded.partition(".")[0] == name]:
        del sys.modules[module]


def test_a_hook_is_called_once_with_the_module_that_was_executed(package: str) -> None:
    seen: list[int] = []
    call_after_imports([(package, "", lambda module: seen.append(module.VALUE))])
    importlib.import_module(package)
    importlib.reload(importlib.import_module(package))
    assert seen == [1]


def test_a_module_of_two_subjects_has_both_hooks_called_in_turn(package: str) -> None:
    seen: list[str] = []
    hooks = [
        (package, "", lambda _: seen.append("first")),
        ("somebody_else", "", lambda _: None),
        (package, "", lambda _: seen.append("second")),
    ]
    call_after_imports(hooks)
    importlib.import_module(package)
    assert seen == ["first", "second"]


def test_what_a_module_does_not_have_is_left_out(package: str) -> None:
    call_after_imports([(package, "Missing.__init__", lambda *_: None)])
    assert importlib.import_module(package).VALUE == 1


def test_looking_for_a_module_calls_nothing(package: str) -> None:
    seen: list[ModuleType] = []
    call_after_imports([(package, "", seen.append)])
    assert importlib.util.find_spec(package) is not None
    assert not seen
    importlib.import_module(package)
    assert len(seen) == 1


def test_a_module_within_a_package_has_a_hook_of_its_own(package: str) -> None:
    seen: list[str] = []
    call_after_imports(
        (name, "", lambda m: seen.append(m.__name__)) for name in (f"{package}.inner", package)
    )
    importlib.import_module(f"{package}.inner")
    assert seen == [package, f"{package}.inner"]


def test_what_is_there_already_has_its_hook_called(package: str) -> None:
    importlib.import_module(package)
    seen: list[ModuleType] = []
    call_after_imports([(package, "", seen.append)])
    assert seen == [sys.modules[package]]


def test_the_module_is_left_as_its_own_loader_makes_it(package: str) -> None:
    call_after_imports([(package, "", lambda _: None)])
    module = importlib.import_module(package)
    assert isinstance(module.__spec__, importlib.machinery.ModuleSpec)
    assert isinstance(module.__loader__, importlib.machinery.SourceFileLoader)
    assert module.__spec__.loader is module.__loader__


def test_two_that_wait_for_one_module_are_both_called(package: str) -> None:
    seen: list[str] = []
    call_after_imports([(package, "", lambda _: seen.append("first"))])
    call_after_imports([(package, "", lambda _: seen.append("second"))])
    importlib.import_module(package)
    assert sorted(seen) == ["first", "second"]


def test_a_module_that_is_not_there_is_not_there_with_a_hook_either() -> None:
    call_after_imports([("nobodys_package", "", lambda _: None)])
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("nobodys_package")
