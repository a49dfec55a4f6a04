"""The wheel works from any folder, and a package index would take it and its sources."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import autotune
from tests.captured import captured

REPOSITORY = Path(__file__).resolve().parent.parent
RECORDS = sorted((REPOSITORY / "results" / "recorded").glob("knobs-*.json"))


def test_every_room_is_in_the_list_of_packages() -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    listed = set(settings["tool"]["setuptools"]["packages"])
    rooms = {
        ".".join(path.parent.relative_to(REPOSITORY).parts)
        for path in (REPOSITORY / "autotune").rglob("*.py")
    }
    data = {f"autotune._data.{name}" for name in ("templates", "search_spaces", "recorded")}
    folders = [path for path in (REPOSITORY / "templates").rglob("*") if path.is_dir()]
    data |= {
        ".".join(("autotune._data", *folder.relative_to(REPOSITORY).parts)) for folder in folders
    }
    assert listed == rooms | data | {"autotune.job.presets"}


def test_tested_versions_are_within_the_declared_ranges() -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {
        canonicalize_name(name): version
        for name, _, version in (line.partition("==") for line in lines if "==" in line)
    }
    project = settings["project"]
    for text in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        requirement = Requirement(text)
        pin = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pin), f"{text} leaves out the tested {pin}"
    assert pins["torch"] == "2.13.0"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of the sources as they are, and the wheel made from that sdist."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    source.mkdir()
    # A copy: the backend leaves build/ and egg-info beside what it builds.
    for name in ("autotune", "templates", "search_spaces", "docs", "skills"):
        _copy(REPOSITORY / name, source / name)
    for path in RECORDS:
        copy = source / path.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    for path in (*REPOSITORY.glob("*.*"), REPOSITORY / "LICENSE", REPOSITORY / "Makefile"):
        if path.is_file():
            (source / path.name).write_bytes(path.read_bytes())
    done = captured([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source])
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return next(built.glob("*.whl"))


@pytest.mark.package
def test_a_package_index_would_take_both(built: Path, wheel: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    done = captured([sys.executable, "-m", "twine", "check", "--strict", sdist, wheel])
    assert done.returncode == 0, done.stdout
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        about = archive.read(metadata).decode("utf-8")
    assert "License-Expression: Apache-2.0" in about
    assert not [at for at in re.findall(r"\]\(([^)]*)\)", about) if not at.startswith("http")]
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {"LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "docs/job.md"}
    assert "skills/autotune/SKILL.md" in names


def test_the_version_is_the_same_wherever_it_is_said() -> None:
    cited = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == autotune.__version__
    assert f"\n## {autotune.__version__} " in (REPOSITORY / "CHANGELOG.md").read_text("utf-8")


@pytest.mark.package
def test_the_wheel_holds_every_file_of_the_sources(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        f"autotune/_data/{path.relative_to(REPOSITORY)}"
        for folder in ("templates", "search_spaces")
        for path in (REPOSITORY / folder).rglob("*")
        if path.is_file()
    }
    expected |= {
        str(path.relative_to(REPOSITORY))
        for path in (REPOSITORY / "autotune").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    expected |= {f"autotune/_data/recorded/{path.name}" for path in RECORDS}
    assert expected
    assert expected <= names
    assert "autotune/py.typed" in names
    assert not [name for name in names if name.startswith("tests")]


@pytest.mark.package
@pytest.mark.real
def test_the_wheel_searches_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own, which sees this one's packages but not this checkout.

    Installing torch and DeepSpeed a second time would prove nothing about the wheel and cost
    minutes: a path file lends them. Ours comes first in the new environment, and an editable
    install here is a hook that the path file does not run.
    """
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    site = captured(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True
    ).stdout.strip()
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--no-deps", "--target", site, wheel],
        check=True,
        capture_output=True,
    )
    (Path(site) / "lent.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    # What was compiled with one ninja is compiled again by another.
    (home / "bin" / "ninja").symlink_to(Path(sysconfig.get_path("scripts")) / "ninja")

    # The compiled extensions go with the packages they were built from; the checkout does not.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    where = captured(
        [python, "-c", "import autotune; print(autotune.__file__)"],
        check=True,
        cwd=elsewhere,
        env=environment,
    ).stdout.strip()
    assert where.startswith(str(home))

    done = captured(
        [
            *(python, "-m", "autotune", "search", "--yes", "--json"),
            *("--model", "tiny-llama", "--seq-len", "32", "--global-batch", "4", "--world", "2"),
            *("--precision", "fp32", "--space", "smoke", "--trials", "1", "--budget", "20s"),
            *("--no-diagnose", "--guard-steps", "0"),
        ],
        cwd=elsewhere,
        env={**environment, "DS_ACCELERATOR": "cpu"},
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["counts"]["ok"] >= 1
    assert (elsewhere / "results" / answer["study"] / "best" / "ds_config.json").is_file()


def _copy(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            (target / path.relative_to(source)).write_bytes(path.read_bytes())
