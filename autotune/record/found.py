"""What a command found, as one JSON file in a folder: `ladder.json`, `soak.json`."""

import dataclasses
from collections.abc import Callable
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
