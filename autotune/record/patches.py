"""What `export --patch` wrote into files of the user's: `patches.json` in a study's folder.

A study of a user's command knows it by the text of its files. What the study itself wrote there
makes the command no other one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.record.found import read_found, write_found

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
