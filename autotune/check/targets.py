"""The files that `check` looks at: names, folders, globs, standard input."""

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.base.errors import JobError
from autotune.base.user_text import STANDARD_INPUT
from autotune.engines.launches.files import SHELL_SUFFIXES

SUFFIXES = (*SHELL_SUFFIXES, ".hjson", ".json", ".yaml", ".yml")
"""Endings of the files that are looked at in a folder; a file that is named may have any."""

_NO_SOURCES = frozenset({"__pycache__", "build", "dist", "node_modules", "site-packages", "venv"})
"""Folders whose files are others' or made from sources; hidden ones are left out as well."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A file to check."""

    path: Path
    is_named: bool
    """Whether the user named this very file: it must be a configuration then. One that was found
    in a folder or by a pattern may be anything."""


def targets_of(names: Sequence[str]) -> list[Target]:
    """The files behind some names, each once, in the order of the names.

    Of a folder the shell files come first: they say how the others are used.

    Args:
        names: Files, folders (with all below them), patterns such as `configs/**/*.json` that no
            shell has replaced, or `-`.

    Raises:
        JobError: A name is empty, a pattern fits no file, or a folder holds none.
    """
    found: dict[Path, Target] = {}
    for name in names:
        for target in _targets(name):
            at = target.path
            if at not in found or target.is_named:
                found[at] = target
    return list(found.values())


def _targets(name: str) -> Iterator[Target]:
    if not name:
        raise JobError("a name is empty", "name a file, a folder or a pattern")
    path = Path(name)
    if name == str(STANDARD_INPUT) or os.path.lexists(path):
        if not path.is_dir():
            yield Target(path=path, is_named=True)
            return
        below = list(_below(path))
    elif glob.has_magic(name):
        below = [one for one in map(Path, glob.iglob(name, recursive=True)) if not one.is_dir()]
    else:
        yield Target(path=path, is_named=True)  # whoever reads it says that it is not there
        return
    if not below:
        raise JobError.of("check.no_file", name=name, suffixes=", ".join(SUFFIXES))
    below.sort(key=lambda one: (one.suffix not in SHELL_SUFFIXES, one))
    yield from (Target(path=one, is_named=False) for one in below)


def _below(folder: Path) -> Iterator[Path]:
    for at, folders, files in os.walk(folder):
        folders[:] = [one for one in folders if one[0] != "." and one not in _NO_SOURCES]
        yield from (Path(at, one) for one in files if one.endswith(SUFFIXES) and one[0] != ".")
