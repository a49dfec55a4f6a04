"""What `export --patch` wrote into files of the user's: `patches.json` in a study's folder.

A study of a user's command knows it by the text of its files. What the study itself wrote there
makes the command no other one.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.base.errors import StudyError
from autotune.contract import ContractError, read_json, write_json
from autotune.record.facts import read_fact

PATCHES_FILE = "patches.json"


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


def read_patches(folder: Path) -> dict[str, WrittenPatch]:
    """The files that a study patched, by name; what is unreadable counts as not there."""
    try:
        data = read_json(folder / PATCHES_FILE)
    except ContractError:
        return {}
    found = {name: read_fact(WrittenPatch, patch) for name, patch in data.items()}
    return {name: patch for name, patch in found.items() if patch is not None}


def write_patches(folder: Path, patches: Mapping[str, WrittenPatch]) -> None:
    """Write down which files a study patched.

    Raises:
        StudyError: The folder cannot be written.
    """
    path = folder / PATCHES_FILE
    try:
        write_json(path, {name: dataclasses.asdict(patch) for name, patch in patches.items()})
    except OSError as error:
        raise StudyError(
            f"{path}: cannot be written: {error.strerror}",
            "free some space or mend the permissions, then patch again",
        ) from error
