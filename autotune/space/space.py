"""A search space by its name or its file."""

import os
from pathlib import Path

from autotune.base.data import data_folder, shipped_spaces
from autotune.base.errors import JobError
from autotune.base.names import did_you_mean
from autotune.space.knob import Catalogue
from autotune.space.space_file import Space, read_space_file


def load_space(name_or_path: str, knobs: Catalogue, engine: str = "") -> Space:
    """Read a shipped space by its name, or the YAML file at a path; `engine` is whose knobs.

    Raises:
        JobError: There is no such space, or the file is not valid.
    """
    path = Path(name_or_path)
    if name_or_path in shipped_spaces():
        path = data_folder("search_spaces") / f"{name_or_path}.yaml"
    elif not os.path.isfile(path):
        guess = did_you_mean(name_or_path, shipped_spaces(), most=1)
        known = ", ".join(shipped_spaces())
        raise JobError.of("space.no_space", name=name_or_path, guess=guess, known=known)
    return read_space_file(path, knobs, engine)
