"""Installs the toy plug-ins as packages of their own, as their users would."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.base import plugins

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the toys are installed into."""
    folder = tmp_path_factory.mktemp("toys")
    # Copies: the backend leaves build/ and egg-info beside what it builds.
    sources = [
        shutil.copytree(path.parent, folder / "sources" / path.parent.name)
        for path in sorted(HERE.glob("*/pyproject.toml"))
    ]
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"),
            *("--no-build-isolation", "--disable-pip-version-check"),
            *("--target", folder / "installed", *sources),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    return folder / "installed"


@pytest.fixture(autouse=True)
def _on_the_path(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The toys are found by this process and by those that it starts."""
    monkeypatch.syspath_prepend(installed)
    monkeypatch.setenv("PYTHONPATH", str(installed))
    plugins._offered.cache_clear()
    yield
    plugins._offered.cache_clear()
