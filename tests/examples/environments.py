"""The examples as their page lists them, and the environments of those whose pins are not ours."""

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.versions.environments import REPOSITORY, PinnedEnvironment

EXAMPLES = REPOSITORY / "examples"
PINS = "constraints.txt"
"""File of an example that runs in an environment of its own."""
MATERIAL = "made"
"""Folder in which such an example finds its model and its data: `prepare.py` writes it."""
_ROW = re.compile(r"^\| `(\w+)` \| .* \| `([^`]+)` \|$", re.MULTILINE)
_BUILT_FOR_CUDA = "lib/python*/site-packages/torchaudio/lib/*.so"


@dataclass(frozen=True, kw_only=True)
class Example:
    """A folder below `examples/` and the command that its page gives for it."""

    name: str
    variables: Mapping[str, str]
    """What stands before the command."""
    command: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return EXAMPLES / self.name

    @property
    def is_ours(self) -> bool:
        """Whether it runs in the environment of this repository."""
        return not (self.folder / PINS).exists()

    def environment(self, cache: Path) -> "ExampleEnvironment":
        return ExampleEnvironment(name=self.name, folder=cache / self.name)


class ExampleEnvironment(PinnedEnvironment):
    """An environment of exactly what an example's file lists: its frameworks ask for CUDA."""

    def pins(self) -> str:
        return (EXAMPLES / self.name / PINS).read_text(encoding="utf-8")

    def wanted(self, constraints: Path) -> Iterator[tuple[str, ...]]:
        yield "--no-deps", "--requirement", str(constraints)

    def finish(self) -> None:
        """Leave torchaudio without its extension, as its own documentation allows."""
        for path in self.folder.glob(_BUILT_FOR_CUDA):
            path.unlink()


def examples() -> dict[str, Example]:
    """Every example of the page by its name."""
    found = {}
    for name, line in _ROW.findall((EXAMPLES / "README.md").read_text(encoding="utf-8")):
        words = shlex.split(line)
        variables = {}
        while "=" in words[0]:
            key, _, value = words.pop(0).partition("=")
            variables[key] = value
        found[name] = Example(name=name, variables=variables, command=tuple(words))
    return found


def python_of(variable: str) -> str:
    """The interpreter of an environment whose pins differ from ours; none: skip the test."""
    if not (found := os.environ.get(variable)):
        pytest.skip(f"{variable} names no interpreter of an environment with the package")
    return found


def activated(python: Path) -> dict[str, str]:
    """Variables of a user who has activated the environment of an interpreter."""
    return {
        "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "DS_ACCELERATOR": "cpu",
        # DeepSpeed's extensions of two environments do not share a folder.
        "TORCH_EXTENSIONS_DIR": str(python.parents[1] / "extensions"),
    }


def variables_of(example: Example, made: PinnedEnvironment | None) -> dict[str, str]:
    """The environment of a user who has activated the one that an example needs."""
    lent = activated(Path(sys.executable) if made is None else made.python)
    if made is None:
        del lent["TORCH_EXTENSIONS_DIR"]  # ours lie where a search builds them
    return {**os.environ, **example.variables, **lent, "OMP_NUM_THREADS": "1"}
