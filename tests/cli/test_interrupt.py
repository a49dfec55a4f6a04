"""Ctrl-C outside the search's own handler: exit code 130, one line, no traceback."""

import sys

import pytest
import typer

from autotune import cli
from autotune.base.errors import ExitCode
from autotune.cli import find

LINE = "interrupted: nothing that ended is lost"


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["autotune", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code


@pytest.mark.cases("step", "arguments")
def test_ctrl_c_is_one_line(step, arguments, monkeypatch, capfd) -> None:
    monkeypatch.setattr(step, interrupted)
    assert run(monkeypatch, *arguments) == ExitCode.INTERRUPTED
    out, err = capfd.readouterr()
    assert not out
    assert err.splitlines() == [LINE]


def test_ctrl_c_at_the_question(monkeypatch, capfd) -> None:
    def aborted(*_: object, **__: object) -> None:
        raise typer.Abort

    monkeypatch.setattr(typer, "confirm", aborted)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(
        "autotune.app.studies.studies", lambda _: find._agrees("Run it?", default=True)
    )
    assert run(monkeypatch, "status") == ExitCode.INTERRUPTED
    assert capfd.readouterr().err.split() == [
        "interrupted:",
        "nothing",
        "that",
        "ended",
        "is",
        "lost",
    ]
