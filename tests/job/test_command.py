"""A command of the user's: whose Python it is likely to run in."""

import os
import sys
from pathlib import Path

import pytest

from autotune.job.command import is_of_this_environment

OURS = os.path.join(sys.prefix, "bin")


@pytest.mark.parametrize(
    ("command", "leads", "is_ours"),
    [
        (["python", "train.py"], True, True),
        (["bash", "-c", "python train.py"], True, True),
        (["bash", "-c", "python train.py"], False, False),
        ([os.path.join(OURS, "python"), "train.py"], False, True),
        (["no-such-program"], False, False),
    ],
)
def test_a_shell_runs_the_python_that_it_finds(
    tmp_path: Path, command: list[str], leads: bool, is_ours: bool
) -> None:
    theirs = tmp_path / "python"
    theirs.symlink_to("/bin/true")
    path = os.pathsep.join([*([OURS] if leads else []), str(tmp_path), "/usr/bin", "/bin"])
    assert is_of_this_environment(command, {"PATH": path}) is is_ours
