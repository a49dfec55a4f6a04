"""The stages for a GPU: order, limit and resumption on any machine, and that each is a command."""

import json
import sys
from pathlib import Path

import pytest
import typer

from autotune.cli.base import cli
from tests.gpu import accept
from tests.gpu.accept import AUTOTUNE, REPOSITORY, STAGES, Stage, main, run

SAYS = ("-c", "print('said')")


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_stage_is_a_command_that_there_is(stage: Stage) -> None:
    if stage.command[:2] != AUTOTUNE:
        assert stage.command[0] == "-m" or (REPOSITORY / stage.command[0]).is_file()
        return
    name, *flags = stage.command[2:]
    command = typer.main.get_group(cli).commands[name]
    _, left, _ = command.make_parser(typer.Context(command)).parse_args(flags)
    assert not left


def test_a_stage_leaves_its_result_and_is_not_run_again(tmp_path: Path, capsys) -> None:
    counter = f"from pathlib import Path; Path({str(tmp_path / 'n')!r}).open('a').write('x')"
    stages = [Stage("count", "counts", ("-c", counter), 0)]
    assert run(stages, tmp_path, 60) == 0
    assert run(stages, tmp_path, 60) == 0
    assert (tmp_path / "n").read_text() == "x"
    assert "done already" in capsys.readouterr().out
    assert json.loads((tmp_path / "count.stage.json").read_text())["is_answered"]


def test_a_failed_stage_ends_no_other_and_runs_again(tmp_path: Path, capsys) -> None:
    fails = Stage("fails", "fails", ("-c", "import sys; sys.exit('no such device')"), 0)
    after = Stage("after", "says", SAYS, 0)
    assert run([fails, after], tmp_path, 60) == 1
    assert "no such device" in capsys.readouterr().out
    assert (tmp_path / "after.out").read_text() == "said\n"
    mended = Stage("fails", "fails", SAYS, 0)
    assert run([mended, after], tmp_path, 60) == 0


def test_the_limit_ends_a_stage_and_leaves_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where CI ignores interrupts, the stage ignores them as well, and has to be killed.
    monkeypatch.setattr(accept, "GRACE_S", 2.0)
    sleeps = Stage("sleeps", "sleeps", ("-c", "import time; time.sleep(600)"), 0)
    assert run([sleeps, Stage("after", "says", SAYS, 10)], tmp_path, 1.5) == 1
    assert not (tmp_path / "after.out").exists()
    assert run([Stage("after", "says", SAYS, 10)], tmp_path, 1) == 3


def test_an_unknown_stage_is_refused(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["--stage", "nothing"])
    assert "doctor" in capsys.readouterr().err
    assert sys.exc_info() == (None, None, None)
