import pytest

from autotune.base import data


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "autotune"
    folder.mkdir()
    monkeypatch.setattr(data, "_PACKAGE", folder)
    return folder


def test_a_checkout_keeps_data_beside_the_package(package):
    (package.parent / "templates").mkdir()
    assert data.data_folder("templates") == package.parent / "templates"


def test_a_wheel_carries_data_inside_the_package_and_that_comes_first(package):
    (package.parent / "templates").mkdir()
    (package / "_data" / "templates").mkdir(parents=True)
    assert data.data_folder("templates") == package / "_data" / "templates"


def test_data_that_is_missing_is_named(package):
    with pytest.raises(FileNotFoundError, match="templates: neither inside"):
        data.data_folder("templates")
