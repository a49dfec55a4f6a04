"""Every command in the documentation is one that the command line takes."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from autotune.cli import cli

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")]


def _lines_joined(page: Path) -> str:
    """A page in which a command over several lines is one line."""
    return page.read_text(encoding="utf-8").replace("\\\n", " ")


COMMANDS = sorted(
    {
        (page.name, line)
        for page in PAGES
        for line in re.findall(r"python -m autotune\s+([^`\n]+)", _lines_joined(page))
    }
)


def test_there_are_commands() -> None:
    assert {page for page, _ in COMMANDS} >= {"README.md", "report.md", "search.md", "check.md"}


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_command_parses(page: str, line: str) -> None:
    name, *rest = shlex.split(re.sub(r"[\[\]|]", " ", line), comments=True)
    command = typer.main.get_group(cli).commands[name]
    parser = command.make_parser(typer.Context(command))
    _, left, _ = parser.parse_args(rest)
    assert not left, f"{page}: `{name}` does not take {left}"
