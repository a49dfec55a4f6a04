"""The folder of wheels for a machine without a package index."""

from pathlib import Path

import pytest

from tests.gpu import wheels
from tests.gpu.wheels import PAGE, WheelsError, packages_of


def test_the_page_lists_the_packages_of_the_machine() -> None:
    listed = packages_of(PAGE)
    assert listed["torch"].startswith("2.")
    assert "transformers" in listed
    assert not {"deepspeed", "optuna", "pydantic"} & listed.keys(), "these the wheels bring"


def test_a_folder_without_wheels_and_one_with_two_releases_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WheelsError, match=r"holds no wheel: make gpu-wheels"):
        wheels.prove(tmp_path / "nowhere", Path("python"), {})
    for version in ("5.0.0", "5.1.0"):
        (tmp_path / f"optuna-{version}-py3-none-any.whl").touch()
    with pytest.raises(WheelsError, match=r"holds optuna more than once: remove the old one"):
        wheels.prove(tmp_path, Path("python"), {})


def test_what_is_too_large_to_travel_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "MOST_BYTES", 2**20)
    (tmp_path / "torch-2.11.0-py3-none-any.whl").write_bytes(b"0" * 2**21)
    with pytest.raises(WheelsError, match=r"holds 2\.0 MiB.*torch-2\.11\.0"):
        wheels._check_size(tmp_path)
