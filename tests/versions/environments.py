"""Environments with pins that are not ours: made once, kept in a folder of their own."""

import os
import subprocess
import sys
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[2]
CONSTRAINTS = Path(__file__).parent
TEST_NEEDS = ("pytest", "pytest-timeout", "hypothesis", "jsonschema")
_STAMP = "installed.txt"
"""The pins that were installed; others are installed over them, which leaves what is compiled."""


@dataclass(frozen=True, kw_only=True)
class PinnedEnvironment(ABC):
    """One virtual environment."""

    name: str
    folder: Path
    base: Path = Path(sys.executable)
    """The interpreter that it is made with."""

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def is_ready(self) -> bool:
        stamp = self.folder / _STAMP
        return stamp.exists() and stamp.read_text() == self.pins()

    @abstractmethod
    def pins(self) -> str:
        """The text of its file of constraints."""

    @abstractmethod
    def wanted(self, constraints: Path) -> Iterator[tuple[str, ...]]:
        """What `pip install` is told, one call after another."""

    def finish(self) -> None:  # noqa: B027  # most have nothing left to do
        """What is left to do once all is installed."""


class VersionEnvironment(PinnedEnvironment):
    """This repository with an older line of DeepSpeed's releases, such as `0.16`."""

    def pins(self) -> str:
        return "\n".join(pins(self.name).values()) + "\n"

    def wanted(self, constraints: Path) -> Iterator[tuple[str, ...]]:
        yield "--constraint", str(constraints), *_packages()
        # Plug-ins are found by the metadata of the package that offers them.
        yield "--no-deps", "--editable", str(REPOSITORY)


def names() -> list[str]:
    """Lines of releases that have a file of constraints, oldest first."""
    found = (path.stem.removeprefix("constraints-") for path in CONSTRAINTS.glob("*.txt"))
    return sorted(found, key=lambda name: tuple(map(int, name.split("."))))


def pins(name: str) -> dict[str, str]:
    """Package -> the line that pins it: this repository's own, overlaid by the version's."""
    return own_pins() | _read_pins(CONSTRAINTS / f"constraints-{name}.txt")


def own_pins() -> dict[str, str]:
    """Package -> the line of constraints.txt that pins it."""
    return _read_pins(REPOSITORY / "constraints.txt")


def install(made: PinnedEnvironment) -> None:
    """Make the environment, or leave it as it is if it was made before with these pins.

    Raises:
        subprocess.CalledProcessError: pip failed; its output is on this process's own.
    """
    if made.is_ready:
        return
    made.folder.mkdir(parents=True, exist_ok=True)
    constraints = made.folder / "constraints.txt"
    constraints.write_text(made.pins())
    subprocess.run([str(made.base), "-m", "venv", str(made.folder)], check=True)
    pip = (str(made.python), "-m", "pip", "install", "--quiet", "--no-compile")
    for wanted in made.wanted(constraints):
        # Extensions are compiled later, those that trials load alone.
        subprocess.run([*pip, *wanted], check=True, env={**os.environ, "DS_BUILD_OPS": "0"})
    made.finish()
    constraints.rename(made.folder / _STAMP)


def _packages() -> list[str]:
    """What the package needs, by name: how new is the constraints' business here."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = project["project"]["dependencies"]
    return [*(Requirement(line).name for line in wanted), *TEST_NEEDS]


def _read_pins(path: Path) -> dict[str, str]:
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return {canonicalize_name(Requirement(line).name): line for line in lines if line}
