"""A command of the user's: whose Python it is likely to run in."""

import os
import sys
from pathlib import Path

import pytest

from autotune.base.errors import JobError
from autotune.job.command import is_of_this_environment, refuse_missing_script

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


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("torchrun --nproc-per-node 2 trian.py --deepspeed ds.json", "trian.py"),
        ("python -u trian.py", "trian.py"),
        ("python train.py --teacher other.py", None),
        ("torchrun -m package.train", None),
        ("bash trian.py", None),
    ],
)
def test_a_script_that_is_not_there_is_refused(
    tmp_path: Path, line: str, missing: str | None
) -> None:
    (tmp_path / "train.py").touch()
    if missing is None:
        refuse_missing_script(line.split(), tmp_path)
        return
    with pytest.raises(JobError, match=f"{missing}: there is no such script"):
        refuse_missing_script(line.split(), tmp_path)
