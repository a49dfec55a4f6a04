"""Every command in the documentation is one that the command line takes."""

import re
import shlex
from pathlib import Path

import typer

from autotune.cli import cli

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [page for of in ("*", "docs/**/*", "skills/**/*") for page in REPOSITORY.glob(f"{of}.md")]


def _commands_of(page: Path) -> list[str]:
    """What follows `autotune` in the blocks of a page and within its lines."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = "\n".join(re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL))
    of_blocks = re.findall(r"^autotune +([^-\n].*)$", blocks, re.MULTILINE)
    return of_blocks + re.findall(r"`autotune +([^-`][^`]*)`", text)


def test_every_command_parses() -> None:
    commands = {(page.name, line) for page in PAGES for line in _commands_of(page)}
    assert {page for page, _ in commands} >= {"README.md", "report.md", "search.md", "check.md"}
    group = typer.main.get_group(cli)
    wrong = []
    for page, line in sorted(commands):
        name, *rest = shlex.split(re.sub(r"[\[\]|]", " ", line), comments=True)
        command = group.commands[name]
        _, left, _ = command.make_parser(typer.Context(command)).parse_args(rest)
        wrong += [f"{page}: `{name}` does not take {left}"] if left else []
    assert not wrong
