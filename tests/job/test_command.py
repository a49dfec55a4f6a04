"""A command of the user's: whose Python it is likely to run in."""

import os
import sys

import pytest

from autotune.base.errors import JobError
from autotune.job.command import check_command, is_of_this_environment

OURS = os.path.join(sys.prefix, "bin")


@pytest.mark.parametrize(
    ("program", "helps"), [("train.py", "torchrun train.py"), ("trainer", "activate the env")]
)
def test_a_program_that_is_not_there_is_told_with_what_is_likely_meant(program, helps) -> None:
    with pytest.raises(JobError, match=f"{program}: there is no such program") as caught:
        check_command([program])
    assert helps in caught.value.hint


@pytest.mark.cases("command", "leads", "is_ours")
def test_a_shell_runs_the_python_that_it_finds(tmp_path, command, leads, is_ours) -> None:
    theirs = tmp_path / "python"
    theirs.symlink_to("/bin/true")
    path = os.pathsep.join([*([OURS] if leads else []), str(tmp_path), "/usr/bin", "/bin"])
    typed = [word.replace("OURS", OURS) for word in command]
    assert is_of_this_environment(typed, {"PATH": path}) is is_ours
