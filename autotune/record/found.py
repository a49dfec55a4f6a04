"""What a command found, as one JSON file in a folder: `ladder.json`, `soak.json`.

What `export --patch` wrote into files of the user's: `patches.json` in a study's folder.

A study of a user's command knows it by the text of its files. What the study itself wrote there
makes the command no other one.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from autotune.base.files import writing
from autotune.contract import ContractError, read_json, write_json
from autotune.record.facts import read_fact

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")


def write_found(path: Path, found: "DataclassInstance") -> Path:
    """Write the file; an earlier one is replaced.

    Raises:
        StudyError: The folder cannot be written.
    """
    with writing(path, hint="mend the permissions, then run the same command again"):
        write_json(path, dataclasses.asdict(found))
    return path


def read_found(kind: Callable[..., T], path: Path) -> T | None:
    """The file's content; None if there is none, or it is unreadable or out of bounds.

    The bounds are those that the fields of `kind` declare.
    """
    try:
        return read_fact(kind, read_json(path))
    except ContractError:
        return None


_FILE = "patches.json"


@dataclass(frozen=True, kw_only=True)
class WrittenPatch:
    """The last patch of one file."""

    before: str
    """Hash of the file's text when the study's trials ran: `Observed.source_digests`."""
    after: str
    """Hash of what the last patch wrote."""
    trial: int
    """Trial whose configuration that is."""
    candidate_hash: str


@dataclass(frozen=True, kw_only=True)
class _Patches:
    files: Mapping[str, WrittenPatch]


def read_patches(folder: Path) -> Mapping[str, WrittenPatch]:
    """The files that a study patched, by name; none where the file is unreadable."""
    found = read_found(_Patches, folder / _FILE)
    return {} if found is None else found.files


def write_patches(folder: Path, patches: Mapping[str, WrittenPatch]) -> None:
    """Write down which files a study patched.

    Raises:
        StudyError: The folder cannot be written.
    """
    write_found(folder / _FILE, _Patches(files=dict(patches)))
